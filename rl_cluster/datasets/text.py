"""Text that others wrote, made fit to be shown: no control characters, no more than a given length."""

from __future__ import annotations

import re
import unicodedata

MAX_TITLE_CHARACTERS = 300
MAX_SNIPPET_CHARACTERS = 4000
MAX_PART_CHARACTERS = 16_384
MAX_ID_CHARACTERS = 512
ID_RULE = f"write ids of one line and at most {MAX_ID_CHARACTERS} characters, without blanks at their ends"
# Marks that turn the direction of the text that follows could show one id as another.
ID_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ASCII_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]+")


def id_problem(doc_id: str) -> str:
    """Why an id cannot stand in a line of search results and be read back from there; empty where it can."""
    found = ID_BREAKS.search(doc_id)
    if found is not None:
        return f"a line break, control character or turn of direction (U+{ord(found.group()):04X}) in it"
    if len(doc_id) > MAX_ID_CHARACTERS:
        return f"{len(doc_id)} characters"
    return "a blank at an end" if doc_id != doc_id.strip() else ""


def clean(text: str) -> str:
    """`text` in one line: control and format characters out, runs of white space as one blank."""
    if text.isascii():
        return " ".join(_ASCII_CONTROLS.sub("", text).split())
    kept = (" " if char.isspace() else char for char in text if char.isspace() or unicodedata.category(char)[0] != "C")
    return " ".join("".join(kept).split())


def clean_lines(text: str) -> str:
    """As `clean`, but line by line; empty lines are left out."""
    return "\n".join(line for line in map(clean, text.splitlines()) if line)


def limited(text: str, characters: int) -> str:
    """The beginning of `text`, of at most `characters`; an ellipsis stands for what was cut."""
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "\u2026"
