"""From messages to token ids through the model's own chat template, extended turn by turn.

Invariant: ids that were sent or sampled are never produced again. After a reply only what follows it is rendered: the
end of the assistant turn that the model did not sample itself, the observation, and the head of the next reply. The one
exception is a reply whose thinking the template strips, at once or when the next reply is there: what follows is a conversation that
the model has not seen in these ids, so the whole prompt is rendered anew, and the next turn opens a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rl_cluster.episodes.formats.base import ToolSpec
from rl_cluster.errors import ModelError

_MARK = "\u241e"
_REPLY = f"{_MARK}REPLY{_MARK}"
"""Stands for the sampled reply while a continuation is rendered; foreign text never holds the mark."""
_THOUGHT = f"{_MARK}THOUGHT{_MARK}"
_END_OF_THINKING = "</think>"
_THINKING = ("<think>", _END_OF_THINKING)
"""By which a template finds the thinking that it strips; they open no turn."""
Exchange = tuple[str, list[str]]
"""The text of a reply, and the observations that answered it: one for each of its calls."""
_REPLIES = 101
"""More than an episode has: over them it is seen of how many a template keeps the thinking."""
_TURNS = 6
"""Over which a template has to go on as it began."""
_RENDERINGS = 20
"""In which chance is seen: a choice between two texts hides in all of them once in half a million."""
_TIMES = (datetime(2026, 1, 1, 1, 2, 3, 4), datetime(2026, 1, 1, 23, 45, 56, 789012))
_TOOL = ToolSpec("search", "Finds.", {"type": "object", "properties": {"query": {"type": "string"}}})


def decoder(model_path: str) -> Callable[[list[int]], str]:
    """Token ids to text, special tokens included."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path, trust_remote_code=False).decode


class ChatRenderer:
    """Renders for one tokenizer. Special tokens inside foreign text are taken apart before it is encoded."""

    def __init__(self, tokenizer: Any, observation_role: str, use_template_tools: bool) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} has no chat template; save one with it, or set model.name to an instruct model."
            )
        self.tokenizer = tokenizer
        self.observation_role = observation_role
        self.use_template_tools = use_template_tools
        self.special_texts = sorted(
            # Some vocabularies have blanks and line ends as added tokens, which open nothing.
            (text for text in set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab()) if text.strip()),
            key=len,
            reverse=True,
        )
        self._special_markers = [
            token.content
            for token in tokenizer.added_tokens_decoder.values()
            if token.special and token.content.strip() and token.content not in _THINKING
        ]
        try:
            self._check_template()
            self._end = self._end_of_reply()
            self.replies_with_thinking = self._replies_with_thinking()
            """Of how many last replies the template keeps the thinking; None where it keeps all."""
        except ModelError:
            raise
        except Exception as error:  # a template may raise anything
            raise ModelError(
                f"The chat template refuses a system message, a question, replies and {self.observation_role!r} messages: {error}"
            ) from error
        self.stop_token_ids = self._stop_ids()

    def first_prompt(self, system: str, question: str, tools: list[ToolSpec]) -> list[int]:
        """Ids of the conversation's head, ready for the first reply."""
        text = self._render(self._head(system, question), tools, generate=True)
        return self._encode(text)

    def next_prompt(
        self,
        system: str,
        question: str,
        tools: list[ToolSpec],
        prompt: list[int],
        sampled: list[int],
        exchanges: list[Exchange],
    ) -> list[int]:
        """Ids of the prompt that follows `prompt` and `sampled`. exchanges: all turns so far, the one just sampled last."""
        kept = self.replies_with_thinking
        stripped = exchanges[-1 - kept][0] if kept is not None and len(exchanges) > kept else ""
        if _END_OF_THINKING not in stripped:
            observations = exchanges[-1][1]
            return [*prompt, *sampled, *self.continuation(system, question, tools, sampled, observations)]
        messages = self._head(system, question)
        for text, seen in exchanges:
            # As text again, a marker that the model spelled out would become the token that opens or ends a turn.
            reply = _broken(text, self._special_markers)
            messages += [{"role": "assistant", "content": reply}, *self._observed(seen)]
        return self._encode(self._render(messages, tools, generate=True))

    def continuation(
        self, system: str, question: str, tools: list[ToolSpec], sampled: list[int], observations: list[str]
    ) -> list[int]:
        """Ids to append after `sampled`: the rest of the assistant's turn, the observations, the next reply's head."""
        head = self._head(system, question)
        answered = [*head, {"role": "assistant", "content": _REPLY}, *self._observed(observations)]
        # The sampled text itself is never rendered: a stand-in holds its place and everything up to it is cut off.
        tail = self._render(answered, tools, generate=True).rpartition(_REPLY)[2]
        last = self.tokenizer.decode(sampled[-1:]) if sampled and sampled[-1] in self.stop_token_ids else ""
        if last and tail.lstrip().startswith(last):
            tail = tail.lstrip()[len(last) :]
        return self._encode(tail)

    def sanitise(self, text: str) -> str:
        """Foreign text with every special token's spelling broken, so that a document cannot open a turn."""
        return _broken(text.replace(_MARK, ""), self.special_texts)

    def decode(self, ids: list[int]) -> str:
        """The text of sampled ids without end markers, for parsing and display."""
        return self.tokenizer.decode([i for i in ids if i not in self.stop_token_ids], skip_special_tokens=False)

    def encode_reply(self, text: str) -> list[int]:
        """Ids of a demonstrated reply, with the end marker that the model has to learn."""
        return self._encode(text + self._end) if self._end else [*self._encode(text), self.tokenizer.eos_token_id]

    def _check_template(self) -> None:
        """Refuses a template whose text changes from call to call or hides what was replied: ids could not be appended."""
        reply = {"role": "assistant", "content": _REPLY}
        # A reply may have made two calls.
        exchange = [reply, *self._observed(["observation", "observation"])]
        head = self._head("system", "question")
        messages = [*head, *(_TURNS * exchange)]
        seen: list[set[str]] = []
        for tools in ([], [_TOOL]) if self.use_template_tools else ([],):
            found = {self._render(messages, tools, generate=True) for _ in range(_RENDERINGS)}
            # Renderings at once show chance, but no clock: the date may stand in a template, the time of day may not.
            clocks = {self._render(messages, tools, generate=True, strftime_now=time.strftime) for time in _TIMES}
            seen += [found, clocks]
        if any(len(texts) > 1 for texts in seen):
            raise ModelError(
                "The chat template renders the same messages differently twice; use one without clock or chance."
            )
        if any(text.count(_REPLY) != _TURNS for texts in seen for text in texts):
            raise ModelError(
                "The chat template does not show a reply as it was written; the next turn could not extend it."
            )

        one = self._render([*head, *exchange], [], generate=True)
        if one.rpartition(_REPLY)[2] != self._render(messages, [], generate=True).rpartition(_REPLY)[2]:
            raise ModelError(
                "The chat template writes later turns otherwise than the first, as by numbering them; the next turn could not extend it."
            )

    def _replies_with_thinking(self) -> int | None:
        messages = self._head("system", "question")
        for _ in range(_REPLIES):
            thinking = f"<think>\n{_THOUGHT}\n{_END_OF_THINKING}\n\n{_REPLY}"
            messages += [{"role": "assistant", "content": thinking}, *self._observed(["observation"])]
        # With tools, as prompts have them: a template may keep the thinking of a model that calls.
        kept = self._render(messages, [_TOOL] if self.use_template_tools else [], generate=True).count(_THOUGHT)
        return None if kept >= _REPLIES else kept

    def _head(self, system: str, question: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": system}, {"role": "user", "content": self.sanitise(question)}]

    def _observed(self, observations: list[str]) -> list[dict[str, str]]:
        """A message for each where the template knows tools; one of all for a user's turn, since many templates want turns to alternate."""
        texts = observations if self.use_template_tools else ["\n".join(observations)]
        return [{"role": self.observation_role, "content": self.sanitise(text)} for text in texts]

    def _render(self, messages: list[dict[str, str]], tools: list[ToolSpec], generate: bool, **names: Any) -> str:
        """`names`: what the template's names stand for in place of what transformers gives them."""
        arguments: dict[str, Any] = {"tokenize": False, "add_generation_prompt": generate, **names}
        if self.use_template_tools:
            arguments["tools"] = [tool.as_json() for tool in tools]
        try:
            return self.tokenizer.apply_chat_template(messages, **arguments)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages[-3:])
            raise ModelError(
                f"The chat template refuses a conversation of {len(messages)} messages that ends with {roles}: {error}"
            ) from error

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _end_of_reply(self) -> str:
        """What the template writes after a reply up to the special token that ends the turn, such as `<|im_end|>`; empty where it has
        none."""
        messages = [*self._head("system", "question"), {"role": "assistant", "content": _REPLY}]
        messages += self._observed(["observation"])
        tail = self._render(messages, [], generate=True).rpartition(_REPLY)[2]
        marker = next((text for text in self.special_texts if tail.lstrip().startswith(text)), "")
        return tail[: tail.find(marker) + len(marker)] if marker else ""

    def _stop_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn: the tokenizer's, the template's, those that the model's own generation settings name, which vLLM
        stops at too, and the usual ones that the vocabulary has."""
        ids = {self.tokenizer.eos_token_id, *_generation_ends(self.tokenizer.name_or_path)}
        vocabulary = self.tokenizer.get_added_vocab()
        for text in (self._end.strip(), "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"):
            if text in vocabulary:
                ids.add(vocabulary[text])
        return tuple(sorted(i for i in ids if i is not None))


def _broken(text: str, markers: Sequence[str]) -> str:
    """A text in which no marker stands as it is spelled."""
    for marker in markers:
        core = marker.strip()
        while marker in text:  # again where a marker's end begins another one
            text = text.replace(marker, f"{core[0]} {core[1:]}" if len(core) > 1 else " ")
    return text


def _generation_ends(name: str) -> list[int]:
    """The ids that end a reply by the generation settings beside a model; none where there are no such settings. Raises ModelError
    for a file of them that cannot be read."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(name).eos_token_id
    except (OSError, ValueError) as error:
        file = Path(name, "generation_config.json")
        if not file.exists():
            return []
        raise ModelError(
            f"{file} cannot be read ({str(error).splitlines()[0]}); copy it again or remove it."
        ) from error
    return list(ends) if isinstance(ends, list | tuple) else [] if ends is None else [ends]
