"""Benchmark of training: `python -m tests.benchmarks.training [CASE ...]` from the root.

The same step, L1 and D-SSIM against one photograph, made in four ways: on the worker with its own loss, on the worker
with a loss from here (pictures and gradients as bfloat16), here with pictures and gradients from the worker, and
without a worker at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.client import Camera, Client, Gaussians
from tests.benchmarks.gaussian_scene import Scene, scene
from tests.benchmarks.training_here import InProcess, WithRemoteGradients
from tests.support.fault_proxy import FaultProxy
from tests.support.worker import worker

CASES = {
    f"{count // 1000}k@{width}x{height}": (count, width, height)
    for count in (10_000, 100_000, 500_000)
    for width, height in ((400, 300), (1920, 1080))
}
RESULTS = Path("build/bench/training.json")
SECONDS = 4.0
LEAST, MOST = 5, 100
# Steps whose bytes are counted.
COUNTED = 8
Step = Callable[[], object]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Rate:
    """How fast one way of training goes, and what it moves."""

    case: str
    op: str
    per_second: float
    bytes_per_step: int


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; all if none is named")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"CASE: expected some of {', '.join(CASES)}, got {', '.join(unknown)}")
    print(f"{'scene':<18}{'way':<26}{'steps/s':>10}{'bytes/step':>14}{'against in-process':>20}")
    rows: list[Rate] = []
    for case in arguments.cases or CASES:
        measured = list(_measured(case, scene(*CASES[case])))
        local = measured[-1].per_second
        for row in measured:
            ratio = row.per_second / local
            print(
                f"{row.case:<18}{row.op:<26}{row.per_second:>10.2f}{row.bytes_per_step:>14,}{ratio:>20.2f}", flush=True
            )
        rows += measured
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    print(f"\nwrote {RESULTS}")


def _measured(case: str, made: Scene) -> Iterator[Rate]:
    gaussians = Gaussians(**made.tensors)
    camera = Camera.opencv(*made.intrinsics, made.rotation, made.translation, made.width, made.height)
    random = np.random.Generator(np.random.PCG64(3))
    photograph = random.integers(0, 256, (made.height, made.width, 3), np.uint8)
    ways = {
        "worker_side": lambda client: _worker_side(gaussians, camera, photograph, client),
        "worker_side_own_loss_bf16": lambda client: _own_loss(gaussians, camera, photograph, client),
        "client_side": lambda client: nullcontext(WithRemoteGradients(gaussians, camera, photograph, client).step),
    }
    with worker("--device", "cpu") as process, FaultProxy(process.target) as proxy:
        for name, way in ways.items():
            with Client(process.target, lane="stream") as client, way(client) as step:
                per_second = _per_second(step)
            # Apart from the time: whoever counts bytes holds them up.
            with Client(proxy.target, lane="stream") as client, way(client) as step:
                yield Rate(case, name, per_second, _bytes_per_step(step, proxy))
    yield Rate(case, "in_process", _per_second(InProcess(gaussians, camera, photograph).step), 0)


@contextmanager
def _worker_side(scene: Gaussians, camera: Camera, photograph: Bytes, client: Client) -> Iterator[Step]:
    with client.trainer(scene, [camera], [photograph]) as trainer:
        steps = iter(trainer.steps(1 << 30, in_flight=4))
        yield lambda: next(steps)


@contextmanager
def _own_loss(scene: Gaussians, camera: Camera, photograph: Bytes, client: Client) -> Iterator[Step]:
    target = photograph[None] / np.float32(255)
    with client.trainer(scene, [camera]) as trainer:
        batches = iter(trainer.batches(1 << 30, image_format="bfloat16"))

        def step() -> None:
            batch = next(batches)
            batch.apply(color=np.sign(batch.color - target) / target.size, gradient_format="bfloat16")

        yield step


def _per_second(step: Step) -> float:
    for _ in range(2):
        step()
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(times) < LEAST or (time.perf_counter() < until and len(times) < MOST):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    # Steps that are on their way already come back at once: the mean is what counts.
    return round(1 / statistics.fmean(times), 3)


def _bytes_per_step(step: Step, proxy: FaultProxy) -> int:
    step()
    before = proxy.up.passed + proxy.down.passed
    for _ in range(COUNTED):
        step()
    return (proxy.up.passed + proxy.down.passed - before) // COUNTED


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
