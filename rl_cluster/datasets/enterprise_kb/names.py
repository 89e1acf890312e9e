"""Names that a collection grows by: identifiers, hosts, people, error codes, versions."""

from __future__ import annotations

from random import Random


def words(text: str) -> tuple[str, ...]:
    """The words of `text`: tables of names are easier to read and to extend as running text."""
    return tuple(text.split())


PREFIXES = words("""ORN TVB KLD MRX QSF BWN ZPT HGL VDC NKR FJM LTS DXA RPO CYE GUB SWI JHN PQV EMZ WTA XLO BKI URD""")
# Letters that are hard to mistake for digits or for each other.
SUFFIXES = "ABCDEFGHKLMNPRSTVWXYZ"

_FIRST = words("""Ada Alma Anton Asha Bela Boris Carla Cem Clara Dario Dina Edda Emil Enzo Farah Finn Greta Hana Hugo Ida Igor Ines
    Ivo Jana Jonas Kaja Karim Lena Leo Lina Luca Mara Marek Mila Nadia Nils Nora Olaf Olga Omar Otto Paula Pavel Rosa
    Ruth Samir Selma Sven Tara Theo Tilda Uma Vera Viktor Wanda Yara Yusuf Zoe""")
_ONSETS = words("b br d dr f fl g gr h j k kr l m n p pr r s sch st t tr v w z")
_VOWELS = words("a e i o u au ei ie oe")
_CODAS = words("ck l ll m n nd ng r rt s st t tz")
_ENDINGS = words("er mann sen ski berg feld ini ova ez ard ley son")

ERROR_STEMS = words("""TIMEOUT REFUSED CHECKSUM OVERFLOW DENIED MISSING LOCKED EXPIRED PARITY STALLED UNDERRUN MISMATCH OFFLINE DRIFT QUOTA
    HANDSHAKE REJECTED""")


def identifier(prefix_index: int, number: int, suffix_index: int) -> str:
    """An identifier like `ORN-4711-K`."""
    return f"{PREFIXES[prefix_index]}-{number:04d}-{SUFFIXES[suffix_index]}"


def person(rng: Random) -> str:
    """A first name and a surname; surnames come from about 40,000 forms, so that the vocabulary goes on growing."""
    surname = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
    if rng.random() < 0.4:
        surname += rng.choice(_VOWELS) + rng.choice(_CODAS)
    return f"{rng.choice(_FIRST)} {(surname + rng.choice(_ENDINGS)).capitalize()}"


def host(rng: Random) -> str:
    """A host name like `srv-kiel-0412x`."""
    return f"{rng.choice(_HOST_ROLES)}{rng.choice(_ONSETS)}{rng.choice(_VOWELS)}{rng.randrange(100, 10_000)}"


_HOST_ROLES = words("app db edge gw hub node srv")


def error_code(rng: Random) -> str:
    """An error code like `E_TIMEOUT_204`."""
    return f"E_{rng.choice(ERROR_STEMS)}_{rng.randrange(100, 1000)}"


def version(rng: Random) -> str:
    """A version like `v4.12.3`."""
    return f"v{rng.randrange(1, 10)}.{rng.randrange(0, 30)}.{rng.randrange(0, 12)}"


def ticket(rng: Random) -> str:
    """A ticket number like `T482913`."""
    return f"T{rng.randrange(10_000, 10_000_000)}"


def date(rng: Random) -> str:
    """A date without year, like `14 March`."""
    return f"{rng.randrange(1, 29)} {rng.choice(_MONTHS)}"


_MONTHS = words("January February March April May June July August September October November December")
