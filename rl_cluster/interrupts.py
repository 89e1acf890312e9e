"""Ctrl-C as an exception of our own, so that a command that caught it ends with the exit code it chose.

CPython 3.11 remembers a plain KeyboardInterrupt that left code compiled from a string (dataclasses and named tuples are made
so), also where it was caught, and then a program run by `python -m` ends by the signal instead of `sys.exit`'s code.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

_SENT_AGAIN_AFTER_S = 0.05
_other_hook = sys.__unraisablehook__


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end; caught wherever KeyboardInterrupt is. `number`: the signal's."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


def raise_on(*numbers: int) -> None:
    """From now on these signals raise Interrupted in the main thread, to be called there.

    A signal that comes while Python runs a finalizer or a weak reference's callback, of which it drops every exception, is sent
    again, until it comes where it is seen.
    """
    global _other_hook
    if sys.unraisablehook is not _send_again:
        _other_hook, sys.unraisablehook = sys.unraisablehook, _send_again
    for number in numbers:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def _send_again(dropped: sys.UnraisableHookArgs) -> None:
    if isinstance(dropped.exc_value, Interrupted):
        # threading.Thread takes locks that the interrupted code may hold.
        _thread.start_new_thread(_send, (dropped.exc_value.number,))
    else:
        _other_hook(dropped)


def _send(number: int) -> None:
    time.sleep(_SENT_AGAIN_AFTER_S)  # the callback has ended by then
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)
