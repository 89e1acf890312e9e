"""Speed and memory of search, in one process and as a service: `python -m benchmarks.search --docs 500000`.

The documents are those of the bundled generator, the questions six words in a row from random documents. One process builds
and writes the index; a fresh one opens it, memory-mapped, and answers on one thread, so that its memory is that of serving.
`build_tokens_per_s`: by all cores, as an index is built; `build_tokens_per_s_alone`: by one process.
`bm25_*`: from text to ten ids; `search_*`: with titles and snippets. The reference is rank-bm25 over the same tokens, on
at most `--reference-docs` documents and few questions, since it scores about one question a second. What the figures of the
service mean stands in `benchmarks.search_service`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_service import build_vectors, measure

WORDS = 6
STEPS = ("build", "serve", "vectors", "service")
clock = time.perf_counter
K = 10


def build(folder: Path, docs: int, questions: int, reference_docs: int) -> dict[str, float]:
    """Writes the index and the questions into `folder`; measures building and rank-bm25."""
    from rl_cluster.datasets.corpus import Corpus
    from rl_cluster.datasets.enterprise_kb.generator import generate
    from rl_cluster.retrieval.index import IndexSettings, SearchIndex
    from rl_cluster.retrieval.lexical import LexicalIndex

    corpus = Corpus.from_documents("enterprise_kb", generate(docs, 0).documents())
    texts = [f"{title}\n{text}" for title, text in corpus.texts()]
    asked = questions_of(texts, questions)
    (folder / "questions.json").write_text(json.dumps(asked), encoding="utf-8")
    started = clock()
    LexicalIndex.build(texts)
    alone_s = clock() - started
    started = time.perf_counter()  # also under --cpu-time, which sees this process alone
    index = LexicalIndex.build(texts, processes=os.cpu_count() or 1)
    build_s = time.perf_counter() - started
    tokens = sum(len(index.analyzer.tokens(text)) for text in texts)
    words = sum(len(text.split()) for text in texts) / docs
    figures = {
        "docs": docs,
        "words_per_doc": words,
        "tokens": tokens,
        "build_s": build_s,
        "build_tokens_per_s": tokens / build_s,
        "build_tokens_per_s_alone": tokens / alone_s,
    }
    del index
    figures |= _against_rank_bm25(texts[:reference_docs], asked)
    del texts
    started = clock()
    SearchIndex.build(corpus, IndexSettings(parts=("lexical",)), folder / "index", processes=os.cpu_count() or 1)
    figures["build_all_s"] = clock() - started
    return figures


def questions_of(texts: Sequence[str], number: int) -> list[str]:
    """Six words in a row from random texts."""
    rng = random.Random(0)
    found = []
    for text in rng.choices(texts, k=number):
        words = text.split()
        start = rng.randrange(max(1, len(words) - WORDS + 1))
        found.append(" ".join(words[start : start + WORDS]))
    return found


def _against_rank_bm25(texts: Sequence[str], asked: Sequence[str]) -> dict[str, float]:
    from rl_cluster.retrieval.lexical import LexicalIndex, LexicalSettings

    slow = LexicalIndex.build(texts, LexicalSettings("okapi", backend="rank_bm25"))
    slow_s = _seconds(lambda question: slow.search(question, K), asked[:5])
    fast = LexicalIndex.build(texts)
    _seconds(lambda question: fast.search(question, K), asked[:50])
    fast_s = _seconds(lambda question: fast.search(question, K), asked)
    return {
        "reference_docs": len(texts),
        "rank_bm25_queries_per_s": 1 / slow_s.mean(),
        "bm25s_queries_per_s": 1 / fast_s.mean(),
        "bm25_vs_rank_bm25": slow_s.mean() / fast_s.mean(),
    }


def _seconds(answer: Callable[[str], Any], asked: Sequence[str]) -> np.ndarray:
    """Seconds for each question."""
    found = []
    for question in asked:
        started = clock()
        answer(question)
        found.append(clock() - started)
    return np.array(found)


def serve(folder: Path) -> dict[str, float]:
    """Opens the index and answers all questions; measures time and this process' memory."""
    from rl_cluster.retrieval.index import SearchIndex

    bare_mb = _peak_mb()
    started = clock()
    index = SearchIndex.open(folder / "index")
    open_s = clock() - started
    asked = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    _seconds(lambda question: index.search("lexical", question, K), asked[:50])
    ids = 1000 * _seconds(lambda question: index.rank("lexical", question, K), asked)
    hits = 1000 * _seconds(lambda question: index.search("lexical", question, K), asked)
    rss_mb = _peak_mb()
    return {
        "open_s": open_s,
        "bm25_p50_ms": float(np.percentile(ids, 50)),
        "bm25_p99_ms": float(np.percentile(ids, 99)),
        "bm25_queries_per_s": 1000 / ids.mean(),
        "search_p50_ms": float(np.percentile(hits, 50)),
        "search_p99_ms": float(np.percentile(hits, 99)),
        "rss_bare_mb": bare_mb,
        "rss_mb": rss_mb,
        "rss_mb_per_100k_docs": rss_mb / len(index.corpus) * 100_000,
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    """Measures in a process for each step, one after the other, and prints one JSON line."""
    global clock
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=int, default=100_000, help="documents, 2,000 to 500,000")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument(
        "--reference-docs", type=int, default=100_000, help="documents for the comparison with rank-bm25"
    )
    parser.add_argument("--cpu-time", action="store_true", help="count processor seconds, where others use the machine")
    parser.add_argument("--no-service", action="store_true", help="word search in one process only")
    parser.add_argument("--step", choices=["all", *STEPS], default="all", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cpu_time:
        clock = time.process_time
    if arguments.step == "build":
        result = build(arguments.folder, arguments.docs, arguments.questions, arguments.reference_docs)
    elif arguments.step == "serve":
        result = serve(arguments.folder)
    elif arguments.step == "vectors":
        result = build_vectors(arguments.folder, arguments.docs)
    elif arguments.step == "service":
        result = measure(arguments.folder)
    else:
        result = {}
        with tempfile.TemporaryDirectory() as folder:
            for step in STEPS[:2] if arguments.no_service else STEPS:
                command = [sys.executable, "-m", "benchmarks.search", *sys.argv[1:], "--step", step, "--folder", folder]
                environment = {**os.environ, "RAY_worker_niceness": "0"}
                if step in ("build", "serve"):
                    environment["OMP_NUM_THREADS"] = "1"
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
                result |= json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({name: round(value, 4) for name, value in result.items()}))


if __name__ == "__main__":
    main()
