"""Whether an episode of usual length fits: the rule that users of search agents size their budgets by.

max_turns x (sampling_max_tokens + tool output) + prompt <= max_sequence_length. Replies count in full, tool output as
what a search usually gives, the prompt as the longest of a sample. An episode may still reach the limit, by asking for
more results; it then ends as `sequence_limit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl_cluster.datasets.task import Document, Task
from rl_cluster.environments.hits import FoundDocument, format_documents
from rl_cluster.environments.search import SearchEnvironmentSettings, system_prompt
from rl_cluster.environments.search_tools import READ_TOOL, tool_specs
from rl_cluster.episodes.formats import detect_format, get_format
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.retrieval.passages import PART_WORDS


@dataclass(frozen=True)
class EpisodeSize:
    """Tokens of the longest prompt, of one usual tool answer with what the template puts around it, of one reply."""

    prompt: int
    observation: int
    reply: int
    max_turns: int

    @property
    def total(self) -> int:
        """The last reply is answered by nothing."""
        return self.prompt + self.max_turns * self.reply + (self.max_turns - 1) * self.observation


def measure_episode(
    tokenizer: Any,
    tool_format: str,
    settings: SearchEnvironmentSettings,
    tasks: Sequence[Task],
    documents: Sequence[Document],
    snippet_words: int,
    sampling_max_tokens: int,
) -> EpisodeSize:
    """Sizes from the model's own tokenizer and template, over the longest questions and a sample of documents."""
    name = detect_format(tokenizer.chat_template or "") if tool_format == "auto" else tool_format
    format_ = get_format(name)
    renderer = ChatRenderer(tokenizer, format_.observation_role, format_.uses_template_tools)
    system, tools = system_prompt(settings, format_), tool_specs(settings.tool_settings)
    longest = sorted({task.prompt for task in tasks}, key=len, reverse=True)[:20]
    prompt = max((len(renderer.first_prompt(system, question, tools)) for question in longest), default=0)
    hits = [FoundDocument(d.doc_id, d.title, " ".join(d.text.split()[:snippet_words])) for d in documents]
    lines = len(tokenizer.encode(format_documents(hits), add_special_tokens=False)) / max(1, len(hits))
    usual = settings.k * lines
    if READ_TOOL in settings.tools:
        pages = [" ".join(d.text.split()[:PART_WORDS]) for d in documents]
        usual = max(usual, len(tokenizer.encode("\n".join(pages), add_special_tokens=False)) / max(1, len(pages)))
    around = len(renderer.continuation(system, "question", tools, [], [""]))
    return EpisodeSize(prompt, round(usual) + around, sampling_max_tokens, settings.max_turns)
