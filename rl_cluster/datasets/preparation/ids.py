"""Ids of documents as a search can show them: some published ones are paths or titles with characters that would break its lines."""

from __future__ import annotations

import hashlib

from rl_cluster.datasets.text import ID_BREAKS, MAX_ID_CHARACTERS, id_problem

_DIGITS = 16


def document_id(published: str) -> str:
    """`published` where a corpus takes it; otherwise without control characters, line breaks and blanks at its ends.

    An id that is too long keeps its beginning, and a digest of all of it, so that two of them stay apart. Gold ids and those of
    documents come through here alike.
    """
    if not id_problem(published):
        return published
    cleaned = ID_BREAKS.sub(" ", published).strip()
    if len(cleaned) <= MAX_ID_CHARACTERS:
        return cleaned
    digest = hashlib.sha256(cleaned.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{cleaned[: MAX_ID_CHARACTERS - _DIGITS - 1].rstrip()}-{digest}"
