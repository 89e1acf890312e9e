"""Which products and documents a collection of a given size has, and which questions are asked in which split.

A product is planned by its own random state, so that documents can be written one product at a time at any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from rl_cluster.datasets.enterprise_kb.functions import FUNCTIONS
from rl_cluster.datasets.enterprise_kb.names import PREFIXES, SUFFIXES, identifier
from rl_cluster.datasets.enterprise_kb.phrases import INTENTS
from rl_cluster.datasets.enterprise_kb.places import SETTINGS, SITES
from rl_cluster.errors import DataError

MIN_DOCUMENTS, MAX_DOCUMENTS = 2_000, 500_000
_MAX_INTENTS = 5
_SIBLING_SHARE = 0.25
_MOVED_SHARE = 0.15


@dataclass(frozen=True)
class IntentPlan:
    """The documents of one kind: `revision` of the newest, how many older ones, and whether a mail discusses it."""

    intent: int
    revision: int
    older: int
    related: bool


@dataclass(frozen=True)
class ProductPlan:
    """One product. `old_identifier` is set where its page still names a number that was replaced."""

    index: int
    identifier: str
    old_identifier: str | None
    function: int
    setting: int
    site: str
    has_sibling: bool
    intents: tuple[IntentPlan, ...]
    split: str | None = None

    @property
    def num_documents(self) -> int:
        """The page, the notice where there is one, and all documents of each kind."""
        per_kind = sum(1 + plan.older + plan.related for plan in self.intents)
        return 1 + (self.old_identifier is not None) + per_kind


@dataclass
class CollectionPlan:
    """Products with questions, and what the rest of the collection is drawn from."""

    num_documents: int
    seed: int
    asked: list[ProductPlan] = field(default_factory=list)
    free_pairs: list[tuple[int, int]] = field(default_factory=list)

    def products(self) -> Iterator[ProductPlan]:
        """All products, those with questions first; what they leave of `num_documents` is filled with office notes."""
        yield from self.asked
        left = self.num_documents - sum(product.num_documents for product in self.asked)
        number = len(self.asked)
        # A twentieth of the collection is office life: menus, parties, minutes.
        reserve = self.num_documents // 20
        while True:
            product = _background_product(self, number)
            if product.num_documents > left - reserve:
                return
            yield product
            left -= product.num_documents
            number += 1


def plan_collection(num_documents: int, seed: int, questions: dict[str, int]) -> CollectionPlan:
    """Plans a collection; `questions` has the number of tasks per split.

    Raises DataError where the size is out of range or the questions need more documents than there are.
    """
    if not MIN_DOCUMENTS <= num_documents <= MAX_DOCUMENTS:
        raise DataError(
            f"enterprise_kb: num_documents is {num_documents}; give a number from {MIN_DOCUMENTS} to {MAX_DOCUMENTS}."
        )
    for split, count in questions.items():
        if count < 1:
            raise DataError(f"enterprise_kb: the split {split!r} has {count} tasks; give at least 1.")
    rng = Random(f"enterprise_kb/{seed}/plan")
    pairs = [(f, s) for f in range(len(FUNCTIONS)) for s in range(len(SETTINGS))]
    rng.shuffle(pairs)
    plan = CollectionPlan(num_documents, seed)
    for split, count in questions.items():
        _plan_split(plan, split, count, pairs, rng)
    plan.free_pairs = pairs
    needed = sum(product.num_documents for product in plan.asked)
    if needed > num_documents or len(pairs) < len(FUNCTIONS):
        total = sum(questions.values())
        raise DataError(
            f"enterprise_kb: {total} tasks need {needed} documents of {num_documents}; ask for fewer tasks or more documents."
        )
    return plan


def _plan_split(plan: CollectionPlan, split: str, count: int, pairs: list[tuple[int, int]], rng: Random) -> None:
    """Adds products until `count` questions are planned; siblings share function and setting and stay in one split."""
    left = count
    while left > 0:
        if len(pairs) < len(FUNCTIONS):
            raise DataError(f"enterprise_kb: {count} tasks in the split {split!r} are too many; ask for fewer tasks.")
        function, setting = pairs.pop()
        sites = rng.sample(SITES, 2)
        pair = rng.random() < _SIBLING_SHARE / 2 and left > _MAX_INTENTS
        for site, suffix_step in zip(sites if pair else sites[:1], (0, 7), strict=False):
            wanted = min(left, rng.choice((4, 5)))
            if wanted == 0:
                break
            index = len(plan.asked)
            # Siblings differ in the last letter only.
            base = index - (suffix_step > 0)
            plan.asked.append(
                ProductPlan(
                    index=index,
                    identifier=_identifier(plan.seed, base, suffix_step),
                    old_identifier=_old_identifier(plan.seed, index) if rng.random() < _MOVED_SHARE else None,
                    function=function,
                    setting=setting,
                    site=site,
                    has_sibling=pair,
                    intents=_intents(rng, wanted),
                    split=split,
                )
            )
            left -= wanted


def _background_product(plan: CollectionPlan, index: int) -> ProductPlan:
    rng = Random(f"enterprise_kb/{plan.seed}/product/{index}")
    # Never the function and setting of a question: those would have a second right answer.
    function, setting = plan.free_pairs[rng.randrange(len(plan.free_pairs))]
    return ProductPlan(
        index=index,
        identifier=_identifier(plan.seed, index, 0),
        old_identifier=_old_identifier(plan.seed, index) if rng.random() < _MOVED_SHARE else None,
        function=function,
        setting=setting,
        site=rng.choice(SITES),
        has_sibling=False,
        intents=_intents(rng, rng.choice((3, 4, 5))),
    )


def _intents(rng: Random, count: int) -> tuple[IntentPlan, ...]:
    plans = []
    for intent in rng.sample(range(len(INTENTS)), count):
        draw = rng.random()
        older = 2 if draw < 0.08 else 1 if draw < 0.6 else 0
        plans.append(IntentPlan(intent, rng.randrange(older + 1, older + 5), older, rng.random() < 0.12))
    return tuple(plans)


# Identifiers are a permutation of the index, so that they are unique without a table of those already given. Replaced
# ones come from the second half of the ranks; the multiplier is prime to the size of the space.
_NUMBERS = 9_000  # from 1000 to 9999
_SPACE = len(PREFIXES) * _NUMBERS
_MULTIPLIER = 104_729


def _identifier(seed: int, index: int, suffix_step: int) -> str:
    return _code(seed, index, suffix_step)


def _old_identifier(seed: int, index: int) -> str:
    return _code(seed, _SPACE // 2 + index, 0)


def _code(seed: int, rank: int, suffix_step: int) -> str:
    slot = (rank * _MULTIPLIER + seed * 7_919) % _SPACE
    prefix, number = slot % len(PREFIXES), slot // len(PREFIXES)
    return identifier(prefix, 1_000 + number, (number * 3 + prefix + suffix_step) % len(SUFFIXES))
