"""A search service of one's own: `python -m rl_cluster.serve 'indexes={kb: /folder/of/an/index}'`.

Serves built indexes, or builds them from a corpus first, with the very tools that agents are trained on: HTTP, MCP at /mcp,
documentation at /docs. It ends on Ctrl-C or SIGTERM, at once while it builds or starts; a service that was up is stopped cleanly.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig
from rich.console import Console

from rl_cluster.composition import Application
from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.errors import ClusterError, ConfigError, DeadlineError, RLClusterError
from rl_cluster.interrupts import raise_on
from rl_cluster.service.serve_settings import ServeConfig, check_serve
from rl_cluster.service.settings import ServiceSettings, service_settings
from rl_cluster.service.values import WHOLE_TOOLS, http_address, index_name, open_parts, shards_of

if TYPE_CHECKING:
    from actors.index_builder import BuiltIndex

_STOP_S = 10.0
_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SERVE = Application("serve", "rl_cluster.serve", check_serve)


@hydra.main(version_base="1.3", config_path="pkg://hydra_conf", config_name="serve")
def _main(settings: DictConfig) -> None:
    sys.exit(run(SERVE.checked(settings)))


def run(config: ServeConfig) -> int:
    """Serves until the process is told to end; the process's exit code: 130 where that was before it served."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    raise_on(*_SIGNALS)
    try:
        tools = SearchToolSettings(config.k, config.max_k, config.tools, config.filter_fields)
        settings = service_settings(config.search, tools)
        if config.address is None:
            from actors.search_service import check_port

            check_port(settings.port, settings.host)
        check_folders(list((config.indexes or {}).values()), settings)
        corpora = {name: corpus_to_serve(name, _absolute(path)) for name, path in (config.corpora or {}).items()}
        check_filter_fields(config)
        if corpora and "vector" in open_parts(config.tools):
            from rl_cluster.retrieval.models import check_models

            check_models(config.search.embedder, config.search.embed_max_tokens, config.search.fusion.reranker)
        _serve(config, settings, corpora, console)
    except RLClusterError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted")
        return _INTERRUPTED
    return 0


def check_folders(folders: list[str], settings: ServiceSettings) -> None:
    """What a replica would find wrong is said before one is started; replicas of one machine share what they map.

    A machine holds the whole indexes for some tools, and for others at least one shard of each: other shards may be elsewhere.
    """
    from rl_cluster.retrieval.manifest import check_parts, read_manifest
    from rl_cluster.retrieval.memory import check_open
    from rl_cluster.retrieval.shards import shard_bytes

    tools, shards = settings.tools.tools, settings.limits.shards
    parts = {n: open_parts(tool for tool in tools if shards_of(tool, shards) == n) for n in (1, shards)}
    taken = dict.fromkeys(parts, 0)
    for folder in dict.fromkeys(folders):
        path = _absolute(folder)
        check_parts(folder, read_manifest(path)[1], open_parts(tools))
        for number in filter(parts.get, parts):
            taken[number] += shard_bytes(path, number, parts[number])
            whole = "the whole indexes" if shards == 1 else f"the whole indexes for {', '.join(WHOLE_TOOLS)}"
            opened = whole if number == 1 else f"one of {number} shards of each index"
            check_open(folder, taken[number], settings.memory_gib, opened)


def check_filter_fields(config: ServeConfig) -> None:
    """Raises ConfigError for a field that agents could filter by and that no served document has."""
    from rl_cluster.datasets.corpus import check_fields_known, fields_without_documents, read_corpus
    from rl_cluster.retrieval.filters import FilterIndex

    indexes, corpora = config.indexes or {}, config.corpora or {}
    unknown = set(config.filter_fields)
    for folder in indexes.values() if unknown else ():
        unknown -= set(FilterIndex.load(_absolute(folder) / "filters").fields)
    for name, path in corpora.items():
        if unknown:
            file = _absolute(path)
            unknown = fields_without_documents(read_corpus(file, corpus_to_serve(name, file)), unknown)
    check_fields_known("filter_fields", config.filter_fields, unknown, ", ".join([*indexes, *corpora]))


def _serve(config: ServeConfig, settings: ServiceSettings, corpora: dict[str, str | None], console: Console) -> None:
    """`corpora`: see `corpus_to_serve`."""
    import ray
    from ray.exceptions import RayTaskError

    from actors.own_ray import start_own_ray
    from actors.search_service import check_address, start_search
    from rl_cluster.retrieval.manifest import read_manifest
    from rl_cluster.retrieval.recall import recall_warning

    # Whoever serves wants the whole machine: Ray would let its workers yield to everything else on it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if config.address is None:
        start_own_ray(lambda said: console.print(said, markup=False, highlight=False, soft_wrap=True), **quiet)
    else:
        try:
            ray.init(address=config.address, **quiet)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            raise ClusterError(
                f"address={config.address}: no Ray cluster answers there; start one or leave it out."
            ) from error
    raise_on(*_SIGNALS)  # a head that Ray starts here sets its own, which stops no service
    try:
        check_address(settings.host, settings.port)
        indexes = {name: str(_absolute(folder)) for name, folder in (config.indexes or {}).items()}
        for folder in indexes.values():
            if warning := recall_warning(read_manifest(Path(folder))[0]):
                console.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)
        if config.search.shards > 1:
            _cut(list(indexes.values()), config)
        for name, path in (config.corpora or {}).items():
            console.print(f"building or opening the index of {path}", markup=False, highlight=False, soft_wrap=True)
            built = _build(path, corpora[name], config)
            indexes[name] = built.folder
            if built.warning:
                console.print(f"warning: {built.warning}", markup=False, highlight=False, soft_wrap=True)
        try:
            start_search(indexes, config.name, settings, route_prefix="/")
        except KeyboardInterrupt:
            _ignore_signals()
            _stop(config, console, _INTERRUPTED)
            raise
        code = 1
        try:
            address = http_address(settings.host, settings.port)
            line = f"serving {', '.join(indexes)} at {address}; documentation at {address}/docs, MCP at {address}/mcp"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            code = 0  # the usual end of a service
        finally:
            _ignore_signals()
            _stop(config, console, code)
    except RayTaskError as error:
        if isinstance(error.cause, RLClusterError):
            raise error.cause from None
        raise
    finally:
        _ignore_signals()  # a second signal must not cut short what the first one began
        ray.shutdown()


def _stop(config: ServeConfig, console: Console, code: int) -> None:
    """Takes the service down. On a cluster of others it is waited for. A Ray of its own may have ended already by a signal to all
    processes at once, as a manager of services sends it: its client would look for it for a minute. Then the process ends here, with
    `code`.
    """
    from actors.own_ray import leave_own_ray
    from actors.search_service import stop_search

    if config.address is not None:
        stop_search(config.name)
        return
    stopping = ThreadPoolExecutor(1)
    try:
        failed = stopping.submit(stop_search, config.name).exception(_STOP_S)
        why = failed and type(failed).__name__
    except TimeoutError:
        why = f"no answer in {_STOP_S:.0f} s"
    if why:
        console.print(f"Ray did not take the service down ({why}); it ends with Ray")
        leave_own_ray(code)
    stopping.shutdown()


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _build(path: str, corpus: str | None, config: ServeConfig) -> BuiltIndex:
    import ray
    from ray.exceptions import GetTimeoutError

    from actors.index_builder import build_index, build_options

    file, search, parts = _absolute(path), config.search.model_dump(), open_parts(config.tools)
    options = build_options(config.search, parts)
    reference = build_index.options(**options).remote(str(file), corpus, search, list(config.locales), parts)
    try:
        return ray.get(reference, timeout=config.search.build_timeout_s)
    except GetTimeoutError as error:
        raise DeadlineError(
            f"The index of {path} was not built within search.build_timeout_s={config.search.build_timeout_s:.0f} s; raise it, or lower "
            "search.embed_max_tokens."
        ) from error


def _cut(folders: list[str], config: ServeConfig) -> None:
    import ray
    from ray.exceptions import GetTimeoutError

    from actors.index_builder import cut_index

    try:
        ray.get(
            [cut_index.remote(folder, config.search.shards) for folder in folders],
            timeout=config.search.build_timeout_s,
        )
    except GetTimeoutError as error:
        raise DeadlineError(
            f"search.shards={config.search.shards}: the indexes were not cut within search.build_timeout_s="
            f"{config.search.build_timeout_s:.0f} s; raise it."
        ) from error


def corpus_to_serve(name: str, file: Path) -> str | None:
    """The corpus of a file that is served as `name`; None for the only one, whatever it is called.

    Raises DataError where the file is no corpus, ConfigError where it has several and none is served under that name.
    """
    from rl_cluster.datasets.corpus import corpus_names

    names = corpus_names(file)
    if len(names) < 2:
        return None
    chosen = next((corpus for corpus in names if index_name(corpus) == name), None)
    if chosen is None:
        raise ConfigError(
            f"corpora.{name}={file} holds {len(names)} corpora; name it as the one to serve: {', '.join(map(index_name, names[:20]))}."
        )
    return chosen


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def main() -> None:
    """Entry point; a wrong command line ends with one sentence and exit code 2."""
    SERVE.check_command_line(sys.argv[1:])
    _main()


if __name__ == "__main__":
    main()
