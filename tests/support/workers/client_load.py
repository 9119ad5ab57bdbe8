"""Clients of workers in fixtures, and renders through them: a small one, and many of them at a fixed rate."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Spheres
from support.workers.load import Load

CAMERA = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=64, height=48)


def client_fixture(worker: str, scope: Any = "function", **options: Any) -> Any:
    """Returns a fixture: a client with these options of the worker, or proxy, that another fixture gives."""

    @pytest.fixture(scope=scope)
    def connected(request: pytest.FixtureRequest) -> Iterator[Client]:
        with Client(request.getfixturevalue(worker).target, **options) as client:
            yield client

    return connected


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
    with Client(target, timeout_s=120, retry_s=60) as client, Load([renders(client)], rate) as running:
        yield running
