"""What the numbers of a part depend on, so that a part of other settings is never taken for one of these.

Prices, thresholds and resamples are no part of it: they change what is made of episodes, not the episodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.evaluation.kept import Part
from rl_cluster.evaluation.settings import (
    BaselineConfig,
    EndpointConfig,
    EvaluateConfig,
    ModelSystemConfig,
    SystemConfig,
)
from rl_cluster.evaluation.world import QuestionSet
from rl_cluster.models.embedder import embedder_digest
from rl_cluster.models.hub import hub_commit
from rl_cluster.retrieval.settings import IndexSettings
from rl_cluster.service.http_search import endpoint_id
from rl_cluster.service.values import open_parts

RULES = 2
"""Rises when the same settings come to mean another world, such as other distractors or other searches that fail."""
_ENVIRONMENT = ("max_turns", "k", "max_k", "tools", "filter_fields")
_ROLLOUT = ("sampling_max_tokens", "max_sequence_length", "sampling_top_p")
# How a system is asked and paid changes no answer; of a model the weights count, not where they lie.
_FREE = {
    "path", "prices", "key_variable", "timeout_s", "max_retries", "busy_wait_s", "token_field", "concurrency", "send_confidential",
}  # fmt: skip


def settings_of_parts(
    config: EvaluateConfig,
    systems: Mapping[str, SystemConfig],
    weights: Mapping[str, str],
    questions: QuestionSet,
    corpus: Corpus,
    index: IndexSettings | None,
) -> dict[Part, dict[str, Any]]:
    """Those of all systems and worlds of one question set; `weights`: a digest for each system that is a model; `index`: None
    where an endpoint answers."""
    if index is None:
        searched = {"search": endpoint_id(config.search), "search.snippet_words": config.search.snippet_words}
    else:
        # Which parts an index has follows from all systems and changes nothing for one of them.
        searched = _flat({name: value for name, value in asdict(index).items() if name != "parts"}, "search")
    shared = {
        "rules": RULES,
        "seed": config.seed,
        "samples": config.samples,
        "tasks": f"{len(questions.tasks)} with digest {_digest(map(msgspec.to_builtins, questions.tasks))}",
        "documents": f"{len(corpus)} with digest {corpus.digest()[:16]}",
        "confidential": questions.confidential,
        **{f"environment.{name}": getattr(config.environment, name) for name in _ENVIRONMENT},
        **searched,
    }
    found = {}
    for name, system in systems.items():
        own = {f"systems.{name}.{key}": value for key, value in system.model_dump().items() if key not in _FREE}
        if isinstance(system, ModelSystemConfig):
            own[f"systems.{name}.weights"] = weights[name]
            own["cluster.device"] = config.cluster.device
            own |= {f"rollout.{key}": getattr(config.rollout, key) for key in _ROLLOUT}
        tools = [system.tool] if isinstance(system, BaselineConfig) else config.environment.tools
        if index is not None and "vector" in open_parts(tools):
            own["search.embedder_weights"] = embedder_digest(index.embedder)
        if isinstance(system, ModelSystemConfig | EndpointConfig):
            own["temperature"] = config.temperature
        for drift in (None, *config.evaluation.drift):
            settings = config.evaluation.drift[drift] if drift else {}
            changed = _flat(settings, f"evaluation.drift.{drift}")
            if settings.get("delay_s", 0.0) >= config.search.timeout_s:  # searches are given up, see drift.search_slow
                changed["search.timeout_s"] = config.search.timeout_s
            found[Part(name, questions.dataset, drift)] = {**shared, **own, **changed}
    return found


def weights_digest(model: str) -> str:
    """16 hex digits over the files of a model folder, so that one that was trained on is another model; a hub id with its commit.

    Raises ModelError where neither the hub nor the cache has the model.
    """
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{hub_commit(model)}"
    from blake3 import blake3

    digest = blake3()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            content = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
            digest.update(f"{path.name}:{content};".encode())
    return digest.hexdigest(length=8)


def _digest(values: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(json.dumps(value, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}.{name}")
        else:
            flat[f"{prefix}.{name}"] = value
    return flat
