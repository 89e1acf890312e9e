"""The bodies of the HTTP interface; what is documented at /docs is what is checked here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_EXCLUDED = 100_000
"""Questions of published sets exclude up to 11,224 documents (BRIGHT)."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SearchBody(_Body):
    """One search. What a search refuses (empty query, k out of range, unknown index or field) is said by the error's message."""

    tool: str = Field(description="bm25_search, vector_search or hybrid_search; GET /v1/indexes lists those on offer")
    query: str = Field(description="what to search for, at most 32,768 characters")
    k: int = Field(default=10, description="results, 1 to 100")
    filters: dict[str, Any] | None = Field(
        default=None,
        description='conditions on metadata: {"kind": "wiki"}, {"kind": ["wiki", "mail"]}, {"year": {"gte": 2020, "lt": 2024}}',
    )
    index: str | None = Field(default=None, description="name of an index; the first one by default")
    excluded: list[str] = Field(
        default_factory=list,
        max_length=MAX_EXCLUDED,
        description=f"ids that are never shown, at most {MAX_EXCLUDED:,}; the whole body has at most 8 MiB",
    )
    timeout_s: float | None = Field(default=None, gt=0, le=3600, description="seconds after which no answer is wanted")


class HitBody(BaseModel):
    """One result; `part` is the part of the document that the snippet is from."""

    doc_id: str
    title: str
    snippet: str
    score: float
    part: int


class SearchResult(BaseModel):
    """Results, best first, and the content id of the index that gave them."""

    index_id: str
    hits: list[HitBody]


class DocumentResult(BaseModel):
    """One part of a document, at characters `start` to `end` of its text."""

    index_id: str
    doc_id: str
    title: str
    text: str
    part: int
    parts: int
    start: int
    end: int


class IndexBody(BaseModel):
    """One index. `filter_fields`: the fields of metadata that searches can be limited by."""

    name: str
    index_id: str
    corpus: str
    num_documents: int
    filter_fields: list[str]


class IndexesResult(BaseModel):
    """The tools on offer and all indexes; the first one is asked by default."""

    tools: list[str]
    indexes: list[IndexBody]


class SwapBody(_Body):
    """The folder of a built index, on every machine that runs replicas."""

    folder: str


class Health(BaseModel):
    status: Literal["ok"]


class ErrorBody(BaseModel):
    """`type`: a word for programs; `message`: a sentence for people."""

    type: str
    message: str


class ErrorResult(BaseModel):
    error: ErrorBody
