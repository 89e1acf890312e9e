"""Sending weights from GPU to GPU, proven before use (invariant 8). Only NCCL and CUDA IPC themselves are replaced: no GPU is needed."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl_cluster.errors import DigestMismatchError, SupersededError
from rl_cluster.learning.weight_version import device_digest, tensor_digest, verify_digest

pytestmark = pytest.mark.slow  # imports vLLM


def tensors(value: float = 0.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    named = {
        "a.weight": torch.randn(7, 5, generator=generator),
        "b.weight": torch.randn(3, generator=generator).bfloat16(),
    }
    return {name: tensor + value for name, tensor in named.items()}


@pytest.mark.parametrize("digest", [tensor_digest, device_digest])
def test_digest_one_bit_shape_type_or_order_changed_differs(digest: Any):
    base = torch.arange(40, dtype=torch.float32).reshape(8, 5)
    flipped, swapped = base.clone(), base.clone()
    flipped.view(torch.int32)[3, 2] ^= 1
    swapped[[1, 2]] = swapped[[2, 1]]
    others = [flipped, swapped, base.reshape(5, 8), base.to(torch.float16), base.T]
    assert digest(base) == digest(base.clone())
    assert digest(base) not in {digest(other) for other in others}


def test_device_digest_chunks_of_any_size_agree(monkeypatch: pytest.MonkeyPatch):
    import rl_cluster.learning.weight_version as module

    tensor = torch.randn(1000)
    whole = device_digest(tensor)
    monkeypatch.setattr(module, "DIGEST_CHUNK", 37)
    assert device_digest(tensor) == whole


class Wire:
    """A pair of NCCL communicators: what one side broadcasts, the other receives; `corrupt` is done to it on the way."""

    def __init__(self, corrupt: Any = None) -> None:
        self.messages: queue.Queue[torch.Tensor] = queue.Queue()
        self.corrupt = corrupt
        self.destroyed = threading.Event()

    def broadcast(self, tensor: torch.Tensor) -> None:
        sent = tensor.clone()
        self.messages.put(sent if self.corrupt is None else self.corrupt(sent))

    def destroy(self) -> None:
        self.messages = queue.Queue()
        self.destroyed.set()


class Model:
    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Any) -> None:
        self.loaded.update(weights)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """vLLM's NCCL engines on both sides, meeting over a queue instead of NCCL."""
    from vllm.distributed.weight_transfer import nccl_engine

    link = Wire()

    def producer(iterator: Any, group: Wire, post_iter_func: Any, **_: Any) -> None:
        for item in iterator:
            group.broadcast(post_iter_func(item))

    def consumer(iterator: Any, group: Wire, post_unpack_func: Any, **_: Any) -> None:
        for name, (shape, dtype) in iterator:
            received = group.messages.get(timeout=5)
            assert received.dtype == dtype
            assert list(received.shape) == list(shape)
            post_unpack_func([(name, received)])

    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", producer)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_consumer", consumer)
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: link)
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", lambda info, parallel: link)
    return link


class Receiver:
    """One engine's worker process: what `RolloutWorker.transfer` ends in."""

    def __init__(self) -> None:
        from rl_cluster.inference.device_transfer import VerifiedNCCLWeightTransferEngine

        self.model = Model()
        self.engine: Any = VerifiedNCCLWeightTransferEngine.__new__(VerifiedNCCLWeightTransferEngine)
        self.engine.model, self.engine.device, self.engine.parallel_config = self.model, "cpu", SimpleNamespace()
        self.versions: list[str] = []
        self.steps: list[str] = []

    def call(self, step: str, payload: Any) -> None:
        self.steps.append(step)
        if step == "init":
            self.engine.init_transfer_engine(self.engine.parse_init_info(payload))
        elif step == "update":
            self.engine.receive_weights(self.engine.parse_update_info(payload))
        elif step == "finish":
            self.versions.append(payload)


def sender() -> Any:
    from rl_cluster.learning.device_sender import DeviceSender

    return DeviceSender("nccl", "127.0.0.1")


def test_send_two_publications_arrive_whole_over_one_channel(wire: Wire):
    source, receiver = sender(), Receiver()
    for sequence, shift in ((1, 0.0), (2, 1.0)):
        source.freeze(sequence, tensors(shift))
        source.send("w0:a", 1, sequence, sequence - 1, receiver.call)
        assert all(torch.equal(receiver.model.loaded[name], t) for name, t in tensors(shift).items())
    assert receiver.steps == ["init", "start", "update", "finish", "start", "update", "finish"]
    assert receiver.versions == ["0", "1"]


def test_send_corrupted_on_the_way_is_refused_before_it_is_loaded(wire: Wire):
    source, receiver = sender(), Receiver()
    source.freeze(1, tensors())

    def flip(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(torch.int16).reshape(-1)[2] ^= 4
        return tensor

    wire.corrupt = flip
    with pytest.raises(DigestMismatchError, match=r"Tensor a\.weight has digest"):
        source.send("w0:a", 1, 1, 0, receiver.call)
    assert receiver.model.loaded == {}
    assert receiver.versions == []
    assert wire.destroyed.is_set(), "the channel of a failed transfer must be torn down"


def test_send_after_failure_opens_a_new_channel(wire: Wire):
    source, receiver = sender(), Receiver()
    source.freeze(1, tensors())
    wire.corrupt = torch.zeros_like
    with pytest.raises(DigestMismatchError):
        source.send("w0:a", 1, 1, 0, receiver.call)
    wire.corrupt = None
    replaced = Receiver()
    source.send("w0:b", 1, 1, 0, replaced.call)
    assert replaced.steps[0] == "init"
    assert len(replaced.model.loaded) == 2


def test_send_new_incarnation_ends_the_channel_of_the_one_before(wire: Wire):
    source, first, other, second = sender(), Receiver(), Receiver(), Receiver()
    source.freeze(1, tensors())
    source.send("w0:a", 1, 1, 0, first.call)
    source.send("w1:a", 1, 1, 0, other.call)
    assert not wire.destroyed.is_set()
    source.send("w0:b", 1, 1, 0, second.call)
    assert wire.destroyed.is_set()
    assert sorted(source._channels) == ["w0:b", "w1:a"]


def test_send_superseded_publication_is_refused_before_the_engine_is_touched(wire: Wire):
    source, receiver = sender(), Receiver()
    source.freeze(1, tensors())
    source.freeze(2, tensors(1.0))
    with pytest.raises(SupersededError, match="Publication 1 is no longer"):
        source.send("w0:a", 1, 1, 0, receiver.call)
    assert receiver.steps == []


def test_receive_tensor_missing_is_refused():
    from rl_cluster.inference.device_transfer import VerifyingModel

    named = tensors()
    model = VerifyingModel(Model(), {name: device_digest(tensor) for name, tensor in named.items()})
    model.load_weights([("a.weight", named["a.weight"])])
    with pytest.raises(DigestMismatchError, match=r"b\.weight was announced"):
        model.require_all(named)


def test_receive_tensor_without_digest_is_refused():
    from rl_cluster.inference.device_transfer import VerifyingModel

    with pytest.raises(DigestMismatchError, match="not in the manifest"):
        VerifyingModel(Model(), {}).load_weights(tensors().items())


def test_ipc_engine_verifies_what_it_opens(monkeypatch: pytest.MonkeyPatch):
    from vllm.distributed.weight_transfer import ipc_engine

    from rl_cluster.inference.device_transfer import VerifiedIPCWeightTransferEngine

    named = tensors()
    monkeypatch.setattr(ipc_engine, "packed_ipc_consumer", lambda **_: list(named.items()))
    engine: Any = VerifiedIPCWeightTransferEngine.__new__(VerifiedIPCWeightTransferEngine)
    engine.model, engine.device, engine.packed, engine._packed_importer = Model(), torch.device("cpu"), True, None
    info = {
        "names": list(named),
        "dtype_names": ["float32", "bfloat16"],
        "shapes": [[7, 5], [3]],
        "ipc_handles": {"gpu": ()},
        "tensor_sizes": [140, 6],
        "digests": {name: device_digest(tensor) for name, tensor in named.items()},
    }
    model = engine.model
    engine.receive_weights(engine.parse_update_info(info))
    assert set(model.loaded) == set(named)
    assert engine.model is model
    info["digests"]["b.weight"] = info["digests"]["a.weight"]
    with pytest.raises(DigestMismatchError):
        engine.receive_weights(engine.parse_update_info(info))
    assert engine.model is model


def test_verify_digest_either_kind_is_recognised():
    for name, tensor in tensors().items():
        for digest in (tensor_digest, device_digest):
            verify_digest(name, tensor, {name: digest(tensor)})
            with pytest.raises(DigestMismatchError, match="has digest"):
                verify_digest(name, tensor + 1, {name: digest(tensor)})
