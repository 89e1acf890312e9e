"""A Ray that a command starts on this machine for itself, and that ends with it.

Ray gives its own helpers some twenty seconds to come up, which no setting of it changes, and where they need longer, on a machine
under load or with a cold disk, its node ends. By then what they read is in memory, so that a second try comes up.

Ray's client ends the process with code 1 where a thread still asks it something while it is shut down. A command whose Ray answers
no more therefore leaves it, without asking it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import psutil
import ray

from rl_cluster.errors import ClusterError, first_line

_END_S = 3.0


class _RayDidNotStartError(ClusterError):
    """The machine, not what was asked for, kept Ray from starting."""


def start_own_ray(say: Callable[[str], None], **settings: Any) -> None:
    """`ray.init(**settings)` of a new cluster; `say` is told where it is tried a second time.

    Raises ClusterError where that does not start either, and at once where Ray refuses a setting. Processes that the first try left
    are ended.
    """
    before = set(psutil.Process().children(recursive=True))
    try:
        _start(settings)
    except _RayDidNotStartError as error:
        say(f"{error.args[0].partition(';')[0]}; trying once more")
        for process in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended with its parent
                process.kill()
        _start(settings)


def leave_own_ray(code: int) -> NoReturn:
    """Ends this process with this code, and before it what it started, without asking Ray: for a Ray that answers no more."""
    started = psutil.Process().children(recursive=True)
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(started, timeout=_END_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _start(settings: dict[str, Any]) -> None:
    try:
        ray.init(address="local", include_dashboard=False, **settings)
    except ValueError as error:
        raise ClusterError(
            f"Ray refuses to start on this machine: {first_line(error)}; correct the setting."
        ) from error
    except Exception as error:  # Ray raises its bare class where its node does not come up in time
        raise _RayDidNotStartError(
            f"Ray did not start on this machine ({first_line(error)}); let it come to rest and try again."
        ) from error
