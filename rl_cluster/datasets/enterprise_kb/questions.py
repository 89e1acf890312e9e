"""The questions asked about a product, and how much each document is worth to them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from rl_cluster.datasets.enterprise_kb import phrases
from rl_cluster.datasets.enterprise_kb.documents import Slot
from rl_cluster.datasets.enterprise_kb.functions import FUNCTIONS
from rl_cluster.datasets.enterprise_kb.grammar import expand
from rl_cluster.datasets.enterprise_kb.places import SETTINGS
from rl_cluster.datasets.enterprise_kb.plan import IntentPlan, ProductPlan

GAIN_CURRENT, GAIN_RELATED = 3.0, 1.0
_DIRECT_SHARE = 0.6
_SITE_SHARE = 0.3


def question(product: ProductPlan, plan: IntentPlan, rng: Random) -> str:
    """A question for one kind of document, which describes the product and never names it."""
    what = f"{rng.choice(phrases.QUESTION_NOUNS)} {FUNCTIONS[product.function].asked}"
    what += f" {SETTINGS[product.setting][1]}"
    # A product with a sibling is told from it by its site alone.
    if product.has_sibling or rng.random() < _SITE_SHARE:
        what += f" in {product.site}"
    intent = phrases.INTENTS[plan.intent]
    template = rng.choice(intent.direct if rng.random() < _DIRECT_SHARE else intent.indirect)
    return expand(template, rng, rng, {"what": what})


def gains(plan: IntentPlan, ids: Mapping[Slot, str]) -> dict[str, float]:
    """Gains by document id: the newest guide first; the version before it, mails about it and the way to it count less."""
    found = {}
    for slot, doc_id in ids.items():
        if slot.kind == "guide" and slot.intent == plan.intent and slot.age == 0:
            found[doc_id] = GAIN_CURRENT
        elif slot.kind in ("page", "notice") or (slot.intent == plan.intent and slot.age <= 1):
            found[doc_id] = GAIN_RELATED
    return found


def flavours(product: ProductPlan, plan: IntentPlan) -> list[str]:
    """What makes a task harder than the plain two steps: `sibling`, `versions`, `moved`."""
    named = (
        ("sibling", product.has_sibling),
        ("versions", plan.older > 0),
        ("moved", product.old_identifier is not None),
    )
    return [name for name, present in named if present]
