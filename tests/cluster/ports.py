"""Ports of these tests. Each process of pytest-xdist has a cluster of its own, and a cluster has one HTTP proxy."""

from __future__ import annotations

import os

_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
SEARCH_PORT = 8390 + 2 * _PROCESS
HEAD_SEARCH_PORT = SEARCH_PORT + 1
"""For the jobs of a head that a test starts beside the cluster."""
