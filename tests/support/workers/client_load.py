"""Clients of workers in fixtures, and renders through them: a small one, and many of them at a fixed rate."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Spheres
from lumigrad.client.transport import connection, lane, lanes
from support.workers.load import Load
from support.workers.slow_render import wait_until

CAMERA = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=64, height=48)


def client_fixture(worker: str, scope: Any = "function", **options: Any) -> Any:
    """Returns a fixture: a client with these options of the worker, or proxy, that another fixture gives."""

    @pytest.fixture(scope=scope)
    def connected(request: pytest.FixtureRequest) -> Iterator[Client]:
        with Client(request.getfixturevalue(worker).target, **options) as client:
            if options.get("lane") == "shared":
                wait_for_lane(client)
            yield client

    return connected


def wait_for_lane(client: Client, kind: str = "shared") -> None:
    """Wait until payloads travel so: both sides give up the opening of a lane, for which a busy machine may be slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no shared memory with the worker", RuntimeWarning)
        wait_until(lambda: client.lane == kind, f"a lane: {kind}")


@pytest.fixture(scope="module", autouse=True)
def patient_clients() -> Iterator[None]:
    """Clients wait for lanes, and for workers to forget states, as long as a busy machine may need.

    After some seconds they would use the stream, and leave the states to be forgotten later.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (lane, lanes):
            patch.setattr(module, "PATIENCE_S", 100.0)
        patch.setattr(connection, "_TELL_S", 100.0)
        yield


@contextmanager
def descriptors(more: int) -> Iterator[None]:
    """Lets this process open only `more` further files at a time."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def cloud(count: int = 200, seed: int = 7) -> Spheres:
    random = np.random.default_rng(seed)
    positions, colors = random.normal(size=(count, 3)), random.random((count, 3))
    return Spheres(positions.astype("f4"), colors.astype("f4"), np.full(count, 0.1, "f4"))


def renders(client: Client) -> Callable[[], None]:
    """A call that renders a stored scene and checks the image."""
    scene = client.put(cloud())
    expected = client.render(scene, CAMERA).color

    def call() -> None:
        assert np.array_equal(client.render(scene, CAMERA).color, expected), "a wrong picture"

    return call


@contextmanager
def load(target: str, rate: float = 30.0) -> Iterator[Load]:
    """Runs `renders` at a fixed rate, with the client's own retries."""
    with Client(target, timeout_s=240, retry_s=120) as client, Load([renders(client)], rate) as running:
        yield running
