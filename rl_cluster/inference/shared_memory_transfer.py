"""A weight-transfer engine for vLLM that loads a safetensors snapshot from a memory-mapped file.

It is registered with vLLM by importing this module in the engine's worker processes; `WorkerExtension` below is the
`worker_extension_cls` that makes them do so. Every tensor's digest is checked before any tensor is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rl_cluster.inference.engine import TRANSFER_BACKEND
from rl_cluster.learning.weight_version import verify_snapshot


@dataclass
class SharedMemoryInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: the file's path comes with each update."""


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    """`path` of the snapshot on this host and the learner's `digests` by tensor name."""

    path: str
    digests: dict[str, str]


class SharedMemoryWeightTransferEngine(WeightTransferEngine[SharedMemoryInitInfo, SharedMemoryUpdateInfo]):
    """Loads whole snapshots; a failure leaves the model unusable, and the engine must be restarted."""

    init_info_cls = SharedMemoryInitInfo
    update_info_cls = SharedMemoryUpdateInfo

    def init_transfer_engine(self, init_info: SharedMemoryInitInfo) -> None:
        return None

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        # The base class waits for an accelerator here; a CPU has none.
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        with safe_open(update_info.path, framework="pt") as snapshot:
            names = verify_snapshot(snapshot, update_info.path, update_info.digests)

            def tensors() -> Iterator[tuple[str, torch.Tensor]]:
                for name in names:
                    yield name, snapshot.get_tensor(name)

            model: Any = self.model
            model.load_weights(tensors())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_tied_heads(self.model)

    def shutdown(self) -> None:
        return None


def _repack_tied_heads(model: torch.nn.Module) -> None:
    """A head tied to the embedding keeps its own packed copy on CPU, which a reload of the embedding leaves stale."""
    tables: list[Any] = [m for m in model.modules() if type(m) is VocabParallelEmbedding]
    heads: list[Any] = [m for m in model.modules() if isinstance(m, ParallelLMHead)]
    embeddings = {table.weight.data_ptr() for table in tables}
    for module in heads:
        if module.weight.data_ptr() in embeddings:
            module.quant_method.process_weights_after_loading(module)


if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, SharedMemoryWeightTransferEngine)


class WorkerExtension:
    """Mixed into vLLM's worker so that its processes import this module."""
