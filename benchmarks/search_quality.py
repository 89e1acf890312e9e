"""How well word search finds, on published data: `python -m benchmarks.search_quality --data DIR`.

DIR holds `miracl-yo/` (corpus, topics and judgements of MIRACL Yoruba, dev) and `xquad/` (XQuAD in seven languages). MIRACL
with tokens split on white space, k1 0.9 and b 0.4 has the published figures nDCG@10 0.4059 and Recall@100 0.7325 (Pyserini);
the rest runs with the analyser that the locale chooses. XQuAD asks each question for its own paragraph. At the end the
two backends answer 1,000 XQuAD questions in BM25+, which both define alike. The last line is JSON, with `ok`: whether every
target was reached.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from rl_cluster.evaluation.metrics import ndcg_at_k, recall_at_k
from rl_cluster.retrieval.analysis import AnalysisSettings
from rl_cluster.retrieval.languages import analyzer_for
from rl_cluster.retrieval.lexical import LexicalIndex, LexicalSettings

PUBLISHED = {"ndcg": 0.4059, "recall": 0.7325}
TOLERANCE = 0.005
LOWEST_YORUBA = 0.55
LOWEST_XQUAD = {"en": 0.95, "de": 0.90, "es": 0.94, "ar": 0.88, "hi": 0.93, "vi": 0.95, "zh": 0.93}

Question = tuple[str, dict[str, float]]  # text, gains


def miracl(folder: Path) -> tuple[dict[str, str], list[Question]]:
    """Document id -> title, blank and text; and the questions."""
    texts: dict[str, str] = {}
    with pa.input_stream(str(folder / "yo-feed.jsonl.zst"), compression="zstd") as stream:
        for line in stream.read().decode("utf-8").splitlines():
            fields = json.loads(line)["fields"]
            texts[fields["doc_id"]] = f"{fields['title']} {fields['text']}"
    gains: dict[str, dict[str, float]] = {}
    for line in (folder / "qrels.miracl-v1.0-yo-dev.tsv").read_text(encoding="utf-8").splitlines():
        topic, _, doc_id, gain = line.split("\t")
        gains.setdefault(topic, {})[doc_id] = float(gain)
    topics = (folder / "topics.miracl-v1.0-yo-dev.tsv").read_text(encoding="utf-8").splitlines()
    return texts, [(text, gains[topic]) for topic, text in (line.split("\t") for line in topics)]


def xquad_file(path: Path) -> tuple[dict[str, str], list[Question]]:
    texts: dict[str, str] = {}
    questions: list[Question] = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            doc_id = f"{len(texts):03d}"
            texts[doc_id] = paragraph["context"]
            questions += [(question["question"], {doc_id: 1.0}) for question in paragraph["qas"]]
    return texts, questions


def figures(texts: dict[str, str], questions: Iterable[Question], settings: LexicalSettings) -> tuple[float, float]:
    """Mean nDCG@10 and Recall@100; questions without a relevant document count 0."""
    ids = sorted(texts)
    index = LexicalIndex.build((texts[doc_id] for doc_id in ids), settings)
    rankings = [([ids[i] for i, _ in index.search(text, 100)], gains) for text, gains in questions]

    def mean(metric: Callable[[list[str], dict[str, float], int], float | None], k: int) -> float:
        return float(np.mean([metric(ranking, gains, k) or 0.0 for ranking, gains in rankings]))

    return mean(ndcg_at_k, 10), mean(recall_at_k, 100)


def default_settings(locale: str) -> LexicalSettings:
    return LexicalSettings(analysis=AnalysisSettings(analyzer=analyzer_for([locale])))


def _agreement(texts: dict[str, str], questions: list[Question]) -> float:
    """The largest relative difference of scores between the backends; infinite where a ranking differs by more than ties."""
    fast, slow = (
        LexicalIndex.build(texts.values(), LexicalSettings("bm25+", 1.5, 0.75, 1.0, backend))
        for backend in ("bm25s", "rank_bm25")
    )
    worst = 0.0
    for text, _ in questions[:1000]:
        ours, theirs = fast.search(text, 100), slow.search(text, 100)
        if len(ours) != len(theirs):
            return float("inf")
        of = dict(theirs)
        for (i, score), (_, other) in zip(ours, theirs, strict=True):
            # Rank by rank, and document by document: a swap is only possible where scores are all but equal.
            worst = max(worst, abs(score - other) / other, abs(score - of.get(i, float("inf"))) / other)
    return worst


def main() -> None:
    """Measures and prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with miracl-yo/ and xquad/")
    data = parser.parse_args().data
    texts, questions = miracl(data / "miracl-yo")
    plain = LexicalSettings("lucene", 0.9, 0.4, analysis=AnalysisSettings(analyzer="whitespace"))
    ndcg, recall = figures(texts, questions, plain)
    print(f"MIRACL yo, white space: nDCG@10 {ndcg:.4f} Recall@100 {recall:.4f}")
    yoruba, yoruba_recall = figures(texts, questions, default_settings("yo"))
    print(f"MIRACL yo, default: nDCG@10 {yoruba:.4f} Recall@100 {yoruba_recall:.4f}")
    ok = abs(ndcg - PUBLISHED["ndcg"]) <= TOLERANCE and abs(recall - PUBLISHED["recall"]) <= TOLERANCE
    ok &= yoruba >= LOWEST_YORUBA
    xquad: dict[str, float] = {}
    for locale, lowest in LOWEST_XQUAD.items():
        texts, questions = xquad_file(data / "xquad" / f"xquad.{locale}.json")
        xquad[locale], found = figures(texts, questions, default_settings(locale))
        print(f"XQuAD {locale}: nDCG@10 {xquad[locale]:.4f} (at least {lowest}) Recall@100 {found:.4f}")
        ok &= xquad[locale] >= lowest
    difference = _agreement(*xquad_file(data / "xquad" / "xquad.en.json"))
    ok &= difference <= 1e-5
    result = {
        "miracl_yo_ndcg10": round(ndcg, 4),
        "miracl_yo_recall100": round(recall, 4),
        "miracl_yo_default_ndcg10": round(yoruba, 4),
        "miracl_yo_default_recall100": round(yoruba_recall, 4),
        **{f"xquad_{locale}_ndcg10": round(value, 4) for locale, value in xquad.items()},
        "bm25s_rank_bm25_difference": difference,
        "ok": bool(ok),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
