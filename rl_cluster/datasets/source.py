"""Where a run's tasks and documents come from: the bundled collection, or a folder of tables."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rl_cluster.config import DataConfig
from rl_cluster.errors import DataError
from rl_cluster.models.source import cache_root


def prepare_data(data: DataConfig) -> Path:
    """A folder that holds `tasks.parquet` and `corpus.parquet`; the bundled collection is generated once and cached.

    Raises DataError when a given folder lacks a file.
    """
    if data.name == "tables":
        folder = Path(data.folder or "")
        for file in ("tasks.parquet", "corpus.parquet"):
            if not (folder / file).is_file():
                raise DataError(f"data.folder={folder}: {file} is missing; write it there, as the README describes.")
        return folder
    return _bundled(data)


def _bundled(data: DataConfig) -> Path:
    from rl_cluster.datasets.enterprise_kb import generate

    name = f"{data.num_documents}-{data.seed}-{data.train_tasks}-{data.validation_tasks}-{data.test_tasks}"
    folder = cache_root() / "data" / "enterprise_kb" / name
    if (folder / "manifest.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        generate(data.num_documents, data.seed, data.train_tasks, data.validation_tasks, data.test_tasks).write(scratch)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
