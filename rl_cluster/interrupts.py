"""Ctrl-C as an exception of our own, so that a command that caught it ends with the exit code it chose.

CPython 3.11 remembers a plain KeyboardInterrupt that left code compiled from a string (dataclasses and named tuples are made
so), also where it was caught, and then a program run by `python -m` ends by the signal instead of `sys.exit`'s code.
"""

from __future__ import annotations

from types import FrameType
from typing import NoReturn


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end; caught wherever KeyboardInterrupt is."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A signal's handler: raises Interrupted."""
    raise Interrupted
