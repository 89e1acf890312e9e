"""Arrays of an index on disk."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import DTypeLike

from rl_cluster.errors import IndexFormatError

# The header is read by Python's own parser.
_UNREADABLE = (OSError, ValueError, EOFError, SyntaxError, TypeError, TokenError)


def load_array(path: Path, dtype: DTypeLike, axes: int) -> np.ndarray:
    """Opens a `.npy` file memory-mapped and read-only.

    Raises IndexFormatError where it is missing, cut, or has another type or number of axes than expected.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _UNREADABLE as error:
        raise IndexFormatError(f"{path}: it cannot be read ({error}); delete the index and build again.") from error
    if array.dtype != np.dtype(dtype) or array.ndim != axes:
        raise IndexFormatError(
            f"{path}: it holds {array.dtype} with {array.ndim} axes, not {np.dtype(dtype)} with {axes}; build the index again."
        )
    # A plain view: slicing the subclass costs a Python call each time.
    return np.asarray(array)
