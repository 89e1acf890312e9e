"""What an episode asks of an environment. One instance serves one episode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec
from rl_cluster.episodes.trajectory import ToolCall
from rl_cluster.errors import Outcome


@dataclass
class StepResult:
    """What one reply led to: observations to go on with, one for each call, or an outcome that ends the episode."""

    observations: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    ranking: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def found_ids(self) -> list[str]:
        """What the searches showed, call after call."""
        return [doc_id for call in self.calls for doc_id in call.found_ids]


class Environment(Protocol):
    """The conversation's head, its tools, and one step per reply.

    `step` raises ToolTimeoutError or ToolUnavailableError when infrastructure fails.
    """

    system: str
    question: str
    tools: list[ToolSpec]

    async def step(self, reply: ParsedReply) -> StepResult: ...
