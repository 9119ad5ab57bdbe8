"""What a call costs the thread that makes it: of the Python client, and of bare gRPC with the same bytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.experimental
import numpy as np

from lumigrad.client import Camera, Client, Gaussians
from support.calls.gaussian_calls import gaussian_cloud
from tests.benchmarks.service.callers import SINGLE
from tests.benchmarks.service.cases import RENDER, SMALL


@dataclass(frozen=True)
class ClientRow:
    """Processor time of the calling thread for one call; microseconds, medians of the rounds.

    Attributes:
        whole_us: `Client.render` with a small image.
        bare_us: a call of bare gRPC with the same request.
        own_us: the difference, which is this package's code.
    """

    whole_us: float
    bare_us: float
    own_us: float


def measure(target: str, request: bytes, calls: int, rounds: int) -> ClientRow:
    """Both, in turns."""
    width, height = SMALL
    camera = Camera.opencv(1.5 * width, 1.5 * width, width / 2, height / 2, np.eye(3), (0, 0, 0), width, height)
    options = ((grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),)
    with Client(target) as client, grpc.insecure_channel(target, options) as channel:
        scene = client.put(Gaussians(**gaussian_cloud(100)))
        method = channel.unary_unary(RENDER)
        ways: tuple[Callable[[], object], ...] = (
            lambda: client.render(scene, camera, image_format="uint8"),
            lambda: method(request, timeout=60, metadata=SINGLE),
        )
        found = []
        for _ in range(rounds + 1):
            found.append([_spent_us(way, calls) for way in ways])
    whole, bare = zip(*found[1:], strict=True)
    own = statistics.median(first - second for first, second in found[1:])
    return ClientRow(statistics.median(whole), statistics.median(bare), own)


def _spent_us(call: Callable[[], object], calls: int) -> float:
    start = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - start) / calls / 1e3
