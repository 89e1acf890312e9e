"""The figures of the search service for `benchmarks.search`: Ray Serve on this machine, one replica of each tool unless said.

`service_overhead_ms`: median of a call through a handle minus the median of the same search in process, one caller;
`noop_p50_ms`, what a call of a deployment that does nothing takes such a caller, is the least that it can be.
`service_vs_noop`: searches by word a second of 32 callers of one worker, whose waiting calls are sent as one, over the calls a
second of 32 callers of a deployment that does nothing, both with a replica for each core: the median of rounds in which both
take turns, for machines change their speed. `service_vs_noop_one_replica`: with one of each. `vector_*`: 32 callers over a flat
index, query embedding included;
`vector_batching_gain` is against the same service with batches of one. `vs_single_process*`: 32 callers against a FastAPI
process around the same index that answers one request at a time. The service embeds and compares vectors on all cores, the
process on one or on all, whichever is quicker.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

CALLERS = 32
K = 10
REALLY_EMBEDDED = 5000
VECTORS = 100_000
_NOISE = 0.3
_WARM_UP = 100
_ROUNDS = 7
_THREADS = os.cpu_count() or 1
_PORT = 8391
_SINGLE_PORT = 8392


class PerturbedEmbedder:
    """Embeds the first `REALLY_EMBEDDED` texts; each further one gets a perturbed copy of one of these vectors."""

    def __init__(self) -> None:
        from rl_cluster.models.embedder import SentenceEmbedder

        self._real = SentenceEmbedder(max_tokens=128)
        self._rows = np.zeros((0, 0), np.float32)
        self._rng = np.random.default_rng(0)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        missing = min(len(texts), REALLY_EMBEDDED - len(self._rows))
        real = self._real.encode(texts[:missing]) if missing > 0 else np.zeros((0, self._rows.shape[1]), np.float32)
        self._rows = np.concatenate([self._rows, real]) if self._rows.size else real
        base = self._rows[self._rng.integers(0, len(self._rows), len(texts) - len(real))]
        noise = self._rng.standard_normal(base.shape).astype(np.float32) / base.shape[1] ** 0.5
        copies = base + _NOISE * noise
        copies /= np.linalg.norm(copies, axis=1, keepdims=True)
        return np.concatenate([real, copies])


def build_vectors(folder: Path, docs: int) -> dict[str, float]:
    """Writes a flat vector index of at most `VECTORS` documents into `folder`/vectors."""
    from rl_cluster.datasets.corpus import Corpus
    from rl_cluster.datasets.enterprise_kb.generator import generate
    from rl_cluster.retrieval.index import IndexSettings, SearchIndex

    number = min(docs, VECTORS)
    corpus = Corpus.from_documents("enterprise_kb", islice(generate(docs, 0).documents(), number))
    SearchIndex.build(corpus, IndexSettings(parts=("vector",)), folder / "vectors", embedder=PerturbedEmbedder())
    return {"vectors": number, "vectors_really_embedded": min(number, REALLY_EMBEDDED)}


def measure(folder: Path) -> dict[str, float]:
    """All figures of the service, on an own Ray instance."""
    import ray

    from rl_cluster.retrieval.index import SearchIndex

    asked = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    index = SearchIndex.open(folder / "index")
    in_process = _latencies(index.search, "lexical", asked[:400])
    del index
    root = str(Path(__file__).resolve().parents[1])
    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": root}},
    )
    try:
        figures = asyncio.run(_word_search(folder, asked, float(np.median(in_process))))
        figures |= asyncio.run(_vector_search(folder, asked))
    finally:
        ray.shutdown()
    return figures


def _latencies(search: Callable[..., Any], tool: str, asked: Sequence[str]) -> np.ndarray:
    """Milliseconds of each search in process, after some that warm up."""
    for question in asked[:50]:
        search(tool, question, K)
    found = []
    for question in asked:
        started = time.perf_counter()
        search(tool, question, K)
        found.append(1000 * (time.perf_counter() - started))
    return np.array(found)


async def _word_search(folder: Path, asked: Sequence[str], in_process_ms: float) -> dict[str, float]:
    from ray import serve

    warm_up = asked[-_WARM_UP:]

    class Noop:
        async def answer(self, question: str) -> str:
            return question

    found = {}
    for replicas in sorted({1, _THREADS}):
        await _start("words", str(folder / "index"), "bm25_search", 32, replicas)
        client = _client("words", 32, replicas)
        deployment = serve.deployment(
            name="Noop", num_replicas=replicas, max_ongoing_requests=64, ray_actor_options={"num_cpus": 0}
        )(Noop)
        handle = await asyncio.to_thread(serve.run, deployment.bind(), name="noop", route_prefix="/noop")

        async def search(question: str, client: Any = client) -> Any:
            return await client.search("bm25_search", question, K, ())

        async def noop(question: str, handle: Any = handle) -> Any:
            return await handle.answer.remote(question)

        alone = [await _load(call, warm_up, asked[:400], callers=1) for call in (search, noop)]
        rounds = [[await _load(call, warm_up, asked, CALLERS) for call in (search, noop)] for _ in range(_ROUNDS)]
        found[replicas] = alone, rounds
        await asyncio.to_thread(serve.delete, "noop")
        await _stop("words")
    single_process = await _single_process(str(folder / "index"), "lexical", warm_up, asked)
    (single, nothing), one_replica = found[1]
    rounds = found[_THREADS][1]

    def median(values: Any) -> float:
        return float(np.median(list(values)))

    searches_per_s = median(many.per_s for many, _ in rounds)
    return {
        "in_process_p50_ms": in_process_ms,
        "service_p50_ms": single.median_ms,
        "service_overhead_ms": single.median_ms - in_process_ms,
        "noop_p50_ms": nothing.median_ms,
        "replicas": _THREADS,
        "service_calls_per_s": searches_per_s,
        "noop_calls_per_s": median(idle.per_s for _, idle in rounds),
        "service_vs_noop": median(many.per_s / idle.per_s for many, idle in rounds),
        "service_vs_noop_one_replica": median(many.per_s / idle.per_s for many, idle in one_replica),
        "single_process_bm25_per_s": single_process.per_s,
        "vs_single_process_bm25": searches_per_s / single_process.per_s,
    }


async def _vector_search(folder: Path, asked: Sequence[str]) -> dict[str, float]:
    found = {}
    for max_batch in (32, 1):
        await _start("vectors", str(folder / "vectors"), "vector_search", max_batch)
        client = _client("vectors", max_batch)

        async def search(question: str, client: Any = client) -> Any:
            return await client.search("vector_search", question, K, ())

        # Queries are kept with their vectors: those that warm up are others than those that count.
        measured = asked[:-_WARM_UP] if max_batch > 1 else asked[:300]
        found[max_batch] = await _load(search, asked[-_WARM_UP:], measured, CALLERS)
        await _stop("vectors")
    # One request at a time may be quicker on one thread than on all: the better one counts.
    single_process = max(
        [
            await _single_process(str(folder / "vectors"), "vector", asked[-_WARM_UP:], asked[:300], threads)
            for threads in {1, _THREADS}
        ],
        key=lambda load: load.per_s,
    )
    batched, one_by_one = found[32], found[1]
    return {
        "vector_p50_ms": batched.median_ms,
        "vector_p99_ms": batched.p99_ms,
        "vector_calls_per_s": batched.per_s,
        "vector_one_by_one_per_s": one_by_one.per_s,
        "vector_batching_gain": batched.per_s / one_by_one.per_s,
        "single_process_vector_per_s": single_process.per_s,
        "vs_single_process": batched.per_s / single_process.per_s,
    }


class _Load:
    def __init__(self, latencies_s: Sequence[float], wall_s: float):
        self.per_s = len(latencies_s) / wall_s
        self.median_ms = 1000 * float(np.median(latencies_s))
        self.p99_ms = 1000 * float(np.percentile(latencies_s, 99))


async def _load(
    search: Callable[[str], Awaitable[Any]], warm_up: Sequence[str], asked: Sequence[str], callers: int
) -> _Load:
    """All questions once, by callers that each wait for an answer before they ask again."""

    async def play(chosen: Sequence[str]) -> list[float]:
        questions, latencies = iter(chosen), []

        async def caller() -> None:
            for question in questions:
                started = time.perf_counter()
                await search(question)
                latencies.append(time.perf_counter() - started)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return latencies

    await play(warm_up)
    started = time.perf_counter()
    return _Load(await play(asked), time.perf_counter() - started)


async def _start(app: str, folder: str, tool: str, max_batch: int, replicas: int = 1) -> None:
    from actors.search_service import start_search
    from rl_cluster.environments.search_tools import SearchToolSettings
    from rl_cluster.service.settings import CallLimits, ServiceSettings

    settings = ServiceSettings(
        SearchToolSettings(K, 100, (tool,)),
        CallLimits(60.0, max_batch, 2 * replicas),
        "127.0.0.1",
        _PORT,
        min_replicas=replicas,
        max_replicas=replicas,
        threads_per_replica=_THREADS,
    )
    await asyncio.to_thread(start_search, {"kb": folder}, app, settings)


async def _stop(app: str) -> None:
    from actors.search_service import stop_search

    await asyncio.to_thread(stop_search, app)


def _client(app: str, max_batch: int, replicas: int = 1) -> Any:
    from actors.search_client import ServeSearchClient
    from rl_cluster.service.settings import CallLimits

    # As many calls at once as there are callers where each carries one request.
    return ServeSearchClient(app, CallLimits(60.0, max_batch, 2 * replicas if max_batch > 1 else CALLERS))


async def _single_process(
    folder: str, tool: str, warm_up: Sequence[str], asked: Sequence[str], threads: int = 1
) -> _Load:
    import aiohttp

    command = [sys.executable, "-m", "benchmarks.single_process_server", folder, tool, str(_SINGLE_PORT), str(threads)]
    server = subprocess.Popen(command)
    url = f"http://127.0.0.1:{_SINGLE_PORT}/retrieve"
    try:
        async with aiohttp.ClientSession() as session:

            async def search(question: str) -> Any:
                async with session.post(url, json={"query": question, "k": K}) as answer:
                    return await answer.json()

            for _ in range(300):
                try:
                    await search("ready")
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.2)
            return await _load(search, warm_up, asked, CALLERS)
    finally:
        server.terminate()
        server.wait(30)
