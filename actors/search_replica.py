"""The replicas of the search service: one class for each tool, each over all indexes of the service.

Retrieval libraries are loaded by replicas alone. What comes while a batch is computed makes up the next one, so that vector queries are embedded and compared together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from ray import serve
from ray.exceptions import RayError

from actors.index_registry import open_registry
from actors.remote import ask, within
from rl_cluster.errors import ClusterError, RLClusterError
from rl_cluster.service.coalescer import Coalescer
from rl_cluster.service.registry import IndexView, Member
from rl_cluster.service.settings import ServiceSettings
from rl_cluster.service.values import TOOL_PARTS, IndexDescription, Reply, Request

POLL_S = 5.0
_PAUSE_S = 1.0
_START_S = 60.0
"""For the registry's first answers: it is started by the first replica that asks."""
logger = logging.getLogger("ray.serve")


class _Replica:
    """Opens the parts that its tool needs of each index, memory-mapped, and follows the registry."""

    parts: tuple[str, ...] = ()

    async def __init__(
        self,
        app_name: str,
        folders: dict[str, str],
        settings: ServiceSettings,
        deployments: tuple[str, ...],
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        """`deployments`: those of all tools; `shard` of `shards` is what it opens of each index."""
        if "vector" in self.parts:
            from rl_cluster.retrieval.devices import use_threads

            use_threads(settings.threads_per_replica)
        self.app_name, self.deployments, self.shard, self.shards = app_name, deployments, shard, shards
        context = serve.get_replica_context()
        self.member = Member(context.deployment, context.replica_tag)
        from rl_cluster.service.catalog import IndexCatalog

        self.catalog = IndexCatalog(self.parts, settings.memory_gib, devices=settings.devices)
        self.coalescer: Coalescer[Request, Reply] = Coalescer(
            self._compute,
            max_batch=settings.limits.max_batch,
            max_in_flight=1,
            max_waiting=settings.limits.max_waiting,
            name=f"A replica of {type(self).__name__}",
        )
        self.registry = open_registry(app_name, IndexView(0, folders, {}), deployments)
        await self._open_first()
        self.following = asyncio.create_task(self._follow())

    async def _open_first(self) -> None:
        """Opens what the registry says; a failure is told to it for whoever starts the service, and raised."""
        try:
            view = await self._registered()
            while True:
                await asyncio.to_thread(self._open, view)
                self.view, view = view, await self._registered()
                if view.generation == self.view.generation:  # otherwise another index was swapped in meanwhile
                    break
        except Exception as error:
            # Ray Serve would keep the text of a traceback only, and try again first.
            reason = error if isinstance(error, RLClusterError) else ClusterError(self._unexpected(error))
            with contextlib.suppress(
                RayError, TimeoutError
            ):  # of a registry that was lost; Ray Serve keeps the text then
                await within(POLL_S, self.registry.report_start_failure.remote(reason))
            raise

    async def _registered(self) -> IndexView:
        return await ask(f"The registry of the indexes of {self.app_name}", self.registry.view.remote(), _START_S)

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
        """Takes over newer views for ever; whatever goes wrong is logged and told to the registry, which then takes a change back."""
        error, lost = "", False
        while True:
            try:
                if lost:
                    self.registry, lost = open_registry(self.app_name, self.view, self.deployments), False
                newer = self.registry.wait_newer.remote(self.member, self.view, error, POLL_S)
                view = await within(3 * POLL_S, newer)
                if view.generation > self.view.generation:
                    error = await self._apply(view)
                    self.view = view
            except (RayError, TimeoutError):
                # The registry died with its machine; any replica can bring the next one up to what it has itself.
                lost = True
                await asyncio.sleep(_PAUSE_S)
            except Exception as unexpected:
                logger.exception("A replica of %s could not follow the registry; it tries again.", type(self).__name__)
                error = self._unexpected(unexpected)
                await asyncio.sleep(_PAUSE_S)

    async def _apply(self, view: IndexView) -> str:
        """Opens and switches as the view says, with signs of life; returns what is wrong, or an empty text."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open, view))
        while not (await asyncio.wait([opening], timeout=POLL_S))[0]:
            with contextlib.suppress(
                RayError, TimeoutError
            ):  # of a registry that was lost; the next question to it says so
                await within(POLL_S, self.registry.opening.remote(self.member))
        try:
            await opening
        except RLClusterError as error:
            return str(error)
        except Exception as error:
            logger.exception("The indexes of generation %d cannot be opened.", view.generation)
            return self._unexpected(error)
        return ""

    def _open(self, view: IndexView) -> None:
        from rl_cluster.retrieval.shards import shard_folder

        def here(folders: dict[str, str]) -> dict[str, str]:
            return {name: shard_folder(folder, self.shard, self.shards) for name, folder in folders.items()}

        self.catalog.apply(here(view.folders), here(view.pending))

    def _unexpected(self, error: Exception) -> str:
        said = next(iter(str(error).splitlines()), "")[:300]
        return f"A replica of {type(self).__name__} cannot open its indexes ({type(error).__name__}: {said}); its log says more."


class Bm25Replica(_Replica):
    """Word search."""

    parts = TOOL_PARTS["bm25_search"]


class VectorReplica(_Replica):
    """Search by meaning."""

    parts = TOOL_PARTS["vector_search"]


class HybridReplica(_Replica):
    """Search by words and by meaning, fused."""

    parts = TOOL_PARTS["hybrid_search"]


REPLICAS = {"bm25_search": Bm25Replica, "vector_search": VectorReplica, "hybrid_search": HybridReplica}
