"""Every exception of the project and every way in which an episode can end.

A message is one sentence: what is wrong (with the offending value), where it stands, and how to mend it. The classes
survive pickling, since they cross process borders; each also inherits the built-in exception that it refines.
"""

from __future__ import annotations

from enum import StrEnum


def first_line(error: BaseException) -> str:
    """What an error of others says, for a sentence of ours: its first line without the full stop, otherwise its type."""
    lines = str(error).splitlines()
    return lines[0].rstrip(".")[:1000] if lines else type(error).__name__


class RLClusterError(Exception):
    """Root of all errors that this project raises on purpose."""


class ConfigError(RLClusterError, ValueError):
    """A setting is unknown, out of range, or contradicts another one. Raised before any actor starts."""


class DataError(RLClusterError, ValueError):
    """A file of tasks, documents or demonstrations is malformed. The message names file, row and mend."""


class ModelError(RLClusterError, ValueError):
    """A model folder lacks a part (weights, tokenizer, chat template) or cannot be read."""


class ClusterError(RLClusterError, RuntimeError):
    """The Ray cluster does not answer, or has less than the job asks for."""


class IndexFormatError(RLClusterError, ValueError):
    """A search index on disk is incomplete or was written by an incompatible version."""


class IndexBuildError(RLClusterError, OSError):
    """A search index cannot be written: the disk is full, or the folder may not be written to."""


class OutputError(RLClusterError, OSError):
    """A result cannot be written: the disk is full, or the folder may not be written to. What was written before stays."""


class SearchRequestError(RLClusterError, ValueError):
    """A search request is malformed (empty query, k out of range, unknown tool, index or field): the caller's fault, never retried."""


class UnknownDocumentError(SearchRequestError):
    """An index, or the part of it that was asked, has no document of this id."""


class ToolTimeoutError(RLClusterError, TimeoutError):
    """A tool did not answer within its deadline (infrastructure failure `tool_timeout`)."""


class ToolUnavailableError(RLClusterError, ConnectionError):
    """A tool's service is down or refused the call for lack of room (infrastructure failure `tool_unavailable`)."""


class EngineError(RLClusterError, RuntimeError):
    """The inference engine failed (infrastructure failure `engine_error`)."""


class EndpointError(EngineError):
    """A chat endpoint cannot be reached, refuses the request, or answers with something that is no chat completion."""


class RewardError(RLClusterError, ValueError):
    """A reward function failed, or gave something that is no finite number; the run ends, since every episode needs one."""


class MetricError(RLClusterError, ValueError):
    """An external metric failed, or gave something that is no finite number; the run ends, since its mean is over all episodes."""


class WeightSyncError(RLClusterError, RuntimeError):
    """A weight update did not arrive whole; the engine must be restarted, never resumed."""


class DigestMismatchError(WeightSyncError):
    """A tensor's digest at the receiver differs from the one taken when it left the learner."""


class SupersededError(WeightSyncError):
    """The weights that were asked for gave way to newer ones before anything was sent; ask for those."""


class ProbeMismatchError(WeightSyncError):
    """The engine's log-probs of the probe sequence differ from the learner's."""


class LearnerError(RLClusterError, RuntimeError):
    """A training step cannot be made: no trainable token, a loss that is not finite, a rank that is missing."""


class SamplerDriftError(LearnerError):
    """The sampler no longer runs the learner's weights: their log-probs differ on tokens of the same version."""


class CheckpointError(RLClusterError, RuntimeError):
    """A checkpoint is incomplete, does not fit the job, or cannot be written."""


class DeadlineError(RLClusterError, TimeoutError):
    """A remote call, start-up or rendezvous did not end in time; the message names what is missing."""


class Outcome(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    # The policy's fault: rewarded as the environment says.
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    SEQUENCE_LIMIT = "sequence_limit"
    NO_ANSWER = "no_answer"
    INVALID_ANSWER = "invalid_answer"
    # The infrastructure's fault: tried again, then dropped and counted, never rewarded.
    WORKER_LOST = "worker_lost"
    ENGINE_ERROR = "engine_error"
    TOOL_TIMEOUT = "tool_timeout"
    TOOL_UNAVAILABLE = "tool_unavailable"
    CANCELLED = "cancelled"

    @property
    def is_policy_failure(self) -> bool:
        return self in POLICY_FAILURES

    @property
    def is_infrastructure_failure(self) -> bool:
        return self in INFRASTRUCTURE_FAILURES


POLICY_FAILURES = frozenset(
    {Outcome.TURN_LIMIT, Outcome.TOKEN_LIMIT, Outcome.SEQUENCE_LIMIT, Outcome.NO_ANSWER, Outcome.INVALID_ANSWER}
)
INFRASTRUCTURE_FAILURES = frozenset(
    {Outcome.WORKER_LOST, Outcome.ENGINE_ERROR, Outcome.TOOL_TIMEOUT, Outcome.TOOL_UNAVAILABLE, Outcome.CANCELLED}
)


class DropReason(StrEnum):
    """Why a task group of an epoch was not trained. Each dropped group has exactly one."""

    STALE = "stale"
    INFRASTRUCTURE = "infrastructure"
    STRAGGLER = "straggler"
    NO_TOKENS = "no_tokens"
    NO_SIGNAL = "no_signal"
