"""Two small things that every actor file needs of Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray

Handle = Any
"""A handle of a Ray actor."""


def actor(**options: Any) -> Callable[[type], Any]:
    """`ray.remote(**options)` for classes; typed as Any, since Ray's own stubs know neither all options nor handles."""
    return ray.remote(**options)


async def value_of(reference: Any) -> Any:
    """Awaits a reference as a coroutine, which asyncio can wrap in a task, wait for and cancel."""
    return await reference


async def within(seconds: float, awaitable: Any) -> Any:
    """Awaits with a deadline; raises TimeoutError.

    `asyncio.wait_for` of Python 3.11 loses a cancellation that meets the end of what it waits for; this does not.
    """
    async with asyncio.timeout(seconds):
        return await awaitable
