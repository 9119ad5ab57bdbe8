"""Workers in a real Ray cluster of several nodes, under load while workers, nodes and the fleet itself die."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from lumigrad.client import Camera, Client, LumigradError
from lumigrad.client.errors import Unavailable
from support.deploy.ray_cluster import RayCluster, ray_cluster, require_ray
from support.workers.client_load import cloud, renders
from support.workers.load import Load
from support.workers.slow_render import wait_until

fleet = require_ray("lumigrad.ray")
ray = require_ray("ray")

WAIT_S = 240.0
# Each start of a worker may take that long.
pytestmark = pytest.mark.timeout(5 * WAIT_S)
wait_for = partial(wait_until, seconds=WAIT_S)
LARGE = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=640, height=480)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(nodes=2) as running:
        options = fleet.Options(
            minimum=1, maximum=2, queue_high=1, busy_s=0.5, idle_s=2, interval_s=0.2,
            serve=("--scene-mib", "1024"),
        )  # fmt: skip
        fleet.start(options, timeout_s=WAIT_S)
        yield running
        fleet.stop()


@pytest.fixture
def load(cluster: RayCluster) -> Iterator[Load]:
    """Renders, with checked pictures, by a client that follows the fleet; none may fail."""
    with fleet.client(timeout_s=WAIT_S, retry_s=WAIT_S) as client, Load([renders(client)], rate=5) as running:
        running.wait_for_progress(5)
        yield running
        running.wait_for_progress(5)
    assert running.failed == 0, running.failures


def serving(count: int) -> list[str]:
    """The targets of the fleet, once it has so many: a worker on a busy machine may count as lost for a while."""
    found: list[str] = []

    def are_there() -> bool:
        found[:] = fleet.status().targets
        return len(found) == count

    wait_for(are_there, f"{count} workers")
    return found


def test_workers_ask_for_the_clusters_token(cluster: RayCluster) -> None:
    (target,) = serving(1)
    with Client(target, token=fleet.token()) as client:
        assert client.info().device == "cpu"
    with pytest.raises(PermissionError), Client(target, token="x" * 32) as client:
        client.info()


def test_a_fleet_is_started_once(cluster: RayCluster) -> None:
    with pytest.raises(ValueError, match="runs with Options"):
        fleet.start(fleet.Options(minimum=2))
    with pytest.raises(LumigradError, match="no fleet 'another'"):
        fleet.targets("another")


def test_a_worker_is_added_while_calls_wait_and_drained_when_none_do(load: Load) -> None:
    enough = threading.Event()

    def hurry(client: Client) -> None:
        scene = client.put(cloud(5000))
        while not enough.is_set():
            client.render(scene, LARGE)

    with fleet.client(timeout_s=WAIT_S, retry_s=WAIT_S) as client:
        callers = [threading.Thread(target=hurry, args=(client,)) for _ in range(8)]
        for caller in callers:
            caller.start()
        try:
            serving(2)
        finally:
            enough.set()
            for caller in callers:
                caller.join()
    wait_for(lambda: fleet.status().wanted == 1, "one worker to be enough")
    wait_for(lambda: len(fleet.status().targets) == 1 and not fleet.status().leaving, "the drain")


def test_a_worker_that_is_killed_is_started_again(load: Load) -> None:
    import ray

    (before,) = serving(1)
    actor = ray.get_actor("lumigrad/0", namespace="lumigrad")
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    wait_for(lambda: before not in fleet.status().targets, "the loss to be noticed")
    serving(1)


def test_the_fleet_itself_may_die(load: Load) -> None:
    import ray

    before, token = serving(1), fleet.token()
    ray.kill(ray.get_actor("lumigrad", namespace="lumigrad"), no_restart=False)
    wait_for(lambda: list(fleet.status().targets) == before, "the fleet to find its worker")

    def has_kept_its_token() -> bool:
        # The status may be the last answer of the old actor; a busy machine takes long to start the new one.
        with contextlib.suppress(Unavailable):
            return fleet.token() == token
        return False

    wait_for(has_kept_its_token, "the fleet's token")


def test_workers_of_a_node_that_fails_are_started_on_another(cluster: RayCluster, load: Load) -> None:
    (node,) = fleet.status().nodes
    cluster.kill_node(node)
    wait_for(lambda: fleet.status().nodes not in ((), (node,)), "a worker on another node")
