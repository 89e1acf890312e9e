"""The text of every document, written from the plan of its product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from rl_cluster.datasets.enterprise_kb import names, phrases
from rl_cluster.datasets.enterprise_kb.functions import FUNCTIONS
from rl_cluster.datasets.enterprise_kb.grammar import expand
from rl_cluster.datasets.enterprise_kb.places import SETTINGS
from rl_cluster.datasets.enterprise_kb.plan import ProductPlan
from rl_cluster.datasets.task import Document

# Revisions are told by number or by year; both grow with time.
_FIRST_YEAR = 2016
_TITLE_SCHEMES = ("{word} {id}, revision {rev}", "{word} {id}, edition {year}", "{word} {id}, version {rev}")
_MARKED_OLD = 0.4


@dataclass(frozen=True)
class Slot:
    """One document of a product: `page`, `notice`, `guide` or `related`; `age` is 0 for the newest guide."""

    kind: str
    intent: int = -1
    revision: int = 0
    age: int = 0


def slots(product: ProductPlan, seed: int) -> list[Slot]:
    """The documents of a product in the order in which they are written, which tells nothing about them."""
    found = [Slot("page")]
    if product.old_identifier is not None:
        found.append(Slot("notice"))
    for plan in product.intents:
        found += [Slot("guide", plan.intent, plan.revision - age, age) for age in range(plan.older + 1)]
        if plan.related:
            found.append(Slot("related", plan.intent))
    Random(f"enterprise_kb/{seed}/order/{product.index}").shuffle(found)
    return found


def mean_words(num_documents: int) -> float:
    """The mean length that documents aim at: it grows with the logarithm of the size, as collections do."""
    return 62 + 106 * math.log(num_documents / 2_000) / math.log(250)


def write_document(product: ProductPlan, slot: Slot, doc_id: str, seed: int, words: float) -> Document:
    """The document of one slot, of about `words` words (mails and notices of about half as many)."""
    key = f"enterprise_kb/{seed}/text/{product.index}/{slot.kind}/{slot.intent}"
    if slot.kind == "guide":
        title, text = _guide(product, slot, key, words)
        kind = phrases.INTENTS[slot.intent].word.lower()
    elif slot.kind == "page":
        title, text = _page(product, Random(key), words)
        kind = "page"
    elif slot.kind == "notice":
        title, text = _notice(product, Random(key), words)
        kind = "notice"
    else:
        title, text = _related(product, slot, Random(key), words)
        kind = "mail"
    return Document(doc_id, title, text, {"kind": kind, "product": product.identifier, "age": slot.age})


def office_documents(seed: int, doc_ids: Iterator[str], words: float) -> Iterator[Document]:
    """Notes about office life under the given ids: they belong to no product."""
    for number, doc_id in enumerate(doc_ids):
        rng = Random(f"enterprise_kb/{seed}/office/{number}")
        title, body = phrases.OFFICE[rng.randrange(len(phrases.OFFICE))]
        sentences = [expand(line, rng, rng, {}) for line in body]
        text = _filled(sentences, phrases.COMMON, rng, rng, {}, words)
        yield Document(doc_id, expand(title, rng, rng, {}), " ".join(text), {"kind": "office"})


def _page(product: ProductPlan, rng: Random, words: float) -> tuple[str, str]:
    function, setting = FUNCTIONS[product.function], SETTINGS[product.setting][0]
    order = rng.sample((0, 1), 2)
    given = {
        # A page is the only place that still has the number by which the product went before.
        "id": product.old_identifier or product.identifier,
        "fn_a": function.technical[order[0]],
        "fn_b": function.technical[order[1]],
        "plain": function.plain,
        "setting": setting,
        "branch": setting.split(" ", 1)[1],
        "site": product.site,
    }
    title = expand(rng.choice(phrases.PAGE_TITLES), rng, rng, given)
    sentences = [
        expand(rng.choice(bank), rng, rng, given)
        for bank in (phrases.PAGE_OPENINGS, phrases.PAGE_SECOND, phrases.PAGE_THIRD)
    ]
    bank: list[str] = rng.sample(phrases.PAGE_FACTS, len(phrases.PAGE_FACTS)) + rng.sample(
        phrases.COMMON, len(phrases.COMMON)
    )
    return title, " ".join(_filled(sentences, bank, rng, rng, given, 0.7 * words))


def _guide(product: ProductPlan, slot: Slot, key: str, words: float) -> tuple[str, str]:
    intent = phrases.INTENTS[slot.intent]
    # All versions of a guide share wording and facts, up to a few lines that were changed in between.
    wording, facts = Random(key), Random(key + "/facts")
    given = {"id": product.identifier, "kind": intent.word.lower()}
    scheme = wording.choice(_TITLE_SCHEMES)
    title = scheme.format(word=intent.word, id=product.identifier, rev=slot.revision, year=_FIRST_YEAR + slot.revision)
    opening = expand(wording.choice(intent.opening), wording, facts, given)
    remark = expand(wording.choice(phrases.GUIDE_REMARKS), wording, facts, given)
    own = wording.sample(intent.body, len(intent.body))
    # Most of a guide is about its subject; the remarks of editors are spread over it.
    bank: list[str] = []
    for position, common in enumerate(wording.sample(phrases.COMMON, len(phrases.COMMON))):
        bank += own[2 * position : 2 * position + 2]
        bank.append(common)
    sentences = _filled([opening, remark], bank, wording, facts, given, words)
    if slot.age:
        edits = Random(f"{key}/{slot.revision}")
        for position in edits.sample(range(2, len(sentences)), min(2, len(sentences) - 2)):
            sentences[position] = expand(edits.choice(intent.body), edits, edits, given)
        if edits.random() < _MARKED_OLD:
            title += ", superseded"
    return title, " ".join(sentences)


def _notice(product: ProductPlan, rng: Random, words: float) -> tuple[str, str]:
    given = {"old": product.old_identifier or "", "new": product.identifier}
    sentences = [expand(line, rng, rng, given) for line in phrases.NOTICE_BODY]
    title = expand(rng.choice(phrases.NOTICE_TITLES), rng, rng, given)
    return title, " ".join(_filled(sentences, phrases.COMMON, rng, rng, given, 0.5 * words))


def _related(product: ProductPlan, slot: Slot, rng: Random, words: float) -> tuple[str, str]:
    given = {"id": product.identifier, "kind": phrases.INTENTS[slot.intent].word.lower(), "ticket": names.ticket(rng)}
    title = expand(rng.choice(phrases.RELATED_TITLES), rng, rng, given)
    sentences = [expand(line, rng, rng, given) for line in rng.sample(phrases.RELATED_BODY, 4)]
    return title, " ".join(_filled(sentences, phrases.COMMON, rng, rng, given, 0.6 * words))


def _filled(
    sentences: list[str],
    bank: tuple[str, ...] | list[str],
    wording: Random,
    facts: Random,
    given: Mapping[str, str],
    words: float,
) -> list[str]:
    """`sentences`, then sentences of `bank` until a length drawn around `words` is reached."""
    target = words * wording.uniform(0.7, 1.3)
    count = sum(sentence.count(" ") + 1 for sentence in sentences)
    # A tuple has no order of its own; a list comes in the order in which it is to be used.
    lines = wording.sample(bank, len(bank)) if isinstance(bank, tuple) else bank
    for line in lines:
        if count >= target:
            break
        sentences.append(expand(line, wording, facts, given))
        count += sentences[-1].count(" ") + 1
    return sentences
