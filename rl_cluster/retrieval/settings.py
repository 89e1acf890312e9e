"""What a search index is built with, from a configuration and back from its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_cluster.errors import ConfigError
from rl_cluster.models.embedder import DEFAULT_EMBEDDER
from rl_cluster.retrieval.analysis import AnalysisSettings
from rl_cluster.retrieval.fusion import FusionSettings
from rl_cluster.retrieval.languages import analyzer_for
from rl_cluster.retrieval.lexical import LexicalSettings
from rl_cluster.retrieval.snippets import DEFAULT_SNIPPET_WORDS
from rl_cluster.retrieval.vector_settings import VectorSettings

PARTS = ("lexical", "vector")


@dataclass(frozen=True)
class IndexSettings:
    """What an index is built with. Raises ConfigError for values out of range.

    `parts`: what is built; `embedder`: see `rl_cluster.models.embedder`; `embed_max_tokens`: longer texts are cut before they
    are embedded; `query_prompt`, `passage_prompt`: what an embedder wants before each query and each document, such as
    `query: ` and `passage: ` for e5; `snippet_words`: the most words of a snippet, which may have 16 characters each on
    average (see `snippets`). All of it changes answers, hence the content id.
    """

    parts: tuple[str, ...] = PARTS
    lexical: LexicalSettings = field(default_factory=LexicalSettings)
    vector: VectorSettings = field(default_factory=VectorSettings)
    fusion: FusionSettings = field(default_factory=FusionSettings)
    embedder: str = DEFAULT_EMBEDDER
    embed_max_tokens: int = 128
    query_prompt: str = ""
    passage_prompt: str = ""
    snippet_words: int = DEFAULT_SNIPPET_WORDS

    def __post_init__(self):
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ConfigError(f"The parts of an index are {list(self.parts)}; choose from: {', '.join(PARTS)}.")
        for name in ("embed_max_tokens", "snippet_words"):
            if getattr(self, name) < 1:
                raise ConfigError(f"search.{name} is {getattr(self, name)}; give a number of at least 1.")


def settings_from_config(
    search: Mapping[str, Any], locales: Iterable[str], parts: tuple[str, ...] = PARTS
) -> IndexSettings:
    """The index settings in a configuration's `search` section, with the `parts` that the offered tools read.

    `locales`: those of the documents, or of the tasks where documents do not say theirs; they choose the analyser where the
    configuration says `auto`.
    """
    lexical = dict(search["lexical"])
    analyzer = lexical.pop("analyzer")
    analysis = AnalysisSettings(
        stem=lexical.pop("stem"),
        stop_words=lexical.pop("stop_words"),
        analyzer=analyzer_for(locales) if analyzer == "auto" else analyzer,
    )
    return IndexSettings(
        parts=parts,
        lexical=LexicalSettings(**lexical, analysis=analysis),
        vector=VectorSettings(**{name: value for name, value in search["vector"].items() if name != "device"}),
        fusion=FusionSettings(**search["fusion"]),
        embedder=search["embedder"],
        embed_max_tokens=search["embed_max_tokens"],
        query_prompt=search["query_prompt"],
        passage_prompt=search["passage_prompt"],
        snippet_words=search["snippet_words"],
    )


def settings_from_state(state: Mapping[str, Any]) -> IndexSettings:
    """What `dataclasses.asdict` wrote. Raises KeyError, TypeError or ConfigError for anything else."""
    lexical = {**state["lexical"], "analysis": AnalysisSettings(**state["lexical"]["analysis"])}
    return IndexSettings(
        **{
            **state,
            "parts": tuple(state["parts"]),
            "lexical": LexicalSettings(**lexical),
            "vector": VectorSettings(**state["vector"]),
            "fusion": FusionSettings(**state["fusion"]),
        }
    )
