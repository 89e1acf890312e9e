"""`WeightVersion`: what the learner publishes after a step, and the proof that it arrived whole.

A snapshot is one safetensors file, or tensors that stay on the learner's device; its manifest carries a digest per
tensor under its Hugging Face name, taken from the learner's tensors (not from the file), and a probe: a fixed sequence
with the learner's own log-probs of it. A digest says how it was made: `blake3:` over bytes in memory, `sum64:` on the
device, where copying every tensor to the host would cost more than sending it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from rl_cluster.errors import DigestMismatchError, ProbeMismatchError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Probe:
    """`token_ids` [T]; `logprobs` [T-1]: log p(token t | tokens before t) for t = 1..T-1, at temperature 1."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class WeightVersion:
    """`version` is the number of completed training steps that made the weights (0 at the start).

    `adapter_config`: where the snapshot holds a LoRA adapter under peft's names instead of a whole model, the text of peft's
    adapter_config.json; else empty.
    """

    version: int
    path: str
    node_id: str
    num_bytes: int
    digests: dict[str, str] = field(repr=False)
    probe: Probe | None = None
    adapter_config: str = ""


def tensor_digest(tensor: torch.Tensor) -> str:
    """`blake3:` and 32 hex digits over a tensor's type, shape and bytes."""
    import torch

    flat = tensor.detach().contiguous().cpu().reshape(-1)
    hasher = blake3(f"{tensor.dtype}{list(tensor.shape)}".encode(), max_threads=1)
    data: Any = flat.view(torch.uint8).numpy()
    hasher.update(data)
    return f"blake3:{hasher.hexdigest(length=16)}"


def device_digest(tensor: torch.Tensor) -> str:
    """`sum64:`, a tensor's type and shape and 16 hex digits: its 16-bit words, each times an odd number of its position,
    summed modulo 2^64.

    Computed where the tensor is, in any order with the same result. Every change of a single word changes it, and so
    does, but for one chance in about 2^63, every other change that is not made on purpose.
    """
    import torch

    words = tensor.detach().contiguous().reshape(-1).view(torch.int16)
    total = 0
    for start in range(0, len(words), DIGEST_CHUNK):
        chunk = words[start : start + DIGEST_CHUNK].to(torch.int64)
        position = torch.arange(start, start + len(chunk), device=words.device, dtype=torch.int64)
        mixed = (position * GOLDEN_64) ^ (position >> 7)
        total += int(((chunk + 0x8001) * (mixed | 1)).sum())
    shape = "x".join(str(size) for size in tensor.shape)
    return f"sum64:{str(tensor.dtype).removeprefix('torch.')}:{shape}:{total % (1 << 64):016x}"


DIGEST_CHUNK = 1 << 24
"""Words that are widened to 64 bits at once."""
GOLDEN_64 = -0x61C8864680B583EB
"""2^64 divided by the golden ratio, odd, as a signed number; spreads positions over all 64 bits."""
_DIGESTS = {"blake3": tensor_digest, "sum64": device_digest}


def verify_digest(name: str, tensor: torch.Tensor, digests: dict[str, str]) -> None:
    """Raises DigestMismatchError when `tensor` is not the one that left the learner under `name`."""
    expected = digests.get(name)
    if expected is None:
        raise DigestMismatchError(f"Tensor {name} arrived but is not in the manifest; the engine must be restarted.")
    actual = _DIGESTS[expected.partition(":")[0]](tensor)
    if actual != expected:
        raise DigestMismatchError(
            f"Tensor {name} has digest {actual} at the engine but left the learner as {expected}; the engine must be restarted."
        )


def verify_snapshot(snapshot: Any, path: str, digests: dict[str, str]) -> list[str]:
    """The names of the tensors of `snapshot`, an open safetensors file at `path`, when it holds every tensor of the manifest as
    it left the learner; raises DigestMismatchError otherwise.
    """
    names = list(snapshot.keys())
    missing = sorted(set(digests) - set(names))
    if missing:
        raise DigestMismatchError(f"The snapshot {path} lacks tensor {missing[0]}; restart the engine.")
    for name in names:
        verify_digest(name, snapshot.get_tensor(name), digests)
    return names


def verify_probe(probe: Probe, engine_logprobs: list[float], tolerance: float) -> float:
    """The largest absolute difference of the probe's log-probs; raises ProbeMismatchError when over `tolerance`."""
    if len(engine_logprobs) != len(probe.logprobs):
        raise ProbeMismatchError(
            f"The engine scored {len(engine_logprobs)} probe tokens, the learner {len(probe.logprobs)}; restart the engine."
        )
    gaps = [abs(a - b) for a, b in zip(engine_logprobs, probe.logprobs, strict=True)]
    gap = math.inf if any(map(math.isnan, gaps)) else max(gaps)  # a comparison with NaN would let it pass
    if gap > tolerance:
        raise ProbeMismatchError(
            f"Engine and learner differ by {gap:.2e} on the probe sequence (allowed {tolerance:.0e}); restart the engine."
        )
    return gap
