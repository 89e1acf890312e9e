"""`TrajectoryBuffer`: finished groups between rollouts and learner.

Invariants: a group is in the journal on disk before it is acknowledged; a group leaves once, to be trained or dropped
with a reason; no group of age over the bound leaves to be trained.
"""

from __future__ import annotations

from actors.remote import actor
from rl_cluster.episodes.journal import GroupJournal
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.scheduling.staleness import StalenessPolicy


@actor(num_cpus=0, max_concurrency=100)
class TrajectoryBuffer:
    """Holds groups by value, so that the death of the worker that made them loses nothing."""

    def __init__(self, journal_path: str, policy: StalenessPolicy) -> None:
        self.journal = GroupJournal(journal_path)
        self.policy = policy
        self.groups: dict[str, list[Trajectory]] = {}
        self.oldest: dict[str, int] = {}

    async def restore(self, wanted: list[str], completed_steps: int) -> list[str]:
        """Takes groups of `wanted` back from the journal; what undone steps' weights sampled is left out. Returns ids."""
        for group_id, group in self.journal.read():
            versions = [t.oldest_version for t in group if t.oldest_version is not None]
            newest = max((v for t in group for turn in t.turns for v in turn.weight_versions), default=0)
            if group_id in wanted and versions and newest <= completed_steps:
                self._keep(group_id, group)
        self.journal.rewrite(self.groups)
        return list(self.groups)

    async def put(self, group_id: str, group: list[Trajectory]) -> int:
        """Journals and keeps a finished group; returns how many are kept."""
        self.journal.append(group_id, group)
        self._keep(group_id, group)
        return len(self.groups)

    async def sweep(self, completed_steps: int) -> dict[str, int]:
        """Drops groups that are too old for the step that starts at `completed_steps`; returns their ages by id."""
        policy = self.policy
        stale = {
            group_id: policy.age(completed_steps, version)
            for group_id, version in self.oldest.items()
            if policy.is_stale(completed_steps, version)
        }
        for group_id in stale:
            self._release(group_id)
        return stale

    async def take(self, count: int, completed_steps: int) -> dict[str, list[Trajectory]] | None:
        """`count` groups for one step, the oldest first; None when there are not enough. Call `sweep` before."""
        if len(self.groups) < count:
            return None
        chosen = sorted(self.oldest, key=lambda group_id: self.oldest[group_id])[:count]
        for group_id in chosen:
            if self.policy.is_stale(completed_steps, self.oldest[group_id]):
                raise RuntimeError(
                    f"Group {group_id} is stale at step {completed_steps}; sweep() must run before take()."
                )
        return {group_id: self._release(group_id) for group_id in chosen}

    async def checkpointed(self) -> None:
        """A checkpoint is safe: the journal needs only what is still kept."""
        self.journal.rewrite(self.groups)

    async def size(self) -> int:
        return len(self.groups)

    def _keep(self, group_id: str, group: list[Trajectory]) -> None:
        # Looked up several times a second, and over every sampled token.
        self.groups[group_id], self.oldest[group_id] = group, oldest(group)

    def _release(self, group_id: str) -> list[Trajectory]:
        del self.oldest[group_id]
        return self.groups.pop(group_id)


def oldest(group: list[Trajectory]) -> int:
    """The oldest weight version among all sampled tokens of a group."""
    versions = [t.oldest_version for t in group if t.oldest_version is not None]
    return min(versions) if versions else 0
