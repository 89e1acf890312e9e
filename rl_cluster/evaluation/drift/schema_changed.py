"""The arguments of the tools have other names. It does not apply to a format that shows no arguments, such as `plain`."""

from __future__ import annotations

from dataclasses import replace

from rl_cluster.config import Section
from rl_cluster.episodes.formats.base import ParsedReply, ToolFormat, ToolSpec
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """`arguments`: old to new."""

    arguments: dict[str, str]


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return "arguments renamed: " + ", ".join(f"{old} to {new}" for old, new in self.settings.arguments.items())

    def applies_to(self, tool_format: ToolFormat | None) -> bool:
        return tool_format is not None and tool_format.uses_template_tools

    def tools(self, tools: list[ToolSpec]) -> list[ToolSpec]:
        changed = []
        for tool in tools:
            parameters = dict(tool.parameters)
            parameters["properties"] = {
                self.settings.arguments.get(name, name): schema for name, schema in parameters["properties"].items()
            }
            parameters["required"] = [self.settings.arguments.get(name, name) for name in parameters["required"]]
            changed.append(replace(tool, parameters=parameters))
        return changed

    def reply(self, reply: ParsedReply) -> ParsedReply:
        old = {new: name for name, new in self.settings.arguments.items()}
        calls = [
            replace(call, arguments={old.get(name, name): value for name, value in call.arguments.items()})
            for call in reply.calls
        ]
        return replace(reply, calls=calls)
