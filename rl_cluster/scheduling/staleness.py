"""How old the data of a training step may be, and how many new groups may start.

Invariants:
- age(group) = completed training steps when its step starts - the oldest weight version among its sampled tokens.
- No group of an age over S = `max_steps_off_policy` is trained; S = 0 means synchronous training.
- At most (S + 1) * B groups are open (started, and neither trained nor dropped), B being the groups per step. Trained
  in the order of their start, all of them keep to S: the group behind `open` others is trained `open // B` steps
  from now.
- Weights that lag behind the completed steps take their lag off that bound, so that with S = 0 nothing starts between
  the end of a step and the arrival of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_cluster.errors import ConfigError


@dataclass(frozen=True)
class StalenessPolicy:
    """max_steps_off_policy >= 0 (S), in training steps; groups_per_step >= 1 (B). ConfigError otherwise.

    The policy holds no counters: they are arguments, so that a resumed run cannot restart one of them alone.
    """

    max_steps_off_policy: int
    groups_per_step: int

    def __post_init__(self) -> None:
        if self.max_steps_off_policy < 0:
            raise ConfigError(f"max_steps_off_policy={self.max_steps_off_policy} must be >= 0; 0 means synchronous.")
        if self.groups_per_step < 1:
            raise ConfigError(f"groups_per_step={self.groups_per_step} must be >= 1.")

    @property
    def max_open_groups(self) -> int:
        """(S + 1) * B."""
        return (self.max_steps_off_policy + 1) * self.groups_per_step

    def age(self, completed_steps: int, oldest_version: int) -> int:
        """Age in steps of a group trained next; ValueError for a version that no completed step has made.

        Such a version comes from steps that a crash undid: the group belongs to weights that no longer exist.
        """
        if not 0 <= oldest_version <= completed_steps:
            raise ValueError(
                f"Weight version {oldest_version} is not among the versions 0 to {completed_steps} of this run; "
                "drop what was sampled before the restart."
            )
        return completed_steps - oldest_version

    def is_stale(self, completed_steps: int, oldest_version: int) -> bool:
        """Whether a group would be too old for the step that starts after `completed_steps`."""
        return self.age(completed_steps, oldest_version) > self.max_steps_off_policy

    def oldest_admissible(self, completed_steps: int, open_groups: int) -> int | None:
        """The oldest version from which at least one group may start now (see `admissible`); None when none may."""
        free = self.max_open_groups - open_groups
        return None if free <= 0 else max(0, completed_steps - (free - 1) // self.groups_per_step)

    def admissible(self, completed_steps: int, open_groups: int, synced_version: int | None = None) -> int:
        """How many groups may start now, >= 0.

        open_groups: started and neither trained nor dropped; a group is open until the step that trains it is complete.
        synced_version: the version that a group started now would be sampled from; None for the newest. It is never
        over `completed_steps` (ValueError).
        """
        lag = 0 if synced_version is None else self.age(completed_steps, synced_version)
        return max(0, self.max_open_groups - lag * self.groups_per_step - open_groups)
