"""Models that several users in one process share: each is loaded once, and let go with the last of its users."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary


class SharedModel:
    """`model` is None until a user loads it; `found`: what its users found out about it.

    `lock` is held while it is loaded and while it computes: fast tokenizers refuse concurrent use ("Already borrowed").
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.model: Any = None
        self.found: dict[Hashable, Any] = {}


_models: WeakValueDictionary[Hashable, SharedModel] = WeakValueDictionary()
_models_lock = threading.Lock()


def shared_model(source: str, *how: Hashable) -> SharedModel:
    """The same object for all users of one `source`, a folder or a hub id, that is loaded in the same way, while one of them lives.

    Other files in the folder make another model.
    """
    with _models_lock:
        return _models.setdefault((source, how, _files(Path(source))), SharedModel())


def _files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times; none for a hub id."""
    files = ((path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()) if folder.is_dir() else ()
    return tuple((str(path), state.st_size, state.st_mtime_ns) for path, state in files)
