"""Templates -> sentences.

`[a|b|c]` chooses one alternative (they may be nested or empty), `{name}` inserts a fact. Alternatives and facts draw on
two random states, so that two versions of a document can have the same wording and different facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from random import Random

from rl_cluster.datasets.enterprise_kb import names

_TOKEN = re.compile(r"[\[\]|]|\{\w+\}|[^\[\]|{}]+")
_Node = str | tuple[str] | list[list["_Node"]]  # text | (fact,) | alternatives

_FACTS = {
    "person": names.person,
    "host": names.host,
    "error": names.error_code,
    "version": names.version,
    "ticket": names.ticket,
    "date": names.date,
    "small": lambda rng: str(rng.randrange(2, 10)),
    "number": lambda rng: str(rng.randrange(11, 100)),
    "large": lambda rng: str(rng.randrange(120, 5000)),
    "clock": lambda rng: f"{rng.randrange(5, 23)}:{rng.randrange(0, 60):02d}",
    "amount": lambda rng: f"{rng.randrange(12, 990) * 10} euros",
}


def _parse(template: str) -> list[_Node]:
    stack: list[list[list[_Node]]] = [[[]]]
    for token in _TOKEN.findall(template):
        if token == "[":
            stack.append([[]])
        elif token == "|":
            stack[-1].append([])
        elif token == "]":
            alternatives = stack.pop()
            stack[-1][-1].append(alternatives)
        elif token[0] == "{":
            stack[-1][-1].append((token[1:-1],))
        else:
            stack[-1][-1].append(token)
    return stack[0][0]


_parsed = lru_cache(maxsize=None)(_parse)


def expand(template: str, wording: Random, facts: Random, given: Mapping[str, str]) -> str:
    """One sentence of `template`; `given` holds facts that are fixed, the others are drawn from `facts`."""
    out: list[str] = []
    _expand(_parsed(template), wording, facts, given, out)
    text = "".join(out)
    return text[:1].upper() + text[1:]


def _expand(nodes: list[_Node], wording: Random, facts: Random, given: Mapping[str, str], out: list[str]) -> None:
    for node in nodes:
        if isinstance(node, str):
            out.append(node)
        elif isinstance(node, tuple):
            name = node[0]
            out.append(given[name] if name in given else _FACTS[name](facts))
        else:
            _expand(node[int(wording.random() * len(node))], wording, facts, given, out)
