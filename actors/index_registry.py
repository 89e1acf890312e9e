"""The actor that holds which folder each index name of a search service stands for; see rl_cluster.service.registry."""

from __future__ import annotations

from actors.remote import Handle, actor
from rl_cluster.errors import RLClusterError
from rl_cluster.service.registry import IndexRegistry, IndexView, Member

NAMESPACE = "rl_cluster-search"


@actor(num_cpus=0, max_concurrency=1000)
class RegistryActor:
    """One for each application; it outlives the job, as the application does."""

    def __init__(self, view: IndexView, deployments: tuple[str, ...]) -> None:
        self.registry = IndexRegistry(view, deployments)
        self.failure: RLClusterError | None = None

    async def view(self) -> IndexView:
        return self.registry.view

    async def wait_newer(self, member: Member, reached: IndexView, error: str, timeout_s: float) -> IndexView:
        return await self.registry.wait_newer(member, reached, error, timeout_s)

    async def opening(self, member: Member) -> None:
        await self.registry.opening(member)

    async def swap(self, name: str, folder: str, timeout_s: float) -> None:
        await self.registry.swap(name, folder, timeout_s)

    async def report_start_failure(self, error: RLClusterError) -> None:
        """A replica cannot start, for this reason; whoever starts the service asks for it."""
        self.failure = error

    async def start_failure(self) -> RLClusterError | None:
        return self.failure


def registry_name(app_name: str) -> str:
    """The name of an application's registry in `NAMESPACE`."""
    return f"{app_name}-indexes"


def open_registry(app_name: str, view: IndexView, deployments: tuple[str, ...]) -> Handle:
    """The registry of an application with these deployments; where there is none, one that starts from `view`."""
    options = {"name": registry_name(app_name), "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return RegistryActor.options(**options).remote(view, deployments)
