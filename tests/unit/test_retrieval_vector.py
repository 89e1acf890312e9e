from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rl_cluster.datasets.task import Document
from rl_cluster.errors import ConfigError, IndexFormatError
from rl_cluster.retrieval.documents import DocumentStore, write_documents
from rl_cluster.retrieval.recall import measured_recall, recall_warning
from rl_cluster.retrieval.vector import VectorIndex
from rl_cluster.retrieval.vector_settings import VectorSettings

DIMENSIONS = 32
APPROXIMATE = [VectorSettings("hnsw", links=16, build_breadth=60), VectorSettings("ivf_pq", code_bytes=8, probes=16)]


@pytest.fixture(autouse=True)
def _approximate_for_small_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_cluster.retrieval.vector._FEW_ALLOWED", 500)
    monkeypatch.setattr("rl_cluster.retrieval.vector._FEW_BANNED", 50)


def _unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _clusters(seed: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(150, DIMENSIONS))
    rng = np.random.default_rng(seed)
    return _unit(centres[rng.integers(0, 150, size)] + 0.6 * rng.normal(size=(size, DIMENSIONS)))


def _brute_force(rows: np.ndarray, query: np.ndarray, k: int, allowed: np.ndarray | None = None) -> list[int]:
    scores = rows.astype(np.float64) @ query.astype(np.float64)
    order = np.lexsort((np.arange(len(rows)), -scores))
    return [int(i) for i in order if allowed is None or allowed[i]][:k]


def _positions(found: list[tuple[int, float]]) -> list[int]:
    return [position for position, _ in found]


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return _clusters(1, 4000)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return _clusters(2, 40)


def test_vector_flat_equals_brute_force(rows: np.ndarray, queries: np.ndarray) -> None:
    index = VectorIndex(rows)
    for k in (1, 10, 100):
        assert all(_positions(index.search(q, k)) == _brute_force(rows, q, k) for q in queries[:20])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.995, 1.0])
def test_vector_flat_with_allowed_equals_brute_force(rows: np.ndarray, queries: np.ndarray, share: float) -> None:
    allowed = np.random.default_rng(3).random(len(rows)) < share
    index = VectorIndex(rows)
    for query in queries[:5]:
        assert _positions(index.search(query, 10, allowed=allowed)) == _brute_force(rows, query, 10, allowed)


def test_vector_flat_answers_do_not_depend_on_the_other_rows(rows: np.ndarray, queries: np.ndarray) -> None:
    """The sums of faiss and BLAS differ with the shape of what they are given; scores here must not."""
    whole, some = VectorIndex(rows), VectorIndex(rows[:37])
    for query in queries[:10]:
        of_whole = dict(whole.search(query, len(rows)))
        assert all(of_whole[i] == score for i, score in some.search(query, 37))


def test_vector_many_equal_rows_go_by_position(queries: np.ndarray) -> None:
    index = VectorIndex(np.repeat(_clusters(4, 3), 500, axis=0))
    found = _positions(index.search(queries[0], 600))
    assert [i // 500 for i in found] == sorted([i // 500 for i in found], key=lambda g: found.index(g * 500))
    assert found[:500] == sorted(found[:500])


@pytest.mark.slow
@pytest.mark.parametrize("chosen", APPROXIMATE, ids=lambda s: s.kind)
def test_vector_approximate_finds_nearly_what_flat_does(
    tmp_path, rows: np.ndarray, queries: np.ndarray, chosen: VectorSettings
) -> None:
    built = VectorIndex(rows, chosen)
    built.save(tmp_path)
    index = VectorIndex.load(tmp_path, chosen)
    allowed = np.random.default_rng(5).random(len(rows)) < 0.9
    for mask in (None, allowed):
        found = [_positions(index.search(q, 10, allowed=mask)) for q in queries]
        assert found == [_positions(built.search(q, 10, allowed=mask)) for q in queries]
        exact = [_brute_force(rows, q, 10, mask) for q in queries]
        recall = [len(set(a) & set(b)) / 10 for a, b in zip(found, exact, strict=True)]
        assert np.mean(recall) >= 0.95
    excluded = set(_brute_force(rows, queries[0], 30))
    assert not excluded & set(_positions(index.search(queries[0], 10, excluded)))
    # Few are allowed: all of them are compared.
    few = np.random.default_rng(6).random(len(rows)) < 0.05
    assert _positions(index.search(queries[0], 10, allowed=few)) == _brute_force(rows, queries[0], 10, few)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", APPROXIMATE, ids=lambda s: s.kind)
@pytest.mark.parametrize("left", [0.0, 0.1, 0.5])
def test_vector_approximate_with_a_filter_that_leaves_little_around_the_question_finds_nearly_what_flat_does(
    rows: np.ndarray, queries: np.ndarray, chosen: VectorSettings, left: float
) -> None:
    """Such as documents of another language than the question's: most of all are allowed, and few of the nearest."""
    index = VectorIndex(rows, chosen)
    recall = []
    for number, query in enumerate(queries):
        allowed = np.ones(len(rows), bool)
        nearest = _brute_force(rows, query, len(rows) // 5)
        allowed[nearest] = np.random.default_rng(number).random(len(nearest)) < left
        found = _positions(index.search(query, 10, allowed=allowed))
        assert allowed[found].all()
        recall.append(len(set(found) & set(_brute_force(rows, query, 10, allowed))) / 10)
    assert np.mean(recall) >= 0.95


def test_probes_grow_with_the_lists_and_with_what_filters_leave_out() -> None:
    shipped = VectorSettings("ivf_pq")
    assert [shipped.probes_of(lists) for lists in (10, 320, 1400, 2828)] == [10, 128, 140, 283]
    assert [shipped.probes_of(2828, share) for share in (0.5, 0.1, 0.02)] == [566, 2828, 2828]
    assert VectorSettings("ivf_pq", probes=7).probes_of(2828, 0.5) == 14


def test_breadth_grows_with_the_documents_the_results_and_what_filters_leave_out() -> None:
    shipped = VectorSettings("hnsw")
    assert [shipped.breadth_of(size, 10) for size in (100, 2000, 100_000, 500_000)] == [100, 128, 632, 1414]
    assert [shipped.breadth_of(100_000, 10, share) for share in (0.5, 0.001)] == [1264, 100_000]
    assert shipped.breadth_of(100_000, 100) == 1000
    assert VectorSettings("hnsw", search_breadth=40).breadth_of(100_000, 4) == 40


def _mean_recall(index: VectorIndex, rows: np.ndarray, queries: np.ndarray, mask: np.ndarray | None) -> float:
    found = [set(_positions(index.search(query, 10, allowed=mask))) for query in queries]
    return float(
        np.mean([len(set(_brute_force(rows, q, 10, mask)) & a) / 10 for q, a in zip(queries, found, strict=True)])
    )


@pytest.mark.slow
def test_measured_recall_counts_documents_that_are_as_near_as_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = np.repeat(_unit(rng.normal(size=(250, 12))), 40, axis=0)
    write_documents(tmp_path, [Document(f"{i:05d}", "", "six words") for i in range(len(rows))])
    index = VectorIndex(rows, VectorSettings("hnsw"))
    questions = _unit(rng.normal(size=(100, 12)))
    by_id = _mean_recall(index, rows, questions, None)
    recall = measured_recall(DocumentStore(tmp_path, "kb"), index, _Questions(questions), "")
    assert recall is not None
    assert recall > by_id


class _Questions:
    """Embeds any text as the next of the given rows."""

    def __init__(self, rows: np.ndarray):
        self._rows = iter(rows)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([next(self._rows) for _ in texts])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        (VectorSettings("hnsw"), 0.95, 1.0),
        (VectorSettings("hnsw", links=2, build_breadth=4, search_breadth=4), 0.0, 0.9),
    ],
    ids=["shipped", "poor"],
)
def test_measured_recall_is_the_share_that_is_found_and_little_is_warned_of(
    tmp_path: Path, settings: VectorSettings, low: float, high: float
) -> None:
    rng = np.random.default_rng(0)
    rows, questions = _unit(rng.normal(size=(10_500, 12))), _unit(rng.normal(size=(100, 12)))
    write_documents(tmp_path, [Document(f"{i:05d}", "", "six words") for i in range(len(rows))])
    index = VectorIndex(rows, settings)
    recall = measured_recall(DocumentStore(tmp_path, "kb"), index, _Questions(questions), "")
    assert recall is not None
    assert recall == pytest.approx(_mean_recall(index, rows, questions, None))
    assert low <= recall <= high
    said = recall_warning({"recall": recall, "corpus": "kb", "settings": {"vector": {"kind": "hnsw"}}})
    assert bool(said) == (recall < 0.95)
    assert measured_recall(DocumentStore(tmp_path, "kb"), VectorIndex(rows), _Questions(questions), "") is None
    assert recall_warning({"recall": None}) == recall_warning({}) == ""


@pytest.mark.slow
def test_vector_ivf_pq_with_many_lists_finds_nearly_what_flat_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger a collection, the more lists share its neighbours; points of few dimensions in no clusters are the hardest."""
    monkeypatch.setattr("rl_cluster.retrieval.vector_settings._LEAST_PROBES", 8)
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(10, DIMENSIONS))
    rows, queries = (_unit(rng.normal(size=(size, 10)) @ basis) for size in (8000, 60))
    index = VectorIndex(rows, VectorSettings("ivf_pq", code_bytes=16, lists=800))
    assert _mean_recall(index, rows, queries, None) >= 0.95
    fixed = VectorIndex(rows, VectorSettings("ivf_pq", code_bytes=16, lists=800, probes=8), index._approximate)
    assert _mean_recall(fixed, rows, queries, None) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("chosen", APPROXIMATE, ids=lambda s: s.kind)
def test_vector_approximate_with_a_filter_that_leaves_few_finds_nearly_what_flat_does(
    rows: np.ndarray, queries: np.ndarray, chosen: VectorSettings
) -> None:
    """What is allowed lies to one side of the query: most of what is near it is not allowed."""
    direction = np.random.default_rng(8).normal(size=DIMENSIONS)
    index = VectorIndex(rows, chosen)
    for share in (0.13, 0.3):
        mask = rows @ direction > np.quantile(rows @ direction, 1 - share)
        assert mask.sum() > 500
        assert _mean_recall(index, rows, queries, mask) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("chosen", APPROXIMATE, ids=lambda s: s.kind)
def test_vector_approximate_built_twice_is_the_same(tmp_path, rows: np.ndarray, chosen: VectorSettings) -> None:
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        VectorIndex(rows[:3000], chosen).save(tmp_path / name)
        files.append((tmp_path / name / "vectors.faiss").read_bytes())
    assert files[0] == files[1]


def test_vector_missing_cut_or_foreign_file_is_refused(tmp_path, rows: np.ndarray) -> None:
    chosen = APPROXIMATE[0]
    with pytest.raises(IndexFormatError, match="build again"):
        VectorIndex.load(tmp_path)
    VectorIndex(rows[:300], chosen).save(tmp_path)
    file = tmp_path / "vectors.faiss"
    whole = file.read_bytes()
    for content in (b"", b"no index", whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(IndexFormatError, match="build again"):
            VectorIndex.load(tmp_path, chosen)
    file.write_bytes(whole)
    np.save(tmp_path / "embeddings.npy", rows[:299])
    with pytest.raises(IndexFormatError, match="300 rows of 299"):
        VectorIndex.load(tmp_path, chosen)
    np.save(tmp_path / "embeddings.npy", rows[:299].astype(np.float64))
    with pytest.raises(IndexFormatError, match="float64"):
        VectorIndex.load(tmp_path)


@pytest.mark.parametrize(
    ("values", "word"),
    [({"kind": "annoy"}, "annoy"), ({"links": 1}, "links"), ({"probes": -1}, "probes"), ({"refine": 0}, "refine")],
)
def test_vector_settings_out_of_range_are_refused(values: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        VectorSettings(**values)


def test_vector_ivf_pq_that_cannot_be_trained_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="at least 256 documents"):
        VectorIndex(rows[:200], VectorSettings("ivf_pq", code_bytes=8))
    with pytest.raises(ConfigError, match="does not divide the 32"):
        VectorIndex(rows[:2000], VectorSettings("ivf_pq", code_bytes=7))
