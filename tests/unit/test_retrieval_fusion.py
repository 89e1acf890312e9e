from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import ConfigError, ModelError
from rl_cluster.retrieval.fusion import FusionSettings, fuse, reordered
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.retrieval.rerank import CrossEncoderReranker

LEXICAL = [(4, 9.0), (1, 5.0), (7, 1.0)]
VECTOR = [(1, 0.9), (2, 0.8), (4, 0.4)]


def test_fuse_reciprocal_ranks_are_summed() -> None:
    found = fuse(LEXICAL, VECTOR, FusionSettings())
    expected = {1: 1 / 62 + 1 / 61, 4: 1 / 61 + 1 / 63, 2: 1 / 62, 7: 1 / 63}
    assert [i for i, _ in found] == [1, 4, 2, 7]
    assert dict(found) == pytest.approx(expected)


def test_fuse_weighted_scores_are_scaled_within_their_ranking() -> None:
    found = dict(fuse(LEXICAL, VECTOR, FusionSettings("weighted", lexical_weight=0.25)))
    assert found == pytest.approx({4: 0.25, 1: 0.25 * 0.5 + 0.75, 2: 0.75 * 0.8, 7: 0.0})


@pytest.mark.parametrize("method", ["rrf", "weighted"])
def test_fuse_empty_or_single_rankings_are_defined(method: str) -> None:
    chosen = FusionSettings(method)
    assert fuse([], [], chosen) == []
    assert [i for i, _ in fuse([], VECTOR, chosen)] == [1, 2, 4]
    assert [i for i, _ in fuse([(5, 2.0), (3, 2.0)], [], FusionSettings("weighted"))] == [3, 5]


def test_reordered_first_results_go_by_new_scores_and_stay_above_the_others() -> None:
    found = reordered([(4, 0.9), (1, 0.8), (7, 0.7), (2, 0.6)], [0.1, 0.5, 0.5])
    assert [i for i, _ in found] == [1, 7, 4, 2]
    assert all(a >= b for (_, a), (_, b) in pairwise(found))


@pytest.mark.parametrize(
    ("values", "word"), [({"method": "borda"}, "borda"), ({"depth": 0}, "depth"), ({"lexical_weight": 2}, "weight")]
)
def test_fusion_settings_out_of_range_are_refused(values: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        FusionSettings(**values)


class LengthEmbedder:
    """Near in length is near in meaning."""

    def encode(self, texts):
        angles = np.array([len(text) / 100 for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class LongestFirst:
    def scores(self, query, texts):
        return np.array([len(text) for text in texts], np.float32)


DOCS = [Document(f"d{i}", "", "pump " * (i + 1), {}) for i in range(8)] + [Document("e", "", "valve", {})]


def test_hybrid_search_joins_both_tools_and_leaves_excluded_out(tmp_path) -> None:
    index = SearchIndex.build(
        Corpus.from_documents("kb", DOCS), IndexSettings(), tmp_path / "i", embedder=LengthEmbedder()
    )
    assert index.tools == ["lexical", "vector", "hybrid"]
    hits = index.search("hybrid", "valve", 9)
    assert {hit.doc_id for hit in hits} == {doc.doc_id for doc in DOCS}
    assert hits[0].doc_id == "e"
    again = index.search("hybrid", "valve", 3, excluded=("e", "d0"))
    assert len(again) == 3
    assert not {"e", "d0"} & {hit.doc_id for hit in again}


def test_hybrid_search_reranker_orders_the_first_results(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = IndexSettings(fusion=FusionSettings(reranker=str(tmp_path), rerank_depth=3))
    SearchIndex.build(Corpus.from_documents("kb", DOCS), settings, tmp_path / "i", embedder=LengthEmbedder())
    index = SearchIndex.open(tmp_path / "i", embedder=LengthEmbedder(), reranker=LongestFirst())
    plain = SearchIndex.build(
        Corpus.from_documents("kb", DOCS), IndexSettings(), tmp_path / "p", embedder=LengthEmbedder()
    )
    before = [hit.doc_id for hit in plain.search("hybrid", "pump", 6)]
    after = [hit.doc_id for hit in index.search("hybrid", "pump", 6)]
    assert after[:3] == sorted(before[:3], reverse=True)
    assert after[3:] == before[3:]


def test_cross_encoder_missing_model_is_refused(tmp_path) -> None:
    with pytest.raises(ModelError, match="neither a folder nor a hub id"):
        CrossEncoderReranker("/no/such/folder")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        CrossEncoderReranker(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        CrossEncoderReranker(str(tmp_path)).scores("a", ["b"])


@pytest.mark.slow
def test_cross_encoder_folder_scores_pairs(tmp_path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\npump\nvalve\nred\n")
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    sizes: dict[str, Any] = {
        "num_labels": 1,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = BertForSequenceClassification(BertConfig(vocab_size=8, **sizes))
    model.save_pretrained(tmp_path)
    scores = CrossEncoderReranker(str(tmp_path)).scores("red pump", ["pump", "valve valve"])
    assert scores.shape == (2,)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
