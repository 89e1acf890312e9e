"""Tool-call formats: what is written can be read, and what is malformed is answered, never raised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.environments.search_tools import tool_specs
from rl_cluster.episodes.formats import detect_format, format_names, get_format
from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, find_answer
from rl_cluster.episodes.formats.json_calls import read_json_object
from rl_cluster.episodes.trajectory import ToolCall
from rl_cluster.errors import ConfigError

TOOLS = tool_specs(SearchEnvironmentSettings(max_turns=5, k=4, max_k=10).tool_settings)
NAMES = ["hermes", "llama3", "plain", "qwen3_coder"]
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
)
"""What queries of the property test leave out: the XML format has no way to write its own tags as text."""

printable = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)
queries = printable.filter(lambda text: text == text.strip() and not any(tag in text for tag in TAGS))


def only_call(reply: ParsedReply) -> ToolCall:
    assert reply.answer is None
    assert len(reply.calls) == 1
    return reply.calls[0]


def hermes(*bodies: str) -> str:
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def write(name: str, call: dict[str, object]) -> str:
    """A call in the JSON format of that name, right or wrong."""
    arguments = call.pop("arguments", None)
    key = "arguments" if name == "hermes" else "parameters"
    body = json.dumps({**call, key: arguments})
    return hermes(body) if name == "hermes" else body


def test_format_names_are_the_four_formats() -> None:
    assert format_names() == NAMES


def test_get_format_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"^model\.tool_format='xml' is unknown; choose one of auto, hermes, llama3"):
        get_format("xml")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "plain"),
        ("{% if tools %}<tools>...<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tools>...<tool_call><function=a>{% endif %}", "qwen3_coder"),
        ("{% if tools %}<|start_header_id|>ipython{% endif %}", "llama3"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}", "plain"),
        ("{% if tools %}<tool_call>{name}<arg_key>{key}</arg_key>{% endif %}", "plain"),
    ],
)
def test_detect_format_template_gives_its_format(template: str, expected: str) -> None:
    assert detect_format(template) == expected


@pytest.mark.parametrize("name", NAMES)
@given(tool=st.sampled_from([tool.name for tool in TOOLS]), query=queries, k=st.none() | st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_write_call_then_parse_gives_the_call_back(name: str, tool: str, query: str, k: int | None) -> None:
    arguments: dict[str, object] = {"query": query} if k is None else {"query": query, "k": k}
    tool_format = get_format(name)
    assert only_call(tool_format.parse(tool_format.write_call(tool, arguments), TOOLS)) == ToolCall(tool, arguments)


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(max_size=200) | st.from_regex(r"(<tool_call>|\{|bm25_search|answer: |\"name\": |[^\s]){0,12}"))
@settings(max_examples=300, deadline=None)
def test_parse_any_text_never_raises(name: str, text: str) -> None:
    reply = get_format(name).parse(text, TOOLS)
    assert reply.answer is None or not reply.calls
    for call in reply.calls:
        assert call.error is None or "\n" not in call.error


def test_plain_several_lines_give_calls_in_order() -> None:
    text = "bm25_search: ABC-1234-X runbook\nvector_search(8): pump that cools\n  bm25_search ( 2 ) : x  "
    assert get_format("plain").parse(text, TOOLS).calls == [
        ToolCall("bm25_search", {"query": "ABC-1234-X runbook"}),
        ToolCall("vector_search", {"query": "pump that cools", "k": 8}),
        ToolCall("bm25_search", {"query": "x", "k": 2}),
    ]


def test_plain_query_keeps_colons_and_brackets() -> None:
    call = only_call(get_format("plain").parse("bm25_search: error (42): disk: full", TOOLS))
    assert call == ToolCall("bm25_search", {"query": "error (42): disk: full"})


def test_plain_filter_that_holds_the_end_of_brackets_is_read() -> None:
    arguments = {"query": "q", "k": 3, "filters": {"kind": "x): (y", "{": "}"}}
    text = get_format("plain").write_call("bm25_search", arguments)
    tools = tool_specs(SearchEnvironmentSettings(max_turns=5, k=4, max_k=10, filter_fields=("kind",)).tool_settings)
    assert only_call(get_format("plain").parse(text, tools)).arguments == arguments


def test_plain_query_of_two_lines_is_written_on_one() -> None:
    text = get_format("plain").write_call("bm25_search", {"query": "a\nb\u2028c"})
    assert only_call(get_format("plain").parse(text, TOOLS)).arguments["query"] == "a b c"


def test_qwen3_coder_closing_tag_inside_a_value_makes_the_call_malformed() -> None:
    text = get_format("qwen3_coder").write_call("bm25_search", {"query": "x </parameter> y"})
    error = only_call(get_format("qwen3_coder").parse(text, TOOLS)).error
    assert error == "a </parameter> closes no parameter; write none inside a value"


def test_plain_text_around_a_call_is_ignored() -> None:
    text = "I should look for the code first.\nbm25_search: ABC-1234-X\nThat should do."
    assert only_call(get_format("plain").parse(text, TOOLS)) == ToolCall("bm25_search", {"query": "ABC-1234-X"})


def test_plain_call_beside_an_answer_is_carried_out_first() -> None:
    reply = get_format("plain").parse("bm25_search: pump\nanswer: d1 d2", TOOLS)
    assert only_call(reply).name == "bm25_search"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("web_search: pump", "there is no tool 'web_search'; use bm25_search or vector_search"),
        ("bm25_search(many): pump", "'many' is not a number"),
        ("bm25_search(-3): pump", "'-3' is not a number"),
        ("bm25_search(2.5): pump", "'2.5' is not a number"),
        ("bm25_search:", "the query is empty"),
        ("vector_search(4):   ", "the query is empty"),
    ],
)
def test_plain_malformed_call_carries_its_error(text: str, part: str) -> None:
    assert part in (only_call(get_format("plain").parse(text, TOOLS)).error or "")


@pytest.mark.parametrize("text", ["", "hello", "bm25_search", "bm25_search pump", "(bm25_search: pump)", "note: pump"])
def test_plain_without_call_or_answer_is_neither(text: str) -> None:
    assert get_format("plain").parse(text, TOOLS) == ParsedReply()


def test_plain_endless_number_is_malformed() -> None:
    call = only_call(get_format("plain").parse(f"bm25_search({'9' * 5000}): pump", TOOLS))
    assert call.error is not None


def test_hermes_several_calls_come_in_order() -> None:
    text = hermes(
        '{"name": "vector_search", "arguments": {"query": "pump", "k": 3}}',
        '{"name": "bm25_search", "arguments": {"query": "ABC"}}',
    )
    assert get_format("hermes").parse(text, TOOLS).calls == [
        ToolCall("vector_search", {"query": "pump", "k": 3}),
        ToolCall("bm25_search", {"query": "ABC"}),
    ]


def test_hermes_one_malformed_call_leaves_the_others() -> None:
    text = hermes('{"name": "bm25_search", "arguments": {"query": "ABC"}}', "{oops")
    good, bad = get_format("hermes").parse(text, TOOLS).calls
    assert good.error is None
    assert "not valid JSON" in (bad.error or "")


@pytest.mark.parametrize("end", ["\n</tool_call>\nI wait.", "</tool_call>", "\n", ""])
def test_hermes_closing_tag_inside_a_query_is_text(end: str) -> None:
    body = '{"name": "bm25_search", "arguments": {"query": "ends in </tool_call> and <tool_call>"}}'
    parsed = get_format("hermes").parse(f"<tool_call>\n{body}{end}", TOOLS)
    assert only_call(parsed) == ToolCall("bm25_search", {"query": "ends in </tool_call> and <tool_call>"})


def test_hermes_words_after_the_object_make_the_call_malformed() -> None:
    body = '{"name": "bm25_search", "arguments": {"query": "A"}} and more'
    assert "not valid JSON" in (only_call(get_format("hermes").parse(hermes(body), TOOLS)).error or "")


def test_hermes_text_around_a_call_is_ignored() -> None:
    text = "<think>\nanswer: d9\n</think>\n\nI search.\n" + hermes(
        '{"name": "bm25_search", "arguments": {"query": "A"}}'
    )
    assert only_call(get_format("hermes").parse(text + "\nThanks.", TOOLS)) == ToolCall("bm25_search", {"query": "A"})


def test_hermes_call_or_answer_inside_thinking_is_not_meant() -> None:
    draft = hermes('{"name": "bm25_search", "arguments": {"query": "A"}}')
    reply = get_format("hermes").parse(f"<think>{draft}\nanswer: d1</think>\nanswer: d2", TOOLS)
    assert reply == ParsedReply(answer="d2")


def test_hermes_thinking_that_never_ends_says_nothing() -> None:
    assert get_format("hermes").parse("<think>answer: d1", TOOLS) == ParsedReply()


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_thinking_opened_by_the_template_says_nothing(name: str) -> None:
    assert get_format(name).parse("answer: d1</think>\nanswer: d2", TOOLS).answer == "d2"
    assert get_format(name).parse("answer: d1</think>", TOOLS) == ParsedReply()


def test_qwen3_coder_several_calls_and_text_around_them_come_in_order() -> None:
    format_ = get_format("qwen3_coder")
    text = "First.\n" + format_.write_call("bm25_search", {"query": "a <b", "k": 3}) + "\nThen.\n"
    text += format_.write_call("vector_search", {"query": "two\nlines"})
    assert format_.parse(text, TOOLS).calls == [
        ToolCall("bm25_search", {"query": "a <b", "k": 3}),
        ToolCall("vector_search", {"query": "two\nlines"}),
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("<tool_call>\n<function=bm25_search>\n<parameter=query>\nabc", "cut off"),
        ("<tool_call>\n<function=bm25_search>\n<parameter=query>\nabc\n</parameter>\n", "cut off"),
        ("<tool_call>\nbm25_search(abc)\n</tool_call>", "names no function"),
        ("<function=web>\n</function>", "there is no tool 'web'"),
        ("<function=bm25_search>\n</function>", "'query' is missing"),
        (
            "<function=bm25_search><parameter=query>a</parameter><parameter=k>many</parameter></function>",
            "whole number",
        ),
        (
            "<function=bm25_search><parameter=query>a</parameter><parameter=page>2</parameter></function>",
            "no argument 'page'",
        ),
    ],
)
def test_qwen3_coder_malformed_call_carries_its_error(text: str, part: str) -> None:
    error = only_call(get_format("qwen3_coder").parse(text, TOOLS)).error
    assert error is not None
    assert part in error


def test_hermes_call_cut_off_is_malformed() -> None:
    call = only_call(get_format("hermes").parse('<tool_call>\n{"name": "bm25_search", "argum', TOOLS))
    assert "not valid JSON" in (call.error or "")


def test_hermes_whole_json_without_closing_tag_is_a_call() -> None:
    text = '<tool_call>\n{"name": "bm25_search", "arguments": {"query": "A"}}'
    assert only_call(get_format("hermes").parse(text, TOOLS)) == ToolCall("bm25_search", {"query": "A"})


def test_llama3_python_tag_before_a_call_is_dropped() -> None:
    text = '<|python_tag|>{"name": "bm25_search", "parameters": {"query": "A"}}'
    assert only_call(get_format("llama3").parse(text, TOOLS)) == ToolCall("bm25_search", {"query": "A"})


@pytest.mark.parametrize("separator", ["; ", "\n", "", " and then "])
def test_llama3_several_calls_are_read_in_order(separator: str) -> None:
    calls = [{"name": "bm25_search", "parameters": {"query": query}} for query in ("A {x}", "B")]
    parsed = get_format("llama3").parse(separator.join(map(json.dumps, calls)), TOOLS)
    assert parsed == ParsedReply([ToolCall("bm25_search", {"query": query}) for query in ("A {x}", "B")])


@pytest.mark.parametrize("around", ["{}", "I will search. {}", "<|python_tag|>{}", "{}; {}", "{}\n{}"])
def test_llama3_call_with_its_type_first_is_read_as_others_are(around: str) -> None:
    call = json.dumps({"type": "function", "name": "bm25_search", "parameters": {"query": "A"}})
    wanted = [ToolCall("bm25_search", {"query": "A"})] * around.count("{}")
    assert get_format("llama3").parse(around.format(*[call] * len(wanted)), TOOLS) == ParsedReply(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_parse_call_in_thinking_is_no_call(name: str) -> None:
    thought = get_format(name).write_call("bm25_search", {"query": "pump"})
    reply = f"<think>\nI could do\n{thought}\n</think>\nanswer: d1"
    assert get_format(name).parse(reply, TOOLS) == ParsedReply(answer="d1")


def test_llama3_second_call_cut_off_leaves_the_first() -> None:
    text = '{"name": "bm25_search", "parameters": {"query": "A"}}; {"name": "bm25_search", "parameters": {"que'
    first, second = get_format("llama3").parse(text, TOOLS).calls
    assert first == ToolCall("bm25_search", {"query": "A"})
    assert "not valid JSON" in (second.error or "")


def test_llama3_call_cut_off_is_malformed() -> None:
    call = only_call(get_format("llama3").parse('{"name": "bm25_search", "parameters": {"que', TOOLS))
    assert "not valid JSON" in (call.error or "")


@pytest.mark.parametrize("key", ["parameters", "arguments"])
def test_llama3_text_around_a_call_is_passed_over(key: str) -> None:
    text = f'Let me search {{now}}. {{"name": "bm25_search", "{key}": {{"query": "A"}}}} answer: d1'
    assert get_format("llama3").parse(text, TOOLS) == ParsedReply([ToolCall("bm25_search", {"query": "A"})])


@pytest.mark.parametrize("name", ["hermes", "llama3"])
@pytest.mark.parametrize(
    ("call", "part"),
    [
        ({"name": "web_search", "arguments": {"query": "A"}}, "there is no tool 'web_search'"),
        ({"name": "bm25_search", "arguments": ["A"]}, "must be an object"),
        ({"name": "bm25_search", "arguments": "A"}, "must be an object"),
        ({"name": "bm25_search", "arguments": {}}, "'query' is missing"),
        ({"name": "bm25_search", "arguments": {"query": 7}}, "'query' must be of type str"),
        ({"name": "bm25_search", "arguments": {"query": None}}, "'query' must be of type str"),
        ({"name": "bm25_search", "arguments": {"query": "A", "k": "4"}}, "'k' must be of type int"),
        ({"name": "bm25_search", "arguments": {"query": "A", "k": 4.0}}, "'k' must be of type int"),
        ({"name": "bm25_search", "arguments": {"query": "A", "k": True}}, "'k' must be of type int"),
        ({"name": "bm25_search", "arguments": {"query": "A", "top": 4}}, "there is no argument 'top'"),
        ({"name": 7, "arguments": {"query": "A"}}, 'must be an object with a "name"'),
        ({"arguments": {"query": "A"}}, 'must be an object with a "name"'),
    ],
)
def test_json_formats_wrong_call_says_how_to_mend_it(name: str, call: dict[str, object], part: str) -> None:
    assert part in (only_call(get_format(name).parse(write(name, dict(call)), TOOLS)).error or "")


@pytest.mark.parametrize("name", ["hermes", "llama3"])
@pytest.mark.parametrize(
    "body",
    [
        "{'name': 'bm25_search'}",
        "{",
        '{"a":' * 5000,
        '{"name": "bm25_search", "parameters": {"query": "A", "k": ' + "9" * 5000 + "}}",
        '{"name": "bm25_search", "arguments": {"query": "\\ud800"}, "parameters": {"query": "\\ud800"}}',
        '{"name": "bm25_search", "arguments": {"query": "A", "k": 1e400}, "parameters": {"query": "A", "k": 1e400}}',
    ],
    ids=["quotes", "brace", "nesting", "digits", "surrogate", "infinity"],
)
def test_json_formats_unreadable_call_is_malformed(name: str, body: str) -> None:
    call = only_call(get_format(name).parse(hermes(body) if name == "hermes" else body, TOOLS))
    assert call.error is not None
    assert "\n" not in call.error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("answer: d1 d2", "d1 d2"),
        ("Answer : d1, d2", "d1, d2"),
        ("I think so.\n  ANSWER: d1\nbye", "d1"),
        ("answer: d1\nanswer: d2", "d2"),
        ("answer:", ""),
        ("answer: a:b", "a:b"),
        ("the answer: d1", None),
        ("answers: d1", None),
        ("answer d1", None),
    ],
)
def test_parse_answer_last_line_counts(name: str, text: str, expected: str | None) -> None:
    assert find_answer(text) == expected
    assert get_format(name).parse(text, TOOLS) == ParsedReply(answer=expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["bm25_search(", "bm25_search", "<think>", "bm25_search() ", "bm25_search(8) : ("])
@pytest.mark.parametrize("filler", [" ", ")", ") ", "<think>", "(", "\t:"])
def test_parse_reply_that_repeats_itself_takes_no_longer_than_it_is(name: str, text: str, filler: str) -> None:
    """A pattern that tries every way to share the blanks out would not end within this test's time."""
    assert isinstance(get_format(name).parse(text + filler * 100_000, TOOLS), ParsedReply)


def test_plain_filter_with_a_bracket_inside_is_read() -> None:
    filters = {"type": "object", "description": "fields"}
    properties = {"query": {"type": "string"}, "k": {"type": "integer"}, "filters": filters}
    tool = ToolSpec("bm25_search", "Finds.", {"type": "object", "required": ["query"], "properties": properties})
    call = only_call(get_format("plain").parse('bm25_search (3, {"year": "a)b"}) : pump (old)', [tool]))
    assert call.arguments == {"query": "pump (old)", "k": 3, "filters": {"year": "a)b"}}
    assert call.error is None


OWN_TOOL = ToolSpec(
    "weigh",
    "Weighs.",
    {
        "type": "object",
        "required": ["what"],
        "properties": {
            "what": {"type": "string"},
            "least": {"type": "number"},
            "exact": {"type": "boolean"},
            "units": {"type": "array"},
            "any": {"description": "whatever"},
        },
    },
)


@pytest.mark.parametrize("name", ["hermes", "llama3", "qwen3_coder"])
def test_tool_with_arguments_of_any_json_type_is_called_as_it_was_written(name: str) -> None:
    arguments: dict[str, Any] = {"what": "pump", "least": 1.5, "exact": True, "units": ["kg"], "any": "x"}
    call = only_call(get_format(name).parse(get_format(name).write_call("weigh", arguments), [OWN_TOOL]))
    assert (call.arguments, call.error) == (arguments, None)
    wrong = only_call(
        get_format(name).parse(get_format(name).write_call("weigh", {"what": "x", "least": True}), [OWN_TOOL])
    )
    assert "'least'" in (wrong.error or "")


def test_plain_tool_without_a_number_is_described_and_called() -> None:
    plain = get_format("plain")
    assert "weigh: " in plain.instructions([OWN_TOOL])
    assert only_call(plain.parse("weigh: pump", [OWN_TOOL])).arguments == {"what": "pump"}
    assert "is not known here" in (only_call(plain.parse("weigh(8): pump", [OWN_TOOL])).error or "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["<function=", "<function=x ", "<function=bm25_search><parameter="])
def test_qwen3_coder_tags_that_never_close_are_passed_over_once(text: str) -> None:
    """Were the end of each looked for in all that follows, this would take minutes."""
    calls = get_format("qwen3_coder").parse("<function=bm25_search>" + text * 100_000, TOOLS).calls
    assert calls[0].name == "bm25_search"
    assert calls[0].error is not None


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_number_that_json_does_not_have_makes_a_call_malformed(number: str) -> None:
    call = f'{{"name": "bm25_search", "arguments": {{"query": "a", "filters": {{"year": {number}}}}}}}'
    error = only_call(get_format("hermes").parse(f"<tool_call>{call}</tool_call>", TOOLS)).error
    assert error is not None
    assert "NaN, a number that is too long" in error
    assert read_json_object(f'{{"year": {number}}}') is None
    assert read_json_object('{"year": 2.5}') == {"year": 2.5}
