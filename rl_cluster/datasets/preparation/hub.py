"""Data sets from the Hugging Face hub, fetched into its own cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rl_cluster.datasets.preparation.converter import Card
from rl_cluster.datasets.preparation.source import Source, merge_sources, open_source
from rl_cluster.errors import DataError

HUB = "hub"
"""The source that stands for a set's own published repositories."""
_ANSWER_TIMEOUT_S = 10
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def locate(source: str, card: Card, revision: str | None) -> Source:
    """A folder, a zip archive, a hub id, or `hub` for the set's own repositories.

    `revision` is a commit of the hub; without one, the commit that the set's card pins for its own repositories. Raises
    DataError, one sentence, where `source` is none of them or the hub does not answer.
    """
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".zip"):
        return open_source(path)
    if source == HUB and not card.hub:
        raise DataError("source=hub: this data set has no repository on the hub; download it and give its folder.")
    wanted = list(card.hub) if source == HUB else [source]
    if source.startswith(("/", ".", "~")) or not all(_ID.fullmatch(repository) for repository in wanted):
        raise DataError(
            f"source={source}: it is neither a folder, a zip archive nor a hub id (owner/name); correct it."
        )
    if revision is None and set(wanted) <= set(card.hub):
        revision = card.revision
    parts = [open_source(_fetch(name, revision, card.hub_files), name.partition("/")[2]) for name in wanted]
    merged = merge_sources(parts)
    merged.kind, merged.where = HUB, ", ".join(wanted)
    return merged


def _fetch(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        chosen = list(patterns) or None
        return Path(
            snapshot_download(
                repository,
                repo_type="dataset",
                revision=revision,
                allow_patterns=chosen,
                etag_timeout=_ANSWER_TIMEOUT_S,
            )
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, OSError, ValueError) as error:
        at = f" at revision {revision}" if revision else ""
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"source={repository}: it is no folder here, and the hub does not give it{at} ({reason}); download it and give its "
            "folder."
        ) from error
