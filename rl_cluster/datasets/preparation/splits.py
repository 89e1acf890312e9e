"""Which split a task belongs to: a stable hash decides, so that adding or removing tasks moves no other one."""

from __future__ import annotations

import hashlib

_RANGE = float(1 << 64)


def position(name: str) -> float:
    """A number in [0, 1) that depends on `name` alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / _RANGE


def held_out_split(name: str, validation_fraction: float, test_fraction: float) -> str:
    """`validation`, `test` or `train` for a training task, by the position of its name."""
    place = position(name)
    if place < validation_fraction:
        return "validation"
    return "test" if place < validation_fraction + test_fraction else "train"
