"""Which device a model computes on."""

from __future__ import annotations

from rl_cluster.errors import ConfigError


def check_device(device: str) -> None:
    """Raises ConfigError where torch has no such device here."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"search.device=cuda: torch {torch.__version__} finds no GPU in this process; give replicas one with "
            "search.gpus_per_replica, or set search.device=cpu."
        )
