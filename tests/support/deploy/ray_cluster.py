"""A real Ray cluster on this machine: several nodes, each with its own raylet and store of objects."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from support.deploy.tools import miss

_STORE_BYTES = 80 << 20
# The log monitor is off, since nobody reads the workers' logs here.
_NODE: dict[str, Any] = {"object_store_memory": _STORE_BYTES, "include_log_monitor": False}
_SETTINGS = {
    # Ray ends workers when the machine is short of memory, which other programs may have taken; 0 turns that off.
    "RAY_memory_monitor_refresh_ms": "0",
    # A busy machine may take longer to start the first node than the 30 s of Ray.
    "RAY_gcs_server_port_wait_time_s": "100",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Ray gives up a node that has not started within 30 s, and nodes may crash while they start; the first one's port is
# then waited for in vain. Both happen now and then.
_STARTS, _LATE = 3, ("timed out during startup", "Timed out waiting for file")
_START_S = 2.0


def require_ray(name: str) -> Any:
    """Imports a module that needs Ray; skips the tests if Ray is not installed, and fails them in CI."""
    if find_spec("ray") is None:
        miss('Ray is not installed: pip install "lumigrad[ray]"')
    # Read when Ray is imported.
    os.environ.update(_SETTINGS)
    return import_module(name)


class RayCluster:
    """A node with resources for the fleet's own actor only, and nodes with resources for workers."""

    def __init__(self) -> None:
        self._ray = require_ray("ray")
        self._cluster = require_ray("ray.cluster_utils").Cluster(
            initialize_head=True,
            head_node_args={**_NODE, "num_cpus": 0, "include_dashboard": False, "no_monitor": True},
        )
        self._nodes: dict[str, Any] = {}
        self._ray.init(address=self._cluster.address, log_to_driver=False)

    def add_node(self) -> None:
        """Adds a node with resources for one CPU worker."""
        node = self._cluster.add_node(num_cpus=1, **_NODE)
        self._nodes[node.node_id] = node

    def check_nodes(self) -> None:
        """Raises ConnectionError if a node has crashed."""
        if not all(node.remaining_processes_alive() for node in self._nodes.values()):
            raise ConnectionError("a node crashed")

    def kill_node(self, node_id: str) -> None:
        self._cluster.remove_node(self._nodes.pop(node_id), allow_graceful=False)

    def stop(self) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def ray_cluster(nodes: int = 0) -> Iterator[RayCluster]:
    """A cluster for the length of a `with` block, with `nodes` nodes for workers."""
    cluster = _started(nodes)
    try:
        yield cluster
    finally:
        cluster.stop()


def _started(nodes: int, starts: int = _STARTS) -> RayCluster:
    cluster: RayCluster | None = None
    try:
        cluster = RayCluster()
        for _ in range(nodes):
            cluster.add_node()
        time.sleep(_START_S)
        cluster.check_nodes()
        return cluster
    except Exception as error:
        if cluster is not None:
            cluster.stop()
        is_rays = isinstance(error, ConnectionError) or any(text in str(error) for text in _LATE)
        if not is_rays or starts == 1:
            raise
    return _started(nodes, starts - 1)
