"""What the manifest of a prepared folder says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_cluster.errors import DataError


def is_confidential(folder: Path) -> bool:
    """Whether the folder's texts must not be published; False for a folder without a manifest.

    Raises DataError where the manifest is no JSON object: then nobody knows.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        return False
    try:
        manifest: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: it cannot be read as JSON ({error}); prepare the folder again.") from error
    if not isinstance(manifest, dict):
        raise DataError(f"{path}: it is no JSON object; prepare the folder again.")
    return bool(manifest.get("confidential"))
