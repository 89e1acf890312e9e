"""`DeviceSender`: sends a frozen copy of the weights from the learner's GPU to engines, through vLLM's trainer engines.

Invariants:
- what is sent is the copy of one publication: the learner trains on while engines still fetch it;
- each worker has a channel of its own, so that a slow or dead worker blocks no other; a channel that failed is torn down
  (its NCCL communicator aborted) and a replaced worker gets a new one;
- digests travel with the payload of each update, so that the receiver can refuse a tensor before it loads it.

Sending to W workers one by one costs W times the transfer; a broadcast would wait for the slowest of them. Has not run
on a GPU.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

from rl_cluster.errors import SupersededError
from rl_cluster.learning.weight_version import device_digest

Call = Callable[[str, Any], None]
"""Calls one step of a worker's engine ("init", "start", "update", "finish") with its payload, within a deadline."""


class DeviceSnapshot(WeightSource):
    """Tensors by Hugging Face name, on the device they were copied on."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.digests = {name: device_digest(tensor) for name, tensor in tensors.items()}

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.tensors.items()

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


class EngineClient:
    """vLLM's client protocol over one worker; adds digests to updates and the version to the end."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.digests: dict[str, str] = {}
        self.version = ""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("init", init_info)

    def start_weight_update(self) -> None:
        self.call("start", None)

    def update_weights(self, update_info: Any) -> None:
        names = update_info["names"]
        self.call("update", {**update_info, "digests": {name: self.digests[name] for name in names}})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.call("finish", weight_version or self.version)


class _Channel:
    def __init__(self, engine: Any, client: EngineClient, source: _Replaceable) -> None:
        self.engine = engine
        self.client = client
        self.source = source
        self.lock = threading.Lock()


class _Replaceable(WeightSource):
    """A channel keeps its source for good; this one passes to whichever snapshot is sent."""

    def __init__(self, snapshot: DeviceSnapshot) -> None:
        self.snapshot = snapshot

    def metadata(self) -> list[ParamMeta]:
        return self.snapshot.metadata()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.snapshot)


class DeviceSender:
    """Lives in the process of learner rank 0. `freeze` after each step; `send` from any thread."""

    def __init__(self, transport: str, host: str) -> None:
        self.transport = transport
        self.host = host
        self.snapshots: dict[int, DeviceSnapshot] = {}
        self._channels: dict[str, _Channel] = {}

    def freeze(self, sequence: int, tensors: dict[str, torch.Tensor]) -> DeviceSnapshot:
        """Keeps `tensors` as publication `sequence`; only the newest is kept besides those being sent."""
        snapshot = DeviceSnapshot(tensors)
        self.snapshots = {sequence: snapshot}
        return snapshot

    def send(self, worker: str, world_size: int, sequence: int, version: int, call: Call) -> None:
        """Sends publication `sequence` to `worker`, whose engine has `world_size` ranks. `worker` is `NAME:INCARNATION`; the first
        publication of a new incarnation ends the channels of earlier ones, which died without a failed transfer.

        Raises SupersededError when the publication is no longer kept, or whatever the transfer raises; the channel is
        gone then.
        """
        snapshot = self.snapshots.get(sequence)
        if snapshot is None:
            kept = ", ".join(str(known) for known in self.snapshots) or "none"
            raise SupersededError(f"Publication {sequence} is no longer on the learner's device (kept: {kept}).")
        channel = self._channels.get(worker)
        if channel is None:
            name = worker.rpartition(":")[0]
            for earlier in [known for known in self._channels if known.rpartition(":")[0] == name]:
                self.close(earlier)
            client, source = EngineClient(call), _Replaceable(snapshot)
            channel = _Channel(self._open(client, source, world_size), client, source)
            self._channels[worker] = channel
        with channel.lock:
            channel.client.call, channel.client.digests = call, snapshot.digests
            channel.client.version, channel.source.snapshot = str(version), snapshot
            try:
                channel.engine.send_weights()
            except BaseException:
                self.close(worker)
                raise

    def close(self, worker: str) -> None:
        """Tears a worker's channel down; safe to call while a send to it hangs."""
        channel = self._channels.pop(worker, None)
        if channel is not None:
            channel.engine.shutdown()

    def _open(self, client: EngineClient, source: WeightSource, world_size: int) -> Any:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

        if self.transport == "ipc":
            return IPCTrainerWeightTransferEngine.trainer_init(
                IPCTrainerInitInfo(rank=0, packed=True), client=client, source=source
            )
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            port = probe.getsockname()[1]
        return NCCLTrainerWeightTransferEngine.trainer_init(
            NCCLTrainerInitInfo(rank=0, master_address=self.host, master_port=port, world_size=world_size + 1),
            client=client,
            source=source,
        )
