"""Small things that every actor file needs of Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from rl_cluster.errors import ClusterError, DeadlineError, first_line

CALL_TIMEOUT_S = 120.0
"""For calls that take milliseconds: an actor that is silent for so long is stuck, for instance on a disk that does not answer."""

Handle = Any
"""A handle of a Ray actor."""


def actor(**options: Any) -> Callable[[type], Any]:
    """`ray.remote(**options)` for classes; typed as Any, since Ray's own stubs know neither all options nor handles."""
    return ray.remote(**options)


async def value_of(reference: Any) -> Any:
    """Awaits a reference as a coroutine, which asyncio can wrap in a task, wait for and cancel."""
    return await reference


def is_loss(error: BaseException) -> bool:
    """Whether a call failed because its actor is gone, and not because the actor raised an error.

    Ray has no common class for it: an actor may die by itself (RayActorError), with its node (NodeDiedError), or by the hand of
    Ray's memory monitor (OutOfMemoryError).
    """
    return isinstance(error, RayError) and not isinstance(error, RayTaskError)


async def ask(who: str, reference: Any, seconds: float = CALL_TIMEOUT_S) -> Any:
    """Awaits a short call of an actor. Raises DeadlineError that names `who`, ClusterError where the actor is gone, and what the actor
    itself raised."""
    try:
        return await within(seconds, value_of(reference))
    except RayError as error:
        if not is_loss(error):
            raise
        raise ClusterError(
            f"{who} is gone ({first_line(error)}); the same command starts it again, and a job from its last checkpoint."
        ) from error
    except TimeoutError as error:
        raise DeadlineError(
            f"{who} did not answer within {seconds:.0f} s; is its node alive, and do its disks answer?"
        ) from error


async def within(seconds: float, awaitable: Any) -> Any:
    """Awaits with a deadline; raises TimeoutError.

    `asyncio.wait_for` of Python 3.11 loses a cancellation that meets the end of what it waits for; this does not.
    """
    async with asyncio.timeout(seconds):
        return await awaitable
