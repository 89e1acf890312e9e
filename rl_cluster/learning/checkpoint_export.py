"""A run's checkpoint as a plain Hugging Face folder, so that it can be evaluated and used like any model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from rl_cluster.errors import CheckpointError
from rl_cluster.learning.checkpoint import STATE
from rl_cluster.models.source import cache_root, resolve_model

_WEIGHTS = "mp_rank_00_model_states.pt"
_SHARDED_WEIGHTS = "zero_pp_rank_0_mp_rank_00_model_states.pt"


def resolve_policy(name: str, setting: str = "model.name") -> str:
    """As `models.source.resolve_model`; a checkpoint (`RUN/checkpoints/step_000010`) becomes a folder below the cache, once.

    Raises ModelError, and CheckpointError where the checkpoint cannot be read.
    """
    path = Path(name)
    if not (path / STATE).is_file():
        return resolve_model(name, setting)
    from blake3 import blake3

    written = (path / STATE).stat()
    key = blake3(f"{path.absolute()}:{written.st_mtime_ns}:{written.st_size}".encode()).hexdigest()[:16]
    target = cache_root() / "exports" / key
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            export_checkpoint(path, scratch)
            if not target.is_dir():
                scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return resolve_model(str(target))


def export_checkpoint(checkpoint: Path, folder: Path) -> None:
    """Writes the merged weights of a checkpoint, of any ZeRO stage and number of ranks, with the tokenizer of its model.

    Raises CheckpointError where the learner's state is missing or does not fit, ModelError where its model is gone.
    """
    from dataclasses import replace

    from rl_cluster.learning.export import adapter_tensors, merged_tensors, write_hugging_face
    from rl_cluster.learning.loading import load_policy
    from rl_cluster.learning.settings import LearnerSettings, LoraSettings

    learner = checkpoint / "learner"
    header = _read(learner / _WEIGHTS if (learner / _WEIGHTS).is_file() else learner / _SHARDED_WEIGHTS)
    values = dict(header["settings"])
    settings = LearnerSettings(**{**values, "lora": LoraSettings(**values["lora"])})
    model, tokenizer = load_policy(replace(settings, gradient_checkpointing=False))
    weights = header["module"] if (learner / _WEIGHTS).is_file() else _gathered(checkpoint)
    # The learner's module wraps the model as its `model`.
    named = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    left = model.load_state_dict(named, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    absent = [name for name in left.missing_keys if not any(name.endswith(key) for key in tied)]
    if absent or left.unexpected_keys:
        raise CheckpointError(
            f"{learner} does not fit the model {settings.model_path} (such as {[*absent, *left.unexpected_keys][0]}); restore that model."
        )
    adapters = adapter_tensors(model, 0) if settings.lora.rank else {}
    write_hugging_face(str(folder), model, tokenizer, dict(merged_tensors(model, 0)), adapters)


def _read(path: Path) -> dict[str, Any]:
    import torch

    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); use another checkpoint.") from error


def _gathered(checkpoint: Path) -> dict[str, Any]:
    """The parameters of all ranks' parts under ZeRO-3."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    gathered: Any = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), tag="learner")
    return dict(gathered)
