"""vLLM's NCCL and CUDA IPC weight-transfer engines, with every tensor's digest checked before it is loaded.

The digests travel in each update's payload; the learner's side adds them (learning/device_sender.py). A mismatch raises
in the engine's process, after which the engine is broken and must be replaced. Neither has run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo

from rl_cluster.errors import DigestMismatchError
from rl_cluster.inference.engine import DEVICE_BACKENDS
from rl_cluster.learning.weight_version import verify_digest


@dataclass
class VerifiedNCCLUpdateInfo(NCCLWeightTransferUpdateInfo):
    """`digests` of all tensors of the update by name."""

    digests: dict[str, str] = field(default_factory=dict)


@dataclass
class VerifiedIPCUpdateInfo(IPCWeightTransferUpdateInfo):
    """`digests` of all tensors of the update by name."""

    digests: dict[str, str] = field(default_factory=dict)


class VerifyingModel:
    """Stands in for the model while weights are received: `load_weights` checks, remembers and passes on."""

    def __init__(self, model: Any, digests: dict[str, str]) -> None:
        self._model = model
        self._digests = digests
        self.received: set[str] = set()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        checked = list(weights)
        for name, tensor in checked:
            verify_digest(name, tensor, self._digests)
            self.received.add(name)
        return self._model.load_weights(checked)

    def require_all(self, names: Iterable[str]) -> None:
        """Raises DigestMismatchError when a tensor that was announced did not arrive."""
        missing = sorted(set(names) - self.received)
        if missing:
            raise DigestMismatchError(f"Tensor {missing[0]} was announced but did not arrive; restart the engine.")


class _Verified:
    """Goes before one of vLLM's engines: whatever that receives passes a `VerifyingModel` on its way into the model."""

    model: Any

    def receive_weights(self, update_info: Any) -> None:
        model, verifying = self.model, VerifyingModel(self.model, update_info.digests)
        self.model = verifying
        engine: Any = super()
        try:
            engine.receive_weights(update_info)
        finally:
            self.model = model
        verifying.require_all(update_info.names)


class VerifiedNCCLWeightTransferEngine(_Verified, NCCLWeightTransferEngine):
    """Receives a broadcast from the learner's first rank."""

    update_info_cls = VerifiedNCCLUpdateInfo


class VerifiedIPCWeightTransferEngine(_Verified, IPCWeightTransferEngine):
    """Opens the memory of a learner on the same GPU."""

    update_info_cls = VerifiedIPCUpdateInfo


ENGINES = {"nccl": VerifiedNCCLWeightTransferEngine, "ipc": VerifiedIPCWeightTransferEngine}
for _transport, _engine in ENGINES.items():
    if DEVICE_BACKENDS[_transport] not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(DEVICE_BACKENDS[_transport], _engine)


class WorkerExtension:
    """Mixed into vLLM's worker so that its processes import this module."""
