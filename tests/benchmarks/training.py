"""Benchmark of training: `python -m tests.benchmarks.training [--docs] [CASE ...]` from the root.

The same step, with L1 and D-SSIM against one photograph, is made in four ways: on the worker with its own loss; on the
worker with a loss computed here (images and gradients as bfloat16); here, with images and gradients from the worker;
and without a worker. The first and the last take turns. The first two are also measured over a link with a round trip
of 50 ms and 1 Gbit/s each way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.client import Camera, Client, Gaussians
from support.fault_proxy import FaultProxy
from support.workers.worker import worker
from tests.benchmarks.gaussian_scene import Scene, scene
from tests.benchmarks.measure import write
from tests.benchmarks.page import insert
from tests.benchmarks.training_here import InProcess, WithRemoteGradients

CASES = {
    f"{count // 1000}k@{width}x{height}": (count, width, height)
    for count in (10_000, 100_000, 500_000)
    for width, height in ((400, 300), (1920, 1080))
}
RESULTS = Path("build/bench/training.json")
PAGE, MARK = Path("docs/performance.md"), "benchmark training"
SECONDS = 3.0
LEAST = 5
# Medians are those of TURNS turns of BURST steps each, after one turn that warms up, on the worker and in process.
TURNS, BURST = 7, 12
# Steps in flight: enough to hide a round trip, and few enough to begin a measurement soon.
AHEAD, BATCHES_AHEAD = 8, 4
ROUND_TRIP_SECONDS, BYTES_PER_SECOND = 0.05, 125e6
FAR = "_50ms"
WORKER, OWN, REMOTE = "worker_side", "worker_side_own_loss_bf16", "client_side"
Step = Callable[[], object]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Rate:
    """The rate of one way of training, and the bytes that it moves."""

    case: str
    op: str
    per_second: float
    bytes_per_step: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=CASES, help="all if none is named")
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    arguments = parser.parse_args()
    print(f"{'scene':<18}{'way':<30}{'steps/s':>10}{'bytes/step':>14}{'against in-process':>20}")
    rows: list[Rate] = []
    for case in arguments.cases or CASES:
        measured = list(_measured(case, scene(*CASES[case])))
        local = measured[-1].per_second
        for row in measured:
            ratio = row.per_second / local
            print(
                f"{row.case:<18}{row.op:<30}{row.per_second:>10.2f}{row.bytes_per_step:>14,}{ratio:>20.2f}", flush=True
            )
        rows += measured
    write(rows, RESULTS)
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        insert(MARK, _page(rows), PAGE)


def _page(rows: Sequence[Rate]) -> str:
    """The table of all cases, a column for each way."""
    cases = {
        case: {row.op: row for row in rows if row.case == case} for case in dict.fromkeys(row.case for row in rows)
    }
    lines = [
        f"Steps per second on {torch.get_num_threads()} threads, worker and trainer on one machine; in brackets bytes "
        "per step. Far: a round trip of 50 ms at 1 Gbit/s each way, and in brackets the part of the near rate.",
        "",
        "| Gaussians, view | in process | worker's loss | far | own loss, bfloat16 | far | remote gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, by_op in cases.items():
        cells = [case.replace("@", ", ").replace("x", " x "), f"{by_op['in_process'].per_second:.1f}"]
        for op in (WORKER, OWN):
            near, far = by_op[op], by_op[op + FAR]
            cells.append(f"{near.per_second:.1f} ({near.bytes_per_step:,})")
            cells.append(f"{far.per_second:.1f} ({far.per_second / near.per_second:.2f})")
        there = by_op[REMOTE]
        cells.append(f"{there.per_second:.1f} ({there.bytes_per_step:,})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _measured(case: str, made: Scene) -> Iterator[Rate]:
    gaussians = Gaussians(**made.tensors)
    camera = Camera.opencv(*made.intrinsics, made.rotation, made.translation, made.width, made.height)
    random = np.random.Generator(np.random.PCG64(3))
    photograph = random.integers(0, 256, (made.height, made.width, 3), np.uint8)
    ways = {
        WORKER: lambda client: _worker_side(gaussians, camera, photograph, client),
        OWN: lambda client: _own_loss(gaussians, camera, photograph, client),
        REMOTE: lambda client: nullcontext(WithRemoteGradients(gaussians, camera, photograph, client).step),
    }
    with worker("--device", "cpu") as process, FaultProxy(process.target) as proxy:
        for name, way in ways.items():
            is_ahead = name != REMOTE
            if name != WORKER:
                with Client(process.target, lane="stream") as client, way(client) as step:
                    per_second, _ = _per_second(step, proxy, is_ahead=is_ahead)
            if is_ahead:
                proxy.up.delay = proxy.down.delay = ROUND_TRIP_SECONDS / 2
                proxy.up.bytes_per_second = proxy.down.bytes_per_second = BYTES_PER_SECOND
            # Bytes are counted separately, since counting them slows the steps down.
            with Client(proxy.target, lane="stream") as client, way(client) as step:
                far, moved = _per_second(step, proxy, is_ahead=is_ahead)
            proxy.heal()
            if name == WORKER:
                per_second, in_process = _in_turns(gaussians, camera, photograph, process.target)
            yield Rate(case, name, per_second, moved)
            if is_ahead:
                yield Rate(case, name + FAR, far, moved)
    yield Rate(case, "in_process", in_process, 0)


def _in_turns(scene: Gaussians, camera: Camera, photograph: Bytes, target: str) -> tuple[float, float]:
    """Steps per second on the worker and in process, in turns, so that other work on the machine affects both."""
    here = InProcess(scene, camera, photograph)
    there_seconds, here_seconds = [], []
    with Client(target, lane="stream") as client, client.trainer(scene, [camera], [photograph]) as trainer:
        for _ in range(1 + TURNS):
            start = time.perf_counter()
            list(trainer.steps(BURST, in_flight=AHEAD))
            between = time.perf_counter()
            for _ in range(BURST):
                here.step()
            there_seconds.append(between - start)
            here_seconds.append(time.perf_counter() - between)
    return BURST / statistics.median(there_seconds[1:]), BURST / statistics.median(here_seconds[1:])


@contextmanager
def _worker_side(scene: Gaussians, camera: Camera, photograph: Bytes, client: Client) -> Iterator[Step]:
    with client.trainer(scene, [camera], [photograph]) as trainer:
        steps = iter(trainer.steps(1 << 30, in_flight=AHEAD))
        yield lambda: next(steps)


@contextmanager
def _own_loss(scene: Gaussians, camera: Camera, photograph: Bytes, client: Client) -> Iterator[Step]:
    target_image = photograph[None] / np.float32(255)
    with client.trainer(scene, [camera]) as trainer:
        batches = iter(trainer.batches(1 << 30, image_format="bfloat16", in_flight=BATCHES_AHEAD))

        def step() -> None:
            batch = next(batches)
            batch.apply(color=np.sign(batch.color - target_image) / target_image.size, gradient_format="bfloat16")

        yield step


def _per_second(step: Step, proxy: FaultProxy, *, is_ahead: bool) -> tuple[float, int]:
    """Steps per second, and bytes per step that pass the proxy."""
    for _ in range(AHEAD + 1 if is_ahead else 2):
        step()
    before = proxy.up.passed + proxy.down.passed
    rate, count = _steps_per_second(step)
    return rate, (proxy.up.passed + proxy.down.passed - before) // count


def _steps_per_second(step: Step) -> tuple[float, int]:
    """The mean rate over many steps, since some come back at once, and the number of steps."""
    start, count = time.perf_counter(), 0
    while count < LEAST or time.perf_counter() - start < SECONDS:
        step()
        count += 1
    return count / (time.perf_counter() - start), count


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
