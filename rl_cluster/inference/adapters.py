"""The adapters of an engine: one per weight version, each loaded beside the others under a name of its own.

Invariants:
- a request runs under one adapter from its first token to its last, so that an update neither pauses nor mixes anything;
- an adapter is given to requests only after every tensor's digest and the probe agreed;
- vLLM keys its prefix cache by the adapter's name, which is never used twice;
- an adapter that no request uses and that is not the newest is unloaded and its files are removed, at the next update; those of
  a process that was killed are removed by the next one of this host.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_cluster.learning.weight_version import WeightVersion, verify_snapshot

_FOLDER = "rl_cluster-adapter-"

MAX_ADAPTERS = 3
"""Adapters that one batch may use: the newest, the one before for requests under way, and one that is being proven. A
request of a further version waits for a place."""


@dataclass(eq=False)
class Adapter:
    """One loaded adapter; `request` is what vLLM knows it by, `users` the number of requests that run under it."""

    version: int
    request: Any
    folder: Path
    users: int = 0


class AdapterShelf:
    """Owns the adapters of one AsyncLLM."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.current: Adapter | None = None
        self._loaded: list[Adapter] = []
        self._count = 0

    async def load(self, weights: WeightVersion, path: str) -> Adapter:
        """Loads the snapshot at `path`, which no request uses yet. Raises DigestMismatchError when it did not arrive whole."""
        from vllm.lora.request import LoRARequest

        await self._unload_unused()
        await asyncio.to_thread(_remove_of_the_dead)
        folder = await asyncio.to_thread(_verified_copy, weights, path)
        self._count += 1
        name = f"version-{weights.version}-load-{self._count}"
        adapter = Adapter(weights.version, LoRARequest(name, self._count, str(folder)), folder)
        self._loaded.append(adapter)
        await self.llm.add_lora(adapter.request)
        return adapter

    def adopt(self, adapter: Adapter) -> None:
        """Gives `adapter` to every request from now on."""
        self.current = adapter

    def acquire(self) -> Adapter | None:
        """The adapter for a request that starts now; None before the first one, when the base model itself answers."""
        if self.current is not None:
            self.current.users += 1
        return self.current

    def release(self, adapter: Adapter | None) -> None:
        """A request that ran under `adapter` has ended."""
        if adapter is not None:
            adapter.users -= 1

    def close(self) -> None:
        """Removes all files."""
        for adapter in self._loaded:
            shutil.rmtree(adapter.folder, ignore_errors=True)

    async def _unload_unused(self) -> None:
        for adapter in [a for a in self._loaded if a.users == 0 and a is not self.current]:
            self._loaded.remove(adapter)
            await self.llm.remove_lora(adapter.request.lora_int_id)
            shutil.rmtree(adapter.folder, ignore_errors=True)


def _verified_copy(weights: WeightVersion, path: str) -> Path:
    """A folder as peft writes it, from which vLLM may read the adapter again for as long as a request uses it."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as snapshot:
        verify_snapshot(snapshot, path, weights.digests)
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
    shutil.copyfile(path, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(weights.adapter_config)
    return folder


def _remove_of_the_dead() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        process = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if process.isdecimal() and not Path("/proc", process).exists():
            shutil.rmtree(folder, ignore_errors=True)
