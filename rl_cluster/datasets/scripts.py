"""Which characters make up words, in scripts with spaces between words and in those without."""

from __future__ import annotations

import unicodedata

# Blocks of scripts that are written without spaces, and Hangul, whose words carry their particles with them.
_UNSPACED_BLOCKS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # iteration marks of Han
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),  # Hangul
    (0xF900, 0xFAFF),
)
JOINERS = "\u200c\u200d"  # they shape the letters of one word in Indic and Arabic scripts
_ASTRAL_HAN = "\U00020000-\U0003ffff"
_ASTRAL_WORDS = "\U00010000-\U0001cfff"


def _classes() -> tuple[str, str, str]:
    """Character classes of a regular expression: (letters, digits and marks of spaced scripts, of unspaced ones, and
    format characters, which are never seen).

    They are spelt out because Python's `\\w` leaves combining marks out, which would cut Indic words in pieces; a class
    of this form is also faster than a negated one.
    """
    found: tuple[list[list[int]], ...] = ([], [], [])
    for code in range(0x10000):
        char = chr(code)
        category = unicodedata.category(char)
        if char.isalnum() or category in ("Mn", "Mc") or char in JOINERS:
            number = int(not char.isdigit() and any(low <= code <= high for low, high in _UNSPACED_BLOCKS))
        elif category == "Cf":
            number = 2
        else:
            continue
        ranges = found[number]
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    spaced, unspaced, formats = ("".join(f"\\u{low:04x}-\\u{high:04x}" for low, high in ranges) for ranges in found)
    return spaced + _ASTRAL_WORDS, unspaced + _ASTRAL_HAN, formats


SPACED, UNSPACED, FORMAT = _classes()
