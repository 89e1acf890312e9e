"""Full, merged weights of a learner under their Hugging Face names, whatever adapters or ZeRO stage it runs with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn


def merged_tensors(model: nn.Module, zero_stage: int, device: str | None = "cpu") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (Hugging Face name, full tensor), adapters merged; tied tensors appear once. Every tensor is a copy, on
    `device`, or where the parameter is when that is None.

    Under ZeRO-3 every rank must iterate in lockstep: each tensor is gathered by a collective.
    """
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{module_name}.{name}" if module_name else name
            if ".lora_" in full_name or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            owner = _adapter_owner(model, module_name)
            gathered = [parameter]
            if owner is not None and name == "weight":
                gathered += [p for n, p in owner.named_parameters() if ".default." in n or n.startswith("lora_")]
            with _gathered(gathered, zero_stage):
                tensor = parameter.detach().clone()
                if owner is not None and name == "weight":
                    tensor += owner.get_delta_weight("default").detach().to(tensor.dtype)
                tensor = tensor if device is None else tensor.to(device)
            yield hugging_face_name(full_name), tensor


def adapter_tensors(model: nn.Module, zero_stage: int) -> dict[str, torch.Tensor]:
    """The adapters' tensors on CPU under the names of peft's own files; every rank must call it under ZeRO-3."""
    from peft import get_peft_model_state_dict

    adapters = {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}
    with _gathered(list(adapters.values()), zero_stage):
        state = {name: parameter.detach().cpu().clone().contiguous() for name, parameter in adapters.items()}
    named: Any = model
    return get_peft_model_state_dict(named, state_dict=state)


def adapter_modules(model: nn.Module) -> list[str]:
    """Names of the kinds of layers that carry an adapter, such as `q_proj`: peft keeps full names for small models."""
    adapted: Any = model
    return sorted({name.rpartition(".")[2] for name in adapted.peft_config["default"].target_modules})


def adapter_config_json(model: nn.Module) -> str:
    """What peft writes into adapter_config.json, as far as a reader of the weights needs it."""
    adapted: Any = model
    config = adapted.peft_config["default"]
    shape = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "bias": "none",
        "target_modules": adapter_modules(model),
    }
    return json.dumps(shape)


def write_hugging_face(
    folder: str, model: Any, tokenizer: Any, tensors: Mapping[str, torch.Tensor], adapters: Mapping[str, torch.Tensor]
) -> None:
    """A plain Hugging Face folder (safetensors, tokenizer, chat template); `adapters`, where there are any, as peft reads them
    below `adapter`."""
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    inner.config.save_pretrained(folder)
    if getattr(inner, "generation_config", None) is not None:
        inner.generation_config.save_pretrained(folder)
    _save_tensors(tensors, Path(folder) / "model.safetensors")
    tokenizer.save_pretrained(folder)
    if adapters:
        target = Path(folder) / "adapter"
        model.peft_config["default"].save_pretrained(str(target))
        _save_tensors(adapters, target / "adapter_model.safetensors")


def _save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(path), metadata={"format": "pt"})
    # It makes files for their owner alone; the weights may be read by whoever may read what lies beside them.
    path.chmod((path.parent / "config.json").stat().st_mode if (path.parent / "config.json").exists() else 0o644)


def hugging_face_name(name: str) -> str:
    """Strips what the policy wrapper and peft add to a parameter's name."""
    for prefix in ("model.base_model.model.", "base_model.model."):
        name = name.removeprefix(prefix)
    return name.replace(".base_layer.", ".")


def _adapter_owner(model: nn.Module, module_name: str) -> Any:
    """The peft layer that wraps `module_name`, when that is its base layer."""
    if not module_name.endswith(".base_layer"):
        return None
    owner = model.get_submodule(module_name.removesuffix(".base_layer"))
    return owner if hasattr(owner, "get_delta_weight") else None


def _gathered(parameters: list[nn.Parameter], zero_stage: int):
    if zero_stage < 3:
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)
