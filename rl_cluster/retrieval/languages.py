"""What differs between languages in word search: stemmer, stop words, marks, and the locales that mean a language.

A language that is not listed is analysed as plain Unicode words, without stemming and stop words. Chinese, Japanese,
Korean and Thai text needs no entry: their scripts are cut into overlapping pairs wherever they occur.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from rl_cluster.retrieval import stop_words


def _load_stop_words() -> ModuleType:
    """The lists in bm25s, without importing bm25s itself: it loads numba, which a process that serves has no use for."""
    package = find_spec("bm25s")
    assert package is not None
    assert package.submodule_search_locations
    spec = spec_from_file_location("_bm25s_stopwords", Path(package.submodule_search_locations[0]) / "stopwords.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stopwords = _load_stop_words()
# Language code (ISO 639-1) -> Snowball stemmer. Vietnamese and Yoruba do not inflect by endings and need none;
# compared without their marks, Vietnamese words would be mixed up.
STEMMERS = {
    "ar": "arabic",
    "ca": "catalan",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "eu": "basque",
    "fi": "finnish",
    "fr": "french",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "ne": "nepali",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
}
STOP_WORDS = {
    "ar": stop_words.ARABIC,
    "da": stopwords.STOPWORDS_DANISH,
    "de": stopwords.STOPWORDS_GERMAN,
    "en": stopwords.STOPWORDS_EN,
    "es": stopwords.STOPWORDS_SPANISH,
    "fr": stopwords.STOPWORDS_FRENCH,
    "hi": stop_words.HINDI,
    "it": stopwords.STOPWORDS_ITALIAN,
    "nl": stopwords.STOPWORDS_DUTCH,
    "no": stopwords.STOPWORDS_NORWEGIAN,
    "pt": stopwords.STOPWORDS_PORTUGUESE,
    "ru": stopwords.STOPWORDS_RUSSIAN,
    "sv": stopwords.STOPWORDS_SWEDISH,
    "tr": stopwords.STOPWORDS_TURKISH,
    "vi": stop_words.VIETNAMESE,
}
# Languages that are often written without the marks on their letters: words are compared without them. Not
# so Vietnamese, whose marks tell words apart.
UNMARKED = frozenset({"ig", "yo"})
LANGUAGES = tuple(sorted({*STEMMERS, *STOP_WORDS, *UNMARKED}))
# Names that data sets use for a market or a country instead of a language.
_MARKETS = {"us": "en", "gb": "en", "jp": "ja", "cn": "zh", "tw": "zh", "kr": "ko", "br": "pt", "nb": "no", "nn": "no"}


def language_of(locale: str) -> str:
    """The language code of a locale such as `en`, `en-GB`, `pt_BR`, `us` or `jp`; `""` for an empty one."""
    code = locale.replace("_", "-").split("-")[0].strip().lower()
    return _MARKETS.get(code, code)


def analyzer_for(locales: Iterable[str]) -> str:
    """The name of the analyser that fits texts of these locales: of their language, or `words` where they differ."""
    languages = {language_of(locale) for locale in locales}
    language = languages.pop() if len(languages) == 1 else ""
    return language if language in LANGUAGES else "words"
