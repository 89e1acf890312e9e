"""Are the numbers right, and quick enough? `python -m benchmarks.evaluation`; the last line is JSON.

`coverage`: share of simulated studies (150 questions x 4 samples, skewed, one fifth of the questions 0, samples of a question
alike) whose 95% interval holds the true mean. `bootstrap_s`: 10,000 resamples of 1,000 questions x 8 samples.
`max_abs_diff_vs_pytrec_eval`: over random runs with ties and fractional gains, some empty and some missing.
`decomposition_residual`: what the parts of a gain leave over, paired and published. `prepare_*`: a synthetic BEIR folder,
converted in a process of its own; `--large-row-group` adds 500,000 documents in one Parquet row group of 1.4 GB.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rl_cluster.errors import Outcome
from rl_cluster.evaluation.decomposition import decompose_published
from rl_cluster.evaluation.metrics import ndcg_at_k, recall_at_k, reciprocal_rank
from rl_cluster.evaluation.statistics import bootstrap_mean_ci
from rl_cluster.evaluation.summary import EpisodeRecord, compare
from rl_cluster.evaluation.trec import ranking_of_scores, whole_gains

QUESTIONS, SAMPLES, ZERO_SHARE = 150, 4, 0.2
TRUE_MEAN = (1 - ZERO_SHARE) * 2.0 / 5.0


def study(rng: np.random.Generator) -> np.ndarray:
    """Scores [questions, samples]: a fifth of the questions is never solved, the others have a level of their own."""
    levels = rng.beta(2.0, 3.0, (QUESTIONS, 1))
    samples = rng.beta(4 * levels, 4 * (1 - levels), (QUESTIONS, SAMPLES))
    return np.where(rng.random((QUESTIONS, 1)) < ZERO_SHARE, 0.0, samples)


def coverage(studies: int, resamples: int = 1000) -> float:
    """Share of studies whose interval holds the true mean."""
    rng = np.random.default_rng(0)
    covered = 0
    for number in range(studies):
        found = bootstrap_mean_ci(study(rng).tolist(), resamples=resamples, seed=number)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= TRUE_MEAN <= found.high
    return covered / studies


def bootstrap_seconds() -> float:
    """10,000 resamples of 1,000 questions with 8 samples each."""
    values = np.random.default_rng(1).random((1000, 8)).tolist()
    started = time.perf_counter()
    bootstrap_mean_ci(values, resamples=10_000)
    return time.perf_counter() - started


def gap_to_trec_eval(queries: int = 2000) -> float:
    """The largest difference in nDCG@10, recall@10, recall@100 and reciprocal rank."""
    import pytrec_eval

    rng = random.Random(2)
    documents = [f"d{i}" for i in range(200)]
    gains, runs = {}, {}
    for number in range(queries):
        query = str(number)
        judged = {d: rng.choice((0.0, 0.01, 0.1, 0.5, 1.0)) for d in rng.sample(documents, rng.randint(1, 60))}
        gains[query] = {**judged, rng.choice(documents): 1.0}
        if number % 10 == 0:  # a query that the run misses, zero with `trec_eval -c`
            continue
        found = rng.sample(documents, rng.randint(1, 150) if number % 10 > 1 else 0)
        runs[query] = {d: rng.choice((rng.random(), 0.5, 0.5 + 1e-9)) for d in found}
    measures = {"ndcg_cut.10", "recall.10", "recall.100", "recip_rank"}
    reference = pytrec_eval.RelevanceEvaluator(whole_gains(gains)[0], measures).evaluate(runs)
    missing = dict.fromkeys(("ndcg_cut_10", "recall_10", "recall_100", "recip_rank"), 0.0)
    gap = 0.0
    for query, judged in gains.items():
        ranking = ranking_of_scores(runs.get(query, {}))
        expected = reference[query] if query in runs else missing
        pairs = (
            (ndcg_at_k(ranking, judged, 10), expected["ndcg_cut_10"]),
            (recall_at_k(ranking, judged, 10), expected["recall_10"]),
            (recall_at_k(ranking, judged, 100), expected["recall_100"]),
            (reciprocal_rank(ranking, judged), expected["recip_rank"]),
        )
        gap = max(gap, *(abs((ours or 0.0) - theirs) for ours, theirs in pairs))
    return gap


def decomposition_residual() -> float:
    """What the parts leave of a gain: on random episodes, paired, and on published aggregates."""
    rng = random.Random(3)

    def system() -> list[EpisodeRecord]:
        outcomes = [Outcome.FINISHED, Outcome.FINISHED, Outcome.TURN_LIMIT]
        return [
            EpisodeRecord(str(i % 100), "d", rng.choice(outcomes), rng.random(), 1, 1, 0, 1, 1.0) for i in range(400)
        ]

    pair = compare(system(), system(), resamples=1000)
    parts = decompose_published(0.5136, 0.2289, 0.6354, 0.0068)
    paired = abs(pair.ranking.mean + pair.failure_avoidance.mean - pair.ndcg.mean)
    return max(paired, abs(parts.failure_avoidance + parts.ranking - parts.gain))


def prepare_beir(documents: int, folder: Path) -> dict[str, float]:
    """Converts a BEIR folder in a child process: its peak memory and its documents a second, from start to end."""
    source = folder / "beir"
    (source / "qrels").mkdir(parents=True)
    rng = random.Random(4)
    words = [f"word{i}" for i in range(5000)]
    with open(source / "corpus.jsonl", "w") as file:
        for number in range(documents):
            text = " ".join(rng.choices(words, k=60))
            file.write(json.dumps({"_id": f"d{number}", "title": f"title {number}", "text": text}) + "\n")
    with open(source / "queries.jsonl", "w") as queries, open(source / "qrels" / "test.tsv", "w") as qrels:
        qrels.write("query-id\tcorpus-id\tscore\n")
        for number in range(1000):
            queries.write(json.dumps({"_id": f"q{number}", "text": f"question {number}"}) + "\n")
            qrels.write(f"q{number}\td{rng.randrange(documents)}\t1\n")
    return _prepare("beir", source, folder / "prepared", documents)


def prepare_large_row_group(folder: Path, documents: int = 500_000) -> dict[str, float]:
    """One Parquet row group of 1.4 GB of text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = folder / "large"
    (source / "corpus").mkdir(parents=True)
    (source / "qrels").mkdir()
    schema = pa.schema([("_id", pa.string()), ("title", pa.string()), ("text", pa.large_string())])
    noise = np.random.default_rng(5).integers(97, 123, 1_000_000, dtype=np.uint8).tobytes().decode()
    places = np.random.default_rng(6).integers(0, len(noise) - 2800, documents)
    table = pa.table(
        [
            pa.array([f"d{i}" for i in range(documents)]),
            pa.array([f"title {i}" for i in range(documents)]),
            pa.array((noise[place : place + 2800] for place in places), pa.large_string()),
        ],
        schema=schema,
    )
    pq.write_table(
        table, source / "corpus" / "part-0.parquet", row_group_size=documents, compression="none", use_dictionary=False
    )
    del table
    (source / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "question"}) + "\n")
    (source / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td7\t1\n")
    figures = _prepare("beir", source, folder / "prepared_large", documents)
    return {f"large_row_group_{name}": value for name, value in figures.items()}


def _prepare(dataset: str, source: Path, out: Path, documents: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.evaluation", "--child", dataset, str(source), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {"prepare_peak_mb": figures["peak_mb"], "prepare_docs_per_s": documents / figures["seconds"]}


def _child(dataset: str, source: str, out: str) -> None:
    from rich.console import Console

    from rl_cluster.datasets.preparation.progress import PreparationProgress
    from rl_cluster.prepare import PREPARE, prepare

    config = PREPARE.load([f"dataset={dataset}", f"source={source}", f"out={out}"])
    started = time.perf_counter()
    with PreparationProgress(Console(quiet=True)) as progress:
        prepare(config, progress)
    seconds = time.perf_counter() - started
    # Not getrusage: what the process was forked from counts there too.
    (peak_kb,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    print(json.dumps({"seconds": seconds, "peak_mb": int(peak_kb) / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--large-row-group", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(*arguments.child)
        return
    figures = {
        "coverage": coverage(arguments.studies),
        "bootstrap_s": bootstrap_seconds(),
        "max_abs_diff_vs_pytrec_eval": gap_to_trec_eval(),
        "decomposition_residual": decomposition_residual(),
    }
    with tempfile.TemporaryDirectory() as folder:
        figures |= prepare_beir(arguments.documents, Path(folder))
        if arguments.large_row_group:
            figures |= prepare_large_row_group(Path(folder))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
