"""What the approximate vector indexes find of the ten nearest, and how fast, beside the exact one. Ends with one JSON line.

Rows as in benchmarks.search: 5,000 documents of the bundled generator really embedded, the others perturbed copies of them. The
questions are six words in a row from random documents, embedded. One question at a time, one thread.

`recall_*`: the share of the ten nearest documents that are found, mean over the questions;
`*_vs_flat`: questions a second against the flat index, which answers `flat_per_s`;
`*_build_s`: seconds to build it, one thread; `*_mb`: its size beside the embeddings.

    python -m benchmarks.vector_recall [--docs 100000] [--questions 200]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.search import questions_of
from benchmarks.search_service import PerturbedEmbedder

K = 10


def answers_of(index, queries: np.ndarray) -> tuple[list[set[int]], float]:
    """The positions of each question's ten nearest, and seconds a question."""
    for query in queries[:20]:
        index.search(query, K)
    started = time.perf_counter()
    found = [{position for position, _ in index.search(query, K)} for query in queries]
    return found, (time.perf_counter() - started) / len(queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--docs", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=200)
    arguments = parser.parse_args()

    import faiss

    from rl_cluster.datasets.enterprise_kb.generator import generate
    from rl_cluster.models.embedder import SentenceEmbedder
    from rl_cluster.retrieval.vector import VectorIndex
    from rl_cluster.retrieval.vector_settings import VectorSettings

    documents = generate(max(2000, arguments.docs), 0).documents()
    texts = [f"{document.title}\n{document.text}" for document in islice(documents, arguments.docs)]
    rows = PerturbedEmbedder().encode(texts)
    queries = SentenceEmbedder(max_tokens=128).encode(questions_of(texts, arguments.questions))
    faiss.omp_set_num_threads(1)
    exact, flat_s = answers_of(VectorIndex(rows), queries)
    figures: dict[str, float] = {"docs": arguments.docs, "questions": arguments.questions, "flat_per_s": 1 / flat_s}
    for kind in ("hnsw", "ivf_pq"):
        started = time.perf_counter()
        index = VectorIndex(rows, VectorSettings(kind))
        figures[f"{kind}_build_s"] = time.perf_counter() - started
        found, seconds = answers_of(index, queries)
        shares = [len(ours & best) / K for ours, best in zip(found, exact, strict=True)]
        figures |= {f"recall_{kind}": float(np.mean(shares)), f"{kind}_vs_flat": flat_s / seconds}
        with tempfile.TemporaryDirectory() as folder:
            index.save(Path(folder))
            figures[f"{kind}_mb"] = (Path(folder) / "vectors.faiss").stat().st_size / 1e6
        print(f"{kind} is done", flush=True)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
