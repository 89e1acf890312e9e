"""The models that an index asks for, checked before anything starts."""

from __future__ import annotations

from rl_cluster.models.embedder import SentenceEmbedder, check_embedder_folder
from rl_cluster.retrieval.rerank import check_reranker


def check_models(embedder: str, embed_max_tokens: int, reranker: str | None) -> None:
    """Raises ModelError where a model is no folder of one and no hub id, ConfigError where it has fewer positions; none is loaded."""
    check_embedder_folder(embedder)
    SentenceEmbedder(embedder, max_tokens=embed_max_tokens)
    if reranker is not None:
        check_reranker(reranker)
