"""A ranking as a model writes it: every usual spelling is read, and what demonstrations write is read back."""

from __future__ import annotations

import pytest

from rl_cluster.environments.search import read_ranking, write_ranking


@pytest.mark.parametrize(
    ("answer", "ranking"),
    [
        ("d1 d2", ["d1", "d2"]),
        ("d1, d2;d3", ["d1", "d2", "d3"]),
        ('["d1", "d2"]', ["d1", "d2"]),
        ("d1 d1 d2", ["d1", "d1", "d2"]),
        ("`d1`. (d2).", ["d1", "d2"]),
        ("kb/page-1:2", ["kb/page-1:2"]),
        ("  ", []),
    ],
)
def test_read_ranking_usual_spellings_are_read(answer: str, ranking: list[str]) -> None:
    assert read_ranking(answer) == ranking


@pytest.mark.parametrize(
    ("answer", "ranking"),
    [
        ("enwiki:Barack Obama, enwiki:Ohio", ["enwiki:Barack Obama", "enwiki:Ohio"]),
        ("enwiki:Ohio enwiki:Barack Obama Sr. d1", ["enwiki:Ohio", "enwiki:Barack Obama Sr.", "d1"]),
        ("['enwiki:Barack Obama'; enwiki:Pump (film)].", ["enwiki:Barack Obama", "enwiki:Pump (film)"]),
        ("enwiki:Barack Obamas", ["enwiki:Barack", "Obamas"]),
        ("enwiki:Michelle Obama", ["enwiki:Michelle", "Obama"]),
        ("", []),
    ],
)
def test_read_ranking_ids_with_blanks_are_read_where_they_were_shown(answer: str, ranking: list[str]) -> None:
    shown = ["enwiki:Barack Obama", "enwiki:Barack Obama Sr.", "enwiki:Pump (film)", "enwiki:Ohio"]
    assert read_ranking(answer, shown) == ranking


@pytest.mark.parametrize("ranking", [["d1", "d2"], ["enwiki:Barack Obama", "d2"], ["a,b", "c;d", "e."]])
def test_write_ranking_is_read_back(ranking: list[str]) -> None:
    assert read_ranking(write_ranking(ranking), ranking) == ranking
