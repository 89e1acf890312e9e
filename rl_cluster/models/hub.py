"""At which commit a model of the Hugging Face hub is read: its name alone does not say which weights it has."""

from __future__ import annotations

import functools
from pathlib import Path

from rl_cluster.errors import ModelError

_ANSWER_TIMEOUT_S = 10


@functools.cache  # one answer for all parts of a process, whatever is published meanwhile
def hub_commit(name: str) -> str:
    """The newest commit of `owner/name`, or where the hub does not answer, the one that is cached here. Raises ModelError."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        # The smallest file there is: what is wanted is the name of the folder.
        found = snapshot_download(name, allow_patterns=["config.json"], etag_timeout=_ANSWER_TIMEOUT_S)
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ModelError(
            f"The model {name!r} is not cached here, and the hub does not give it ({reason}); correct its name, or download it and name "
            "its folder."
        ) from error
    return Path(found).name
