"""The replicas of the search service: one class for each tool, each over all indexes of the service.

Retrieval libraries are loaded by replicas alone. What comes while a batch is computed makes up the next one, so that vector queries are embedded and compared together.
"""

from __future__ import annotations

import asyncio

from ray import serve
from ray.exceptions import RayError

from actors.index_registry import open_registry
from actors.remote import within
from rl_cluster.errors import RLClusterError
from rl_cluster.service.coalescer import Coalescer
from rl_cluster.service.registry import IndexView
from rl_cluster.service.settings import ServiceSettings
from rl_cluster.service.values import IndexDescription, Reply, Request

POLL_S = 5.0


class _Replica:
    """Opens the parts that its tool needs of each index, memory-mapped, and follows the registry."""

    parts: tuple[str, ...] = ()

    async def __init__(self, app_name: str, folders: dict[str, str], settings: ServiceSettings) -> None:
        if "vector" in self.parts:
            import torch

            torch.set_num_threads(1)
        self.app_name = app_name
        self.member = serve.get_replica_context().replica_tag
        from rl_cluster.service.catalog import IndexCatalog

        self.catalog = IndexCatalog(self.parts, settings.memory_gib)
        self.coalescer: Coalescer[Request, Reply] = Coalescer(
            self._compute,
            max_batch=settings.limits.max_batch,
            max_in_flight=1,
            max_waiting=settings.limits.max_waiting,
            name=f"A replica of {type(self).__name__}",
        )
        self.registry = open_registry(app_name, IndexView(0, folders, {}))
        self.view: IndexView = await self.registry.view.remote()
        await asyncio.to_thread(self.catalog.apply, self.view.folders, self.view.pending)
        self.following = asyncio.create_task(self._follow())

    async def answer(self, requests: list[Request]) -> list[Reply]:
        """One answer or one error for each request, in their order."""
        replies = await asyncio.gather(*map(self.coalescer.submit, requests), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, RLClusterError):
                raise reply
        return replies  # pyright: ignore[reportReturnType]

    async def describe(self) -> list[IndexDescription]:
        """The indexes that this replica answers from."""
        return self.catalog.describe()

    async def _compute(self, requests: list[Request]) -> list[Reply]:
        return await asyncio.to_thread(self.catalog.answer, requests)

    async def _follow(self) -> None:
        error = ""
        while True:
            try:
                newer = self.registry.wait_newer.remote(self.member, self.view, error, POLL_S)
                view = await within(3 * POLL_S, newer)
            except (RayError, TimeoutError):
                # The registry died with its machine; any replica can bring the next one up to what it has itself.
                await asyncio.sleep(1.0)
                self.registry = open_registry(self.app_name, self.view)
                continue
            if view.generation > self.view.generation:
                error = await self._apply(view)
                self.view = view

    async def _apply(self, view: IndexView) -> str:
        """Opens and switches as the view says; returns what is wrong, or an empty text."""
        try:
            await asyncio.to_thread(self.catalog.apply, view.folders, view.pending)
        except (RLClusterError, OSError, ValueError) as error:
            return str(error) or type(error).__name__
        return ""


class Bm25Replica(_Replica):
    """Word search."""

    parts = ("lexical",)


class VectorReplica(_Replica):
    """Search by meaning."""

    parts = ("vector",)


class HybridReplica(_Replica):
    """Search by words and by meaning, fused."""

    parts = ("lexical", "vector")


REPLICAS = {"bm25_search": Bm25Replica, "vector_search": VectorReplica, "hybrid_search": HybridReplica}
