"""Complete training rows of scripted episodes for every kind of chat template, kept as files.

A change of a single id, mask, log-prob, version or turn fails here. After a change that is meant, write the files anew
with `python -m tests.unit.test_golden_rows` and read the difference.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.environments.search import SearchEnvironment
from rl_cluster.episodes.episode import EpisodeLimits, EpisodeParts, run_episode
from rl_cluster.episodes.formats import detect_format, get_format
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.errors import Outcome
from rl_cluster.models.source import resolve_model
from rl_cluster.rewards import get_reward
from rl_cluster.sequences.extension import rows_from_trajectory
from tests.helpers.templates import HERMES, HERMES_STRIPPING, LLAMA3, QWEN3_CODER
from tests.unit.test_episode import SETTINGS, TASK, Policy, Service

GOLDEN = Path(__file__).parent / "golden"
KINDS = {
    "plain": None,
    "hermes": HERMES,
    "hermes_stripping": HERMES_STRIPPING,
    "qwen3_coder": QWEN3_CODER,
    "llama3": LLAMA3,
}
SCRIPTS = ("malformed", "several_calls", "broken_json", "cut_call")
CUT_AFTER = 80
"""Tokens: the other calls, with thinking before them, are shorter."""
THINKING = "<think>\nThe pump has a runbook.\n</think>\n\n"


def golden_file(kind: str, script: str) -> Path:
    return GOLDEN / f"{kind}.{script}.json"


@cache
def tokenizer_of(kind: str) -> Any:
    """That of the bundled model, with the chat template of a kind."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve_model("bundled:smollm2-135m-instruct"))
    if (template := KINDS[kind]) is not None:
        tokenizer.chat_template = template
    if kind == "llama3":
        names = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
        tokenizer.add_special_tokens({"additional_special_tokens": names})
        tokenizer.eos_token = "<|eot_id|>"
    return tokenizer


def rows_of(kind: str, script: str) -> list[dict[str, Any]]:
    """`malformed`: a call after some thinking, one of a tool that there is not, the answer. `several_calls`: words and two calls
    in one turn, sampled a character a token, one more call, and an answer among words. `broken_json`: a call whose JSON is none,
    after some thinking, the same mended, the answer. `cut_call`: a call after some thinking, and one that the limit of a reply cuts.
    """
    tokenizer = tokenizer_of(kind)
    name = detect_format(str(tokenizer.chat_template))
    format_ = get_format(name)
    renderer = ChatRenderer(tokenizer, format_.observation_role, format_.uses_template_tools)
    thinking = THINKING if "<think>" in (KINDS[kind] or "") or kind.startswith("hermes") else ""
    call = format_.write_call("vector_search", {"query": "north pump", "k": 2})
    filtered = format_.write_call("vector_search", {"query": "north pump", "k": 2, "filters": {"year": 2024}})
    long = format_.write_call("vector_search", {"query": "north pump " * CUT_AFTER, "k": 2})
    scripts = {
        "malformed": [thinking + call, call.replace("vector_search", "web_search"), "answer: d1 d2"],
        "several_calls": [f"{thinking}Both at once.\n{call}\n{call}", call, "They fit.\nanswer: d1 d2"],
        "broken_json": [thinking + filtered.replace("2024}", "}"), filtered, "answer: d1 d2"],
        "cut_call": [thinking + call, long],
    }
    policy = Policy(tokenizer, list(scripts[script]), odd=script == "several_calls")
    parts = EpisodeParts(policy, renderer, format_, get_reward("ndcg"), "worker")
    most = CUT_AFTER if script == "cut_call" else 512
    limits = EpisodeLimits(sampling_max_tokens=most, max_sequence_length=4096, temperature=1.0, top_p=1.0)
    settings = replace(SETTINGS, filter_fields=("year",)) if script == "broken_json" else SETTINGS
    environment = SearchEnvironment(TASK, settings, format_, Service())
    trajectory = asyncio.run(run_episode(parts, TASK, environment, limits, "group", attempt=0, index_id="index"))
    assert len(trajectory.turns) == len(scripts[script])
    assert trajectory.outcome is (Outcome.TOKEN_LIMIT if script == "cut_call" else Outcome.FINISHED)
    return [
        {
            "text": tokenizer.decode(row.token_ids),
            "trained_text": tokenizer.decode(row.token_ids[row.loss_mask]),
            "token_ids": row.token_ids.tolist(),
            "loss_mask": "".join("1" if trained else "0" for trained in row.loss_mask),
            "behaviour_logprobs": [round(float(value), 6) for value in row.behaviour_logprobs],
            "weight_versions": row.weight_versions.tolist(),
            "turn_index": row.turn_index.tolist(),
        }
        for row in rows_from_trajectory(trajectory).rows
    ]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_scripted_episode_equal_the_golden_file(kind: str, script: str) -> None:
    assert rows_of(kind, script) == json.loads(golden_file(kind, script).read_text())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hermes_stripping"])
def test_rows_one_row_holds_the_whole_episode_and_trains_what_was_sampled(kind: str) -> None:
    """What was sampled, thinking included, is extended and never rendered again."""
    (row,) = json.loads(golden_file(kind, "malformed").read_text())
    assert row["trained_text"].count("answer: d1 d2") == 1
    assert "error: there is no tool 'web_search'" in row["text"]
    assert "error:" not in row["trained_text"]
    assert ("<think>" in row["trained_text"]) is kind.startswith("hermes")


def test_rows_stripped_thinking_opens_a_row_and_the_turns_after_it_extend_that() -> None:
    first, second = json.loads(golden_file("hermes_stripping", "malformed").read_text())
    assert "The pump has a runbook." in first["trained_text"]
    assert "The pump has a runbook." not in second["text"]
    assert set(first["turn_index"]) == {0}
    assert set(second["turn_index"]) == {1, 2}
    assert second["trained_text"].count("answer: d1 d2") == 1
    assert "vector_search" not in second["trained_text"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hermes_stripping"])
def test_rows_several_calls_in_a_turn_are_answered_together_and_never_encoded_again(kind: str) -> None:
    (row,) = json.loads(golden_file(kind, "several_calls").read_text())
    assert row["text"].count("d1 | Runbook | the north pump") == 3
    trained = row["loss_mask"].count("1")
    assert trained > 0.9 * len(
        row["trained_text"].replace("<|im_end|>", "").replace("<|eot_id|>", "")
    )  # a token a character


@pytest.mark.parametrize("kind", KINDS)
def test_rows_call_of_broken_json_is_trained_as_sampled_and_its_answer_is_not(kind: str) -> None:
    rows = json.loads(golden_file(kind, "broken_json").read_text())
    first, last = rows[0], rows[-1]
    assert '{"year": }' in first["trained_text"]
    assert '{"year": 2024}' in last["trained_text"]
    told = "the call is not valid JSON" if kind in ("hermes", "hermes_stripping", "llama3") else "JSON object"
    assert last["text"].count("error: ") == last["text"].count(told) == 1
    assert "error: " not in "".join(row["trained_text"] for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_call_cut_by_the_limit_is_trained_to_its_last_token_and_nothing_follows_it(kind: str) -> None:
    last = json.loads(golden_file(kind, "cut_call").read_text())[-1]
    assert last["loss_mask"].endswith("0" + "1" * CUT_AFTER)
    assert last["trained_text"].endswith((" north", " pump"))
    assert last["text"].count("d1 | Runbook | the north pump") == 1


if __name__ == "__main__":
    for each in KINDS:
        for script in SCRIPTS:
            lines = (
                json.dumps(rows_of(each, script), ensure_ascii=False)
                .replace("}, {", "},\n{")
                .replace('", "', '",\n "')
                .replace('], "', '],\n "')
            )
            golden_file(each, script).write_text(lines + "\n")
