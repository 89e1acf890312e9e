"""The command line of `python -m rl_cluster.serve`: what it takes and what it refuses, before anything starts."""

from __future__ import annotations

import pytest

from rl_cluster.errors import ConfigError
from rl_cluster.serve import SERVE

KB = "indexes={kb: /data/kb}"


def test_serve_config_indexes_and_corpora_are_read() -> None:
    config = SERVE.load([KB, "corpora={docs: /data/corpus.parquet}", "search/vector=ivf_pq", "search.max_replicas=4"])
    assert config.indexes == {"kb": "/data/kb"}
    assert config.corpora == {"docs": "/data/corpus.parquet"}
    assert (config.search.host, config.search.max_replicas, config.search.vector.kind) == ("127.0.0.1", 4, "ivf_pq")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "neither indexes nor corpora names anything"),
        (["indexes={a/b: /x}"], "the name 'a/b' stands in URLs"),
        ([KB, "corpora={kb: /x.parquet}"], "the name 'kb' stands in indexes and in corpora"),
        ([KB, "k=20", "max_k=10"], "k=20 is over max_k=10"),
        ([KB, "tools=[read_document]"], "finds nothing to read"),
        ([KB, "tools=[grep]"], "tools.0='grep' is refused"),
        ([KB, "search=http_json", "search.external.url=http://x"], "search.external is for agents"),
        ([KB, "search.host=0.0.0.0"], "name the environment variable of a bearer token"),
        ([KB, "search.prt=1"], "did you mean 'search.port'?"),
    ],
)
def test_serve_config_wrong_command_line_is_one_sentence(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SERVE.load(overrides)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
