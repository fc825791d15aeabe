"""Ray clusters on this machine, for tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_MEMORY = 80 * 2**20  # bytes of a node's object store


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """A cluster whose head has no core, so that all work is on nodes that are added."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)  # Ray installs one of its own, and leaves it
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster
    finally:
        cluster.shutdown()
        signal.signal(signal.SIGTERM, handler)


def add(cluster: Any) -> Any:
    """Add a node of one core."""
    return cluster.add_node(num_cpus=1, object_store_memory=_MEMORY)
