"""Tool-call formats: one file each. A format turns a reply's text into tool calls or a final answer, and writes calls.

vLLM's own parsers are for servers: they hand a malformed call back as text. Here it must carry its error, since the model is
told what to mend and the failure is counted.

A new one is a new file with a class `Format` and its name in the setting `model.tool_format`.
"""

from __future__ import annotations

from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.registry import FileRegistry

_FILES = FileRegistry(__name__, "model.tool_format", shared=("base", "json_calls", "thinking"), others=("auto",))


def format_names() -> list[str]:
    """The names that `get_format` knows, sorted."""
    return _FILES.names()


def get_format(name: str) -> ToolFormat:
    """The tool-call format of that name; ConfigError if there is none."""
    return _FILES.get(name, "Format")()


def detect_format(chat_template: str) -> str:
    """The format that a chat template speaks: `qwen3_coder`, `hermes` (Qwen3 and others), `llama3`, or `plain` where it has
    no tools.
    """
    if "tools" not in chat_template or "<arg_key>" in chat_template:  # GLM's own calls are none of these
        return "plain"
    if "<function=" in chat_template:
        return "qwen3_coder"
    if "<tool_call>" in chat_template:
        return "hermes"
    if "<|python_tag|>" in chat_template or "ipython" in chat_template:
        return "llama3"
    return "plain"
