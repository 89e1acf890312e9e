"""What an evaluation has played so far, on disk part by part: a failure costs the part that it stood in, and no other.

A part is one system on one question set, undisturbed or under one drift. Invariants: a part is on disk whole or not at all, with
the settings that its numbers depend on; only a part of exactly these settings is read back; a folder that holds anything else
is refused before anything is played, and never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from rl_cluster.errors import ConfigError
from rl_cluster.evaluation.files import write_whole
from rl_cluster.evaluation.summary import EpisodeRecord

UNDISTURBED, DRIFTED = "undisturbed", "drift"


class Part(NamedTuple):
    """`drift` is None for the undisturbed run."""

    system: str
    dataset: str
    drift: str | None


@dataclass
class KeptPart:
    """Records of a part's episodes, the samples of a question side by side, and by task id how its first episode is shown.

    `applies` is False where the system cannot meet the drift; there are no episodes then.
    """

    records: list[EpisodeRecord] = field(default_factory=list)
    views: dict[str, Any] = field(default_factory=dict)
    applies: bool = True

    @property
    def lost(self) -> list[int]:
        """Places of the episodes that the infrastructure failed."""
        return [place for place, record in enumerate(self.records) if record.outcome.is_infrastructure_failure]


class KeptParts:
    """`undisturbed/SYSTEM/SET.json` and `drift/DRIFT/SYSTEM/SET.json` in the folder `evaluations` of `output`.

    `settings`: of every part of the evaluation, what its numbers depend on, by dotted names, as JSON types.
    """

    def __init__(self, output: Path, settings: Mapping[Part, Mapping[str, Any]]) -> None:
        self.output = output
        self.folder = output / "evaluations"
        self.settings = settings
        self._lost: dict[Part, int] = {}
        """Episodes lost to infrastructure, of the parts that are on disk."""

    def open(self, resume: Literal["auto", "never"]) -> None:
        """Looks at what is on disk. Raises ConfigError where that is no beginning of this evaluation, or may not be continued."""
        expected = {self.path(part): part for part in self.settings}
        found = sorted(self.folder.rglob("*.json"))
        other = ["report.json"] if not found and (self.output / "report.json").exists() else []
        mend = "choose another run_name or output_dir"
        if resume == "never" and (found or other):
            raise ConfigError(
                f"output_dir={self.output} holds an evaluation; set resume=auto to continue it, or {mend}."
            )
        other += [str(path.relative_to(self.output)) for path in found if path not in expected]
        if other:
            raise ConfigError(
                f"output_dir={self.output} holds {other[0]}, which is no part of this evaluation; {mend}."
            )
        for path in found:
            part = expected[path]
            before, kept = _read(path)
            now = _as_json(self.settings[part])
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) != now.get(name):
                    raise ConfigError(
                        f"{path} was made with {name}={before.get(name)}, this evaluation asks for {now.get(name)}; continue with the "
                        f"former, or {mend}."
                    )
            self._lost[part] = len(kept.lost)

    @property
    def summary(self) -> str:
        """One line on what is read back; empty where nothing is."""
        if not self._lost:
            return ""
        lost = sum(self._lost.values())
        again = f"; {lost} episodes of them that infrastructure failed are played again" if lost else ""
        return f"{len(self._lost)} of {len(self.settings)} parts are read back from {self.folder}{again}"

    def is_whole(self, part: Part) -> bool:
        """Whether nothing of the part is left to play: it is on disk, and no episode of it was lost to infrastructure."""
        return self._lost.get(part) == 0

    def read(self, part: Part) -> KeptPart | None:
        """None where the part is not on disk."""
        return _read(self.path(part))[1] if part in self._lost else None

    def write(self, part: Part, kept: KeptPart) -> None:
        """Returns when the part is on disk, in place of a former one."""
        content = {**part._asdict(), "settings": self.settings[part], **msgspec.to_builtins(kept)}
        write_whole(self.path(part), json.dumps(content))
        self._lost[part] = len(kept.lost)

    def path(self, part: Part) -> Path:
        """Where a part is kept; names of sets have slashes, which file names cannot have."""
        world = Path(DRIFTED, part.drift) if part.drift is not None else Path(UNDISTURBED)
        return self.folder / world / part.system / f"{quote(part.dataset, safe=' ')}.json"


def _read(path: Path) -> tuple[dict[str, Any], KeptPart]:
    """The settings that a part was made with, and the part."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return dict(content["settings"]), msgspec.convert(dict(content), KeptPart)
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it to play this part again.") from error


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(settings))
