"""The schema of the `search` section: index, service, and a search endpoint of one's own; imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rl_cluster.config_types import Fraction, NonNegative, Positive, Seconds, Section, UserPath

# Backend of word search -> the variants of BM25 that it has; a test holds this to what the backends say.
BM25_VARIANTS = {
    "bm25s": ("lucene", "robertson", "atire", "bm25l", "bm25+"),
    "rank_bm25": ("okapi", "bm25l", "bm25+"),
}
SearchTool = Literal["bm25_search", "vector_search", "hybrid_search"]
AgentTool = Literal["bm25_search", "vector_search", "hybrid_search", "read_document"]


class LexicalConfig(Section):
    backend: Literal["bm25s", "rank_bm25"]
    method: Literal["lucene", "robertson", "atire", "okapi", "bm25l", "bm25+"]
    k1: Annotated[float, Field(gt=0)]
    b: Fraction
    delta: Annotated[float, Field(ge=0)]
    analyzer: str
    stem: bool
    stop_words: bool

    @model_validator(mode="after")
    def _backend_has_method(self) -> LexicalConfig:
        variants = BM25_VARIANTS[self.backend]
        if self.method not in variants:
            raise ValueError(
                f"method={self.method}: {self.backend} has the variants {', '.join(variants)}; set one of them"
            )
        return self


class VectorConfig(Section):
    kind: Literal["flat", "hnsw", "ivf_pq"]
    links: Annotated[int, Field(ge=2)]
    build_breadth: Positive
    search_breadth: NonNegative
    lists: NonNegative
    probes: NonNegative
    code_bytes: Positive
    refine: Positive
    device: Literal["cpu", "cuda"]

    @model_validator(mode="after")
    def _kind_has_device(self) -> VectorConfig:
        if self.device == "cuda" and self.kind == "hnsw":
            raise ValueError(
                "device=cuda: kind=hnsw has no form for GPUs; set search/vector=flat or ivf_pq, or device=cpu"
            )
        return self


class FusionConfig(Section):
    method: Literal["rrf", "weighted"]
    depth: Positive
    rrf_k: Annotated[float, Field(ge=0)]
    lexical_weight: Fraction
    reranker: UserPath | None
    rerank_depth: Positive


class ExternalSearchConfig(Section):
    """A search endpoint of one's own; see rl_cluster.service.http_mapping for what the settings mean."""

    kind: Literal["elasticsearch", "http_json"]
    url: str
    token_env: str | None
    token_scheme: str
    tools: dict[SearchTool, Any] = Field(min_length=1)
    fields: dict[Literal["doc_id", "title", "text", "score"], str]
    max_k: Positive
    hits: str
    document_url: str | None
    document: str
    max_concurrency: Positive
    retries: NonNegative

    @model_validator(mode="after")
    def _url(self) -> ExternalSearchConfig:
        for name in ("url", "document_url"):
            value = getattr(self, name)
            if value is not None and not value.startswith(("http://", "https://")):
                raise ValueError(f"{name}={value} is no HTTP address; write it as https://host/path")
            if value is not None and "@" in value.partition("://")[2].partition("/")[0]:
                raise ValueError(
                    f"{name} holds credentials, which would be logged; name an environment variable in token_env"
                )
        missing = [name for name in ("doc_id", "text") if name not in self.fields]
        if missing:
            raise ValueError(f"fields.{missing[0]} is not set; name the field of a hit that it is")
        return self


ENDPOINT_ACCESS = frozenset({"token_env", "token_scheme", "max_concurrency", "retries"})
"""Settings of `search.external` that change no answer."""


class SearchConfig(Section):
    lexical: LexicalConfig
    vector: VectorConfig
    fusion: FusionConfig
    embedder: UserPath
    embed_max_tokens: Positive
    query_prompt: str
    passage_prompt: str
    device: Literal["cpu", "cuda"]
    snippet_words: Positive
    shards: Positive
    min_replicas: Positive
    max_replicas: Positive
    timeout_s: Seconds
    host: str
    port: Annotated[int, Field(ge=1024, le=65535)]
    token_env: str | None
    max_ongoing_requests: Positive
    max_queued_requests: Positive
    max_batch: Positive
    memory_gib: Annotated[float, Field(gt=0)] | None
    cpus_per_replica: Annotated[float, Field(ge=0)]
    threads_per_replica: Positive
    gpus_per_replica: Annotated[float, Field(ge=0)]
    start_timeout_s: Seconds
    build_timeout_s: Seconds
    external: ExternalSearchConfig | None

    @model_validator(mode="after")
    def _replicas_and_access(self) -> SearchConfig:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} is over max_replicas={self.max_replicas}; raise max_replicas or lower min_replicas"
            )
        if self.host not in ("127.0.0.1", "localhost", "::1") and self.token_env is None:
            raise ValueError(
                f"host={self.host} lets other machines ask; name the environment variable of a bearer token in token_env, or set "
                "host=127.0.0.1"
            )
        if self.shards > 1 and self.lexical.backend != "bm25s":
            raise ValueError(
                f"shards={self.shards}: lexical.backend={self.lexical.backend} cannot be cut; set search/lexical=bm25s or shards=1"
            )
        if self.needs_gpu and not self.gpus_per_replica:
            raise ValueError(
                "device=cuda and vector.device=cuda need a GPU in each replica; set gpus_per_replica to a share of one, or both devices to cpu"
            )
        return self

    @property
    def needs_gpu(self) -> bool:
        """Whether building and searching vectors takes a GPU."""
        return "cuda" in (self.device, self.vector.device)
