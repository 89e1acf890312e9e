"""Relevant documents for questions that come with answers alone: those whose title or text holds an answer.

Distant supervision as in open-domain question answering (Karpukhin et al. 2020, "has_answer" of DPR): the words of an answer must
stand side by side, whatever their case and the marks between them. A document may hold an answer by chance, the more often the
shorter the answer is, so a question whose answers stand in many documents gets none.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

from rl_cluster.datasets.preparation.converter import Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.scripts import SPACED, UNSPACED
from rl_cluster.datasets.task import Document

_WORD = re.compile(f"[{SPACED}]+|[{UNSPACED}]")

_Words = tuple[str, ...]


class AnswerMatcher:
    """Sees every document once and then gives each question without gains a gain of 1 for those that hold an answer.

    `limit`: the most documents that may hold an answer of a question, at least 1.
    """

    def __init__(self, drafts: Iterable[Draft], limit: int) -> None:
        self._limit = limit
        self._drafts = [draft for draft in drafts if draft.answer_only and not draft.gains]
        self._found: list[set[str]] = [set() for _ in self._drafts]
        self._asking: defaultdict[str, defaultdict[_Words, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._lengths: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for number, draft in enumerate(self._drafts):
            for words in {_words(answer) for answer in draft.answers} - {()}:
                self._asking[draft.corpus][words].append(number)
                self._lengths[draft.corpus][words[0]].add(len(words))

    def see(self, corpus: str, doc_id: str, document: Document) -> None:
        """One document of a corpus, under the id that the corpus has it under."""
        if corpus not in self._asking:
            return
        asking, lengths = self._asking[corpus], self._lengths[corpus]
        words = _words(f"{document.title}\n{document.text}")
        for start, first in enumerate(words):
            for length in lengths.get(first, ()):
                for number in asking.get(words[start : start + length], ()):
                    found = self._found[number]
                    # One over the limit is enough to know that there are too many.
                    if len(found) <= self._limit and doc_id not in self._drafts[number].excluded:
                        found.add(doc_id)

    def judged(self, drafts: list[Draft], report: Report) -> list[Draft]:
        """Those of `drafts` that can be scored now; the others are dropped under their reason."""
        unusable: set[str] = set()
        for draft, found in zip(self._drafts, self._found, strict=True):
            if 0 < len(found) <= self._limit:
                draft.gains = dict.fromkeys(sorted(found), 1.0)
                draft.metadata = {**draft.metadata, "judged_by": "answers"}
                continue
            unusable.add(draft.query_id)
            many = f"its answers stand in over {self._limit} documents"
            report.drop(draft.query_id, many if found else "no document holds one of its answers")
        if len(unusable) < len(self._drafts):
            report.note(
                f"{len(self._drafts) - len(unusable)} questions are judged by the documents that hold one of their answers, which "
                "some do by chance."
            )
        return [draft for draft in drafts if draft.query_id not in unusable]


def _words(text: str) -> _Words:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
