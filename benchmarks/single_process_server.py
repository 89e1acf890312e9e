"""The retrieval server of comparable projects: FastAPI around one index, one request at a time. For comparison only.

`python -m benchmarks.single_process_server FOLDER TOOL PORT THREADS`
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Question(BaseModel):
    query: str
    k: int


def build_app(folder: str, tool: str, threads: int) -> FastAPI:
    """An application whose only route answers on the event loop, hence one after another."""
    from rl_cluster.retrieval.devices import use_threads
    from rl_cluster.retrieval.index import SearchIndex

    use_threads(threads)
    index = SearchIndex.open(folder, (tool,))
    index.warm_up()
    app = FastAPI()

    @app.post("/retrieve")
    async def retrieve(question: Question) -> list[dict[str, Any]]:
        return [hit._asdict() for hit in index.search(tool, question.query, question.k)]

    return app


if __name__ == "__main__":
    app = build_app(sys.argv[1], sys.argv[2], int(sys.argv[4]))
    # A caller that waits long for its turn must not find its connection closed as it sends.
    uvicorn.run(app, port=int(sys.argv[3]), log_level="error", timeout_keep_alive=600)
