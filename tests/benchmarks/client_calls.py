"""The caller's processor time in calls of the Python client, in turns with gRPC calls that send the same bytes.

The client sends its payloads by stream. A retained render and its backward pass count as one call. Writes the table in
docs/performance.md with `--docs`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from lumigrad.client import Camera, Client, Cuboid, Gaussians, World
from support.workers.worker import worker
from tests.benchmarks.page import insert

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
CALLS, WARM = 30, 100
WIDTH, HEIGHT = 32, 24


@dataclass(frozen=True)
class Row:
    """Medians in microseconds of processor time: of the client's call, of gRPC's, and of the difference."""

    name: str
    client_us: float
    bare_us: float
    own_us: float


@contextmanager
def recorded() -> Iterator[list[tuple[Any, bytes, Any]]]:
    """The callables of RPCs made within the block, with the bytes of their requests and their metadata."""
    found: list[tuple[Any, bytes, Any]] = []
    kinds = (grpc.UnaryUnaryMultiCallable, grpc.UnaryStreamMultiCallable)
    made = {kind: kind.__call__ for base in kinds for kind in base.__subclasses__()}

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, request: Any, timeout: Any = None, metadata: Any = None, **options: Any) -> Any:
            found.append((self, self._request_serializer(request), metadata))
            return original(self, request, timeout=timeout, metadata=metadata, **options)

        return call

    for kind, original in made.items():
        kind.__call__ = recording(original)
    try:
        yield found
    finally:
        for kind, original in made.items():
            kind.__call__ = original


def bare(channel: grpc.Channel, method: Any, request: bytes, metadata: Any) -> Callable[[], object]:
    """A call of the same method, with the same bytes, without serializers."""
    path = method._method.decode()
    if isinstance(method, grpc.UnaryUnaryMultiCallable):
        unary = channel.unary_unary(path)
        return lambda: unary(request, timeout=60.0, metadata=metadata)
    stream = channel.unary_stream(path)
    return lambda: list(stream(request, timeout=60.0, metadata=metadata))


def processor_us(call: Callable[[], object]) -> float:
    """The mean processor time of a call in this thread."""
    began = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - began) / CALLS * 1e6


def compare(name: str, call: Callable[[], object], channel: grpc.Channel, rounds: int) -> Row:
    """Measures a call and its RPCs."""
    for _ in range(WARM):
        call()
    with recorded() as rpcs:
        call()
    same = [bare(channel, *rpc) for rpc in rpcs]

    def all_bare() -> None:
        for each in same:
            each()

    turns = [(processor_us(call), processor_us(all_bare)) for _ in range(rounds)]
    client, grpcs = (statistics.median(times) for times in zip(*turns, strict=True))
    return Row(name, client, grpcs, statistics.median(of_client - of_grpc for of_client, of_grpc in turns))


def rows(rounds: int) -> Generator[Row, None, None]:
    """Measures all calls."""
    random = np.random.default_rng(1)
    means, colors = random.normal(size=(100, 3)), random.random((100, 3))
    scene = Gaussians(
        means, np.tile([1.0, 0, 0, 0], (100, 1)), np.full((100, 3), 0.05), np.full(100, 0.5), colors=colors
    )
    views = [Camera.orbit((0, 0, 0), 6.0, angle, 20.0, width=WIDTH, height=HEIGHT) for angle in range(0, 360, 10)]
    upstream, spheres = np.ones((HEIGHT, WIDTH, 3), np.float32), random.normal(size=(8, 4)).astype(np.float32)
    turn = iter(range(1 << 60))

    def view() -> Camera:
        return views[next(turn) % len(views)]

    with (
        worker("--device", "cpu") as process,
        Client(process.target, lane="stream") as client,
        grpc.insecure_channel(process.target) as channel,
    ):
        stored, world = client.put(scene), client.put(World(Cuboid((1, 1, 1))))
        options: dict[str, Any] = {"near": 0.1, "outputs": ("color",), "image_format": "uint8"}
        yield compare("`render`", lambda: client.render(stored, view(), **options), channel, rounds)
        several = {**options, "outputs": ("color", "depth", "alpha"), "image_format": "float32"}
        yield compare("`render`, 3 outputs", lambda: client.render(stored, view(), **several), channel, rounds)
        frame = client.render(stored, views[0], retain=True)
        yield compare("`backward`", lambda: frame.backward(upstream), channel, rounds)
        yield compare("`query`", lambda: client.query(world, spheres), channel, rounds)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    lines = ["| call | µs | bare gRPC | own |", "|---|---|---|---|"]
    lines += [
        f"| {row.name} | {row.client_us:.0f} | {row.bare_us:.0f} | {row.own_us:.0f} |" for row in rows(arguments.rounds)
    ]
    print("\n".join(lines))
    if arguments.docs:
        insert("benchmark client_calls", "\n".join(lines), PAGE)


if __name__ == "__main__":
    main()
