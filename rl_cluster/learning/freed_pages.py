"""Memory that jemalloc keeps after it was freed, given back to the system.

A learner rank on a CPU runs under jemalloc and keeps freed pages (`actors.run_parts.learner_options`): under jemalloc's
own schedule nearly every page of a pass's activations is faulted in anew, a sixth of an update. Pages that are never
given back, however, break into pieces with every pass of another length until the machine is full.
"""

from __future__ import annotations

import ctypes

PASSES_BETWEEN = 2
"""Forward and backward passes after which kept pages go back: few enough for the peak, many enough for the gain."""
_PURGE_ALL_ARENAS = b"arena.4096.purge"
"""4096 is jemalloc's MALLCTL_ARENAS_ALL."""


def give_back_freed_pages() -> None:
    """Returns kept pages to the system; does nothing under another allocator. Raises OSError when jemalloc refuses."""
    mallctl = getattr(ctypes.CDLL(None), "mallctl", None)
    if mallctl is None:
        return
    error = mallctl(_PURGE_ALL_ARENAS, None, None, None, ctypes.c_size_t(0))
    if error:
        raise OSError(error, "jemalloc did not give freed pages back")
