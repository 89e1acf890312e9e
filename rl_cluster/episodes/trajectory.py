"""`Trajectory`: one episode as it happened, token by token.

Invariants: in a turn, `sampled_ids`, `logprobs` and `weight_versions` have one length; `prompt_ids` are the ids that
were sent to the engine for that turn, `sampled_ids` the ids that it emitted (never decoded and encoded again). These
four are held as arrays of 4 bytes a token, whatever sequence they are made from: a long run keeps and moves many.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rl_cluster.errors import Outcome


@dataclass(frozen=True)
class ToolCall:
    """One tool call that the policy wrote. `error` is the in-band answer to a malformed call, else None.

    `found_ids`: the documents that a search showed, in its order. `injected`: a drift made the call fail or wait.
    """

    name: str
    arguments: dict[str, object]
    error: str | None = None
    found_ids: tuple[str, ...] = ()
    injected: bool = False


@dataclass(frozen=True)
class TurnTimes:
    """Seconds of one turn: waiting for the engine, prompt, sampled tokens, tools."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tool_s: float = 0.0


@dataclass
class Turn:
    """One request to the policy and what came of it."""

    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    logprobs: Sequence[float]
    weight_versions: Sequence[int]
    finish_reason: str = "stop"
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    times: TurnTimes = field(default_factory=TurnTimes)
    mixed_cache_tokens: int = 0
    started_at: float = 0.0

    def __post_init__(self) -> None:
        for name, code in (("prompt_ids", "i"), ("sampled_ids", "i"), ("logprobs", "f"), ("weight_versions", "i")):
            values = getattr(self, name)
            if not isinstance(values, array):
                setattr(self, name, array(code, values))

    @property
    def found_ids(self) -> list[str]:
        """What the searches of this turn showed, call after call."""
        return [doc_id for call in self.tool_calls for doc_id in call.found_ids]


@dataclass
class Trajectory:
    """One episode. `group_id` joins the samples of one task in one epoch; advantages depend on it alone.

    `turn_rewards` has one reward for each turn where the environment gives them; they sum up to `reward`. One that is `left_out`
    counts in the metrics of its group and is not trained.
    """

    trajectory_id: str
    task_id: str
    group_id: str
    turns: list[Turn]
    outcome: Outcome
    reward: float | None = None
    reward_components: dict[str, float] = field(default_factory=dict)
    ranking: list[str] = field(default_factory=list)
    attempt: int = 0
    index_id: str = ""
    worker: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    error: str = ""
    turn_rewards: list[float] | None = None
    left_out: bool = False

    @property
    def num_sampled(self) -> int:
        """Number of tokens the policy sampled, over all turns."""
        return sum(len(turn.sampled_ids) for turn in self.turns)

    @property
    def oldest_version(self) -> int | None:
        """The smallest weight version among all sampled tokens; None when none was sampled."""
        versions = [version for turn in self.turns for version in turn.weight_versions]
        return min(versions) if versions else None
