import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_cluster.datasets.text import clean
from rl_cluster.errors import ConfigError
from rl_cluster.retrieval.analysis import ANALYZERS, LONGEST_CACHED_RUN, AnalysisSettings, Analyzer
from rl_cluster.retrieval.languages import STEMMERS, analyzer_for, language_of
from rl_cluster.retrieval.lexical import LexicalIndex, LexicalSettings


def _tokens(text: str, analyzer: str) -> list[str]:
    return Analyzer(AnalysisSettings(analyzer=analyzer)).tokens(text)


@pytest.mark.parametrize(
    ("analyzer", "one", "other"),
    [
        ("en", "restarting pumps", "restart pump"),
        ("de", "Die Häuser", "Haus"),
        ("es", "las canciones", "canción"),
        ("ar", "المكتبات", "مكتبة"),
        ("hi", "लड़कियों", "लड़की"),
        ("ru", "книгами", "книга"),
        ("yo", "Ọjọ́ kẹta", "ojo keta"),
    ],
)
def test_analyzer_language_joins_forms_of_a_word(analyzer: str, one: str, other: str) -> None:
    assert _tokens(one, analyzer) == _tokens(other, analyzer)


@pytest.mark.parametrize("analyzer", ANALYZERS)
@pytest.mark.parametrize("identifier", ["PRJ-4411-B", "v2.3.1", "E_TIMEOUT"])
def test_analyzer_any_language_keeps_identifiers_whole_and_in_parts(analyzer: str, identifier: str) -> None:
    tokens = _tokens(f"x {identifier} y", analyzer)
    if analyzer == "whitespace":
        assert tokens == ["x", identifier, "y"]
        return
    assert identifier.casefold() in tokens
    part = {"PRJ-4411-B": "4411", "v2.3.1": "v2", "E_TIMEOUT": _tokens("timeout", analyzer)[0]}[identifier]
    assert part in tokens


@pytest.mark.parametrize("text", ["数据库连接超时", "データベース", "데이터베이스", "ฐานข้อมูล"])
def test_analyzer_script_without_spaces_gives_characters_and_pairs(text: str) -> None:
    tokens = _tokens(text, "words")
    assert tokens == [*text, *(text[i : i + 2] for i in range(len(text) - 1))]


def test_analyzer_identifier_inside_chinese_text_is_found() -> None:
    index = LexicalIndex.build(["请使用PRJ-4411-B配置泵", "请使用PRJ-4412-B配置泵"])
    assert [i for i, _ in index.search("PRJ-4411-B", 1)] == [0]
    assert [i for i, _ in index.search("泵", 5)] == [0, 1]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Tiếng Việt", ["tiếng", "việt"]),
        ("Ọjọ́ kẹta", ["ọjọ́", "kẹta"]),
        ("क्‍या", ["क्या"]),  # a zero width joiner inside the word
        ("\uff21\uff22\uff23\uff11\uff12", ["abc12"]),
        ("\x00nul\x00bytes", ["nul", "bytes"]),
        ("½ ² x", ["1", "2", "2", "x"]),
        ("boi\u00adler zero\u200bwidth word\u2060joiner", ["boiler", "zerowidth", "wordjoiner"]),
    ],
)
def test_analyzer_words_of_any_script_keep_their_marks(text: str, tokens: list[str]) -> None:
    assert _tokens(text, "words") == tokens


def test_analyzer_decomposed_and_composed_text_give_equal_tokens() -> None:
    assert _tokens("Cafe\u0301", "words") == _tokens("Caf\u00e9", "words")


def test_analyzer_whitespace_changes_nothing() -> None:
    assert _tokens("The Houses, of\tÀkúrẹ́!", "whitespace") == ["The", "Houses,", "of", "Àkúrẹ́!"]


def test_analyzer_cache_never_changes_tokens() -> None:
    analyzer = Analyzer(cached_runs=3)
    text = "alpha beta gamma PRJ-1 delta alpha epsilon PRJ-1"
    assert analyzer.tokens(text) == analyzer.tokens(text) == Analyzer().tokens(text)


def test_analyzer_long_run_without_spaces_is_analysed_and_not_kept() -> None:
    analyzer = Analyzer()
    query = "".join(chr(0x4E00 + i % 20_000) for i in range(32_768))
    assert len(analyzer.tokens(query)) == 2 * len(query) - 1
    assert analyzer.tokens("pump") == ["pump"]
    assert list(analyzer._cache) == ["pump"]


def test_analyzer_cache_is_bounded_by_characters_too() -> None:
    analyzer = Analyzer(cached_runs=100)
    for i in range(1000):
        run = f"{i:04d}".ljust(LONGEST_CACHED_RUN, "x")
        assert analyzer.tokens(run) == analyzer.tokens(run)
        assert sum(map(len, analyzer._cache)) <= 1600
    assert analyzer._cache


def test_analysis_settings_unknown_analyzer_is_refused() -> None:
    with pytest.raises(ConfigError, match="klingon"):
        AnalysisSettings(analyzer="klingon")


@pytest.mark.parametrize("analyzer", sorted(STEMMERS))
def test_analyzer_every_stemmer_exists(analyzer: str) -> None:
    assert _tokens("abc", analyzer)


@pytest.mark.parametrize(
    ("locales", "analyzer"),
    [
        (["en"], "en"),
        (["en-GB", "en_US", "us"], "en"),
        (["de_AT"], "de"),
        (["hi"], "hi"),
        (["zh-Hans"], "words"),
        (["jp"], "words"),
        (["yo"], "yo"),
        (["en", "de"], "words"),
        ([], "words"),
        ([""], "words"),
    ],
)
def test_analyzer_for_locales_picks_their_language(locales: list[str], analyzer: str) -> None:
    assert analyzer_for(locales) == analyzer


def test_language_of_locale_is_its_first_part() -> None:
    assert [language_of(x) for x in ("pt-BR", "EN_us", "us", "yo")] == ["pt", "en", "en", "yo"]


# Six of a kind: each question shares its words with one passage once both are analysed.
SAMPLE = {
    "de": (["Die Brücken wurden 1894 gebaut.", "Der Fluss fließt nach Norden."], "Wann baute man die Brücke?"),
    "es": (["Los puentes fueron construidos en 1894.", "El río corre al norte."], "¿Quién construyó el puente?"),
    "ar": (["بنيت المدرسة عام 1894.", "يجري النهر شمالا."], "مدرسة"),
    "hi": (["पुलों का निर्माण 1894 में हुआ।", "नदी उत्तर की ओर बहती है।"], "पुल का निर्माण"),
    "vi": (["Những cây cầu được xây năm 1894.", "Con sông chảy về phía bắc."], "cây cầu xây năm nào"),
    "zh": (["这座桥建于1894年。", "这条河向北流。"], "桥"),
    "yo": (["Afárá náà ni a kọ́ ní ọdún 1894.", "Odò náà ń ṣàn sí àríwá."], "afárá"),
}


@pytest.mark.parametrize("locale", sorted(SAMPLE))
def test_lexical_default_analyzer_of_locale_finds_the_passage(locale: str) -> None:
    texts, question = SAMPLE[locale]
    settings = LexicalSettings(analysis=AnalysisSettings(analyzer=analyzer_for([locale])))
    assert LexicalIndex.build(texts, settings).search(question, 1)[0][0] == 0


@pytest.mark.parametrize(
    ("locale", "text", "kept"),
    [
        ("ar", "المدرسة في هذه المدينة", 2),
        ("hi", "पुल का निर्माण और नदी", 3),
        ("vi", "cây cầu được xây trong những năm", 4),
        ("es", "el puente de la ciudad", 2),
        ("de", "die Brücke in der Stadt", 2),
    ],
)
def test_analyzer_of_locale_leaves_its_most_common_words_out(locale: str, text: str, kept: int) -> None:
    analyzer = Analyzer(AnalysisSettings(analyzer=analyzer_for([locale])))
    assert len(analyzer.tokens(text)) == kept
    assert len(Analyzer(AnalysisSettings(analyzer=locale, stop_words=False)).tokens(text)) == len(text.split())


@pytest.mark.parametrize("analyzer", ["en", "words", "whitespace", "hi"])
@given(word=st.text(min_size=1, max_size=12).filter(lambda word: not any(map(str.isspace, word))))
@example(word="(Studies),")
@example(word="v2.3.1.")
@example(word="PRJ-4411-B")
@settings(max_examples=60, deadline=None)
def test_analyzer_word_alone_gives_the_tokens_it_has_in_a_text(analyzer: str, word: str) -> None:
    analysed, visible = Analyzer(AnalysisSettings(analyzer=analyzer)), clean(word)
    found = analysed.tokens_of_seldom(word)
    assert found is None if not visible else found is not None and list(found) == analysed.tokens(visible)
