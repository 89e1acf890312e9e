"""A model's configuration and tokenizer, read so that a folder in which one of them is broken is answered in one sentence."""

from __future__ import annotations

from typing import Any

from rl_cluster.errors import ModelError


def configuration_and_tokenizer(path: str, setting: str) -> tuple[Any, Any]:
    """Of a folder or hub id that `setting` names. Raises ModelError where one cannot be read, or the hub does not give it."""
    from transformers import AutoConfig, AutoTokenizer

    part = "configuration"
    try:
        configuration = AutoConfig.from_pretrained(path, trust_remote_code=False)
        part = "tokenizer"
        return configuration, AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises nothing more special
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ModelError(
            f"{setting}={path}: its {part} cannot be read ({reason}); give a folder that save_pretrained() wrote, or a hub id."
        ) from error
