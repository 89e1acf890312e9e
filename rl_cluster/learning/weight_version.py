"""`WeightVersion`: what the learner publishes after a step, and the proof that it arrived whole.

A snapshot is one safetensors file; its manifest carries a BLAKE3 digest per tensor under its Hugging Face name, taken
from the learner's tensors (not from the file), and a probe: a fixed sequence with the learner's own log-probs of it.
"""

from __future__ import annotations

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
    """`version` is the number of completed training steps that made the weights (0 at the start)."""

    version: int
    path: str
    node_id: str
    num_bytes: int
    digests: dict[str, str] = field(repr=False)
    probe: Probe | None = None


def tensor_digest(tensor: torch.Tensor) -> str:
    """The BLAKE3 digest of a tensor's type, shape and bytes, as 32 hex digits."""
    import torch

    flat = tensor.detach().contiguous().cpu().reshape(-1)
    hasher = blake3(f"{tensor.dtype}{list(tensor.shape)}".encode(), max_threads=1)
    data: Any = flat.view(torch.uint8).numpy()
    hasher.update(data)
    return hasher.hexdigest(length=16)


def verify_digest(name: str, tensor: torch.Tensor, digests: dict[str, str]) -> None:
    """Raises DigestMismatchError when `tensor` is not the one that left the learner under `name`."""
    expected = digests.get(name)
    if expected is None:
        raise DigestMismatchError(f"Tensor {name} arrived but is not in the manifest; the engine must be restarted.")
    actual = tensor_digest(tensor)
    if actual != expected:
        raise DigestMismatchError(
            f"Tensor {name} has digest {actual} at the engine but left the learner as {expected}; the engine must be restarted."
        )


def verify_probe(probe: Probe, engine_logprobs: list[float], tolerance: float) -> float:
    """The largest absolute difference of the probe's log-probs; raises ProbeMismatchError when over `tolerance`."""
    if len(engine_logprobs) != len(probe.logprobs):
        raise ProbeMismatchError(
            f"The engine scored {len(engine_logprobs)} probe tokens, the learner {len(probe.logprobs)}; restart the engine."
        )
    gap = max(abs(a - b) for a, b in zip(engine_logprobs, probe.logprobs, strict=True))
    if not gap <= tolerance:
        raise ProbeMismatchError(
            f"Engine and learner differ by {gap:.2e} on the probe sequence (allowed {tolerance:.0e}); restart the engine."
        )
    return gap
