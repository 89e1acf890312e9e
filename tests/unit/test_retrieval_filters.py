import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import IndexFormatError, SearchRequestError
from rl_cluster.retrieval.filters import FilterIndex
from rl_cluster.retrieval.index import IndexSettings, SearchIndex

METADATA = [
    {"kind": "wiki", "year": 2021, "open": True, "tags": ["a", "b"], "date": "2021-03-01"},
    {"kind": "mail", "year": 2023.5, "open": False, "tags": [], "date": "2023-11-30"},
    {"kind": "wiki", "year": 2024, "tags": ["b", "b"], "date": "2024-01-05", "code": 7},
    {"kind": "Übung", "year": None, "code": "7", "nested": {"x": 1}, "big": 2**60},
    {},
]


@pytest.fixture(scope="module")
def index() -> FilterIndex:
    return FilterIndex.build(METADATA)


@pytest.mark.parametrize(
    ("condition", "positions"),
    [
        ({"kind": "wiki"}, [0, 2]),
        ({"kind": ["mail", "Übung"]}, [1, 3]),
        ({"kind": "none such"}, []),
        ({"kind": []}, []),
        ({"tags": "b"}, [0, 2]),
        ({"open": True}, [0]),
        ({"open": False}, [1]),
        ({"year": 2021}, [0]),
        ({"year": 2021.0}, [0]),
        ({"year": {"gte": 2021, "lt": 2024}}, [0, 1]),
        ({"year": {"gt": 2021}}, [1, 2]),
        ({"year": {"lte": 2024, "gt": 2030}}, []),
        ({"date": {"gte": "2023", "lte": "2024-01-05"}}, [1, 2]),
        ({"code": 7}, [2]),
        ({"code": "7"}, [3]),
        ({"kind": "wiki", "year": {"gte": 2022}}, [2]),
        ({}, [0, 1, 2, 3, 4]),
    ],
)
def test_filter_condition_is_met_exactly(index: FilterIndex, condition: dict, positions: list[int]) -> None:
    assert index.allowed(condition).nonzero()[0].tolist() == positions


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"colour": "red"}, ["'colour'", "kind", "year"]),
        ({"year": "2021"}, ["'year'", "'2021'", "numbers"]),
        ({"kind": 3}, ["'kind'", "3", "texts"]),
        ({"open": 1}, ["'open'", "1", "truth values"]),
        ({"year": {"gte": 2020, "lt": "2024"}}, ["'year'", "numbers"]),
        ({"year": {"above": 3}}, ["'year'", "above", "gte"]),
        ({"year": {}}, ["'year'", "gte"]),
        ({"year": None}, ["'year'", "None"]),
        ({"year": float("nan")}, ["'year'", "nan"]),
        ({"nested": "x"}, ["'nested'", "objects"]),
        ({"big": 5}, ["'big'", "2^53"]),
    ],
)
def test_filter_unknown_field_or_wrong_type_is_refused(index: FilterIndex, condition: dict, words: list[str]) -> None:
    with pytest.raises(SearchRequestError) as error:
        index.allowed(condition)
    assert all(word in str(error.value) for word in words)


def test_filter_saved_index_answers_the_same(index: FilterIndex, tmp_path) -> None:
    index.save(tmp_path / "filters")
    again = FilterIndex.load(tmp_path / "filters")
    assert again.fields == index.fields == ["code", "date", "kind", "open", "tags", "year"]
    for condition in ({"kind": "wiki"}, {"year": {"gt": 2021}}, {"tags": "b"}):
        assert again.allowed(condition).tolist() == index.allowed(condition).tolist()
    (tmp_path / "filters" / "0.starts.npy").unlink()
    with pytest.raises(IndexFormatError, match="build again"):
        FilterIndex.load(tmp_path / "filters")


@given(
    values=st.lists(st.one_of(st.none(), st.integers(-3, 3), st.floats(-3, 3)), min_size=1, max_size=20),
    low=st.integers(-4, 4),
    high=st.integers(-4, 4),
)
@settings(max_examples=60, deadline=None)
def test_filter_any_range_equals_a_scan(values: list, low: int, high: int) -> None:
    index = FilterIndex.build([{"n": value} for value in [*values, 0]])
    met = index.allowed({"n": {"gt": low, "lte": high}})
    assert met.tolist() == [value is not None and low < value <= high for value in [*values, 0]]


def test_search_filter_is_applied_before_ranking(tmp_path) -> None:
    documents = [Document(f"d{i:03d}", "", "pump " * (60 - i), {"number": i}) for i in range(60)]
    index = SearchIndex.build(Corpus.from_documents("kb", documents), IndexSettings(parts=("lexical",)), tmp_path / "i")
    assert index.filter_fields == ["number"]
    # None of these is among the best ten of all.
    hits = index.search("lexical", "pump", 10, excluded=("d055",), filters={"number": {"gte": 50}})
    assert sorted(hit.doc_id for hit in hits) == ["d050", *(f"d{i:03d}" for i in (51, 52, 53, 54, 56, 57, 58, 59))]
    with pytest.raises(SearchRequestError, match="colour"):
        index.search("lexical", "pump", 10, filters={"colour": "red"})
