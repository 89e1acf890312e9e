"""The tools have other names; they do what they did."""

from __future__ import annotations

from dataclasses import replace

from rl_cluster.config import Section
from rl_cluster.episodes.formats.base import ParsedReply, ToolFormat, ToolSpec
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """`names`: old to new."""

    names: dict[str, str]


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return "tools renamed: " + ", ".join(f"{old} to {new}" for old, new in self.settings.names.items())

    def applies_to(self, tool_format: ToolFormat | None) -> bool:
        return tool_format is not None

    def tools(self, tools: list[ToolSpec]) -> list[ToolSpec]:
        return [replace(tool, name=self.settings.names.get(tool.name, tool.name)) for tool in tools]

    def reply(self, reply: ParsedReply) -> ParsedReply:
        old = {new: name for name, new in self.settings.names.items()}
        return replace(reply, calls=[replace(call, name=old.get(call.name, call.name)) for call in reply.calls])
