"""Benchmark of training: `python -m tests.benchmarks.training [--docs] [CASE ...]` from the root.

The same step, with L1 and D-SSIM against one photograph, is made in four ways: on the worker with its own loss; on the
worker with a loss computed here (images and gradients as bfloat16); here, with images and gradients from the worker;
and without a worker. The first and the last take turns. The first two are also measured over a link with a round trip
of 50 ms and 1 Gbit/s each way.

`--parts` measures, for one scene, the bytes that these steps move and the times of their parts, by shared memory and by
stream.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.client import Camera, Client, Gaussians, Loss
from lumigrad.client.transport.lanes import LaneMode
from support.fault_proxy import FaultProxy
from support.workers.worker import WorkerProcess, worker
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
PARTS_PAGE, PARTS_MARK = Path("docs/which_call.md"), "benchmark training parts"
PARTS_CASE, PARTS_SIZES = "100k@512x512", (100_000, 512, 512)
PARTS_TURNS, PARTS_BURST = 5, 4
PARTS_STEPS = (1 + PARTS_TURNS) * PARTS_BURST
# The program's loss is as cheap as possible: the sum of absolute differences.
LOSS = Loss(l1=1.0, dssim=0.0)
# The worker's kernels in a step, by its parts.
KERNELS = {
    "render": ("project", "sort", "bin", "blend"),
    "loss": ("image_loss",),
    "backward": ("blend_backward", "project_backward"),
    "optimizer": ("adam",),
}
# Titles of the parts of a step with gradients of the worker, in order.
OPERATOR_PARTS = {
    "parameters_up": "parameters to the worker",
    "render": "render",
    "image_down": "image to the program",
    "loss": "loss, autograd",
    "gradient_up": "gradient of the image to the worker",
    "backward": "backward",
    "gradients_down": "gradients to the program",
    "optimizer": "optimiser",
}
# Stages of a worker's step, a column each.
PARTS = {
    "kernels": tuple(stage for stages in KERNELS.values() for stage in stages),
    "read": ("decode", "upload"),
    "loss, optimiser": ("loss", "optimize"),
    "write": ("download", "encode"),
}
# Sums of times by stage, or by kernel, and of bytes.
SUM = re.compile(
    r'^lumigrad_(?:kernel_seconds_sum\{.*stage="(\w+)"\}|stage_seconds_sum\{stage="(\w+)"\}'
    r'|payload_bytes_total\{direction="(\w+)",method="(?:Render|Training)Service.*\}) (\S+)$',
    re.MULTILINE,
)
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
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    help_text = f"measure the parts of the steps of {PARTS_CASE} instead, whose table is in {PARTS_PAGE}"
    parser.add_argument("--parts", action="store_true", help=help_text)
    arguments = parser.parse_args()
    if arguments.parts:
        # Several threads of torch would wait for each other on a busy machine, which counts as processor time.
        torch.set_num_threads(1)
        table = f"{_parts_table()}\n\n{_operator_table()}"
        print(table)
        if arguments.docs:
            insert(PARTS_MARK, table, PARTS_PAGE)
        return
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"CASE: expected some of {', '.join(CASES)}, got {', '.join(unknown)}")
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
def _worker_side(
    scene: Gaussians, camera: Camera, photograph: Bytes, client: Client, loss: Loss | None = None
) -> Iterator[Step]:
    with client.trainer(scene, [camera], [photograph], loss=loss or Loss()) as trainer:
        steps = iter(trainer.steps(1 << 30, in_flight=AHEAD))
        yield lambda: next(steps)


@contextmanager
def _own_loss(
    scene: Gaussians, camera: Camera, photograph: Bytes, client: Client, ahead: int = BATCHES_AHEAD
) -> Iterator[Step]:
    target_image = photograph[None] / np.float32(255)
    with client.trainer(scene, [camera]) as trainer:
        batches = iter(trainer.batches(1 << 30, image_format="bfloat16", in_flight=ahead))

        def step() -> None:
            batch = next(batches)
            batch.apply(color=np.sign(batch.color - target_image) / target_image.size, gradient_format="bfloat16")

        yield step


def _parts_table() -> str:
    """A row for each way of training and of sending tensors: bytes, and milliseconds of a step and of its parts."""
    lines = [
        f"| step | up, bytes | down, bytes | ms | worker: {' | '.join(PARTS)} | program, processor |",
        "|---" * (5 + len(PARTS)) + "|",
    ]
    with worker("--device", "cpu") as process:
        for name, lane, way in _ways_in_parts():
            before = _sums(process)
            with Client(process.target, lane=lane) as client, way(client) as step:
                found = _parts(step, lambda: _sums(process))
            # A training's sums are known when it has ended.
            moved = _sums(process) - before
            cells = [f"{moved[direction] / PARTS_STEPS:,.0f}" for direction in ("received", "sent")]
            stages = [sum(found.get(stage, 0.0) for stage in stages) for stages in PARTS.values()]
            cells += [f"{1e3 * seconds:.1f}" for seconds in (found["step"], *stages, found["program"])]
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def _scene_in_parts() -> tuple[Gaussians, Camera, Bytes]:
    made = scene(*PARTS_SIZES)
    camera = Camera.opencv(*made.intrinsics, made.rotation, made.translation, made.width, made.height)
    photograph = np.random.default_rng(3).integers(0, 256, (made.height, made.width, 3), np.uint8)
    return Gaussians(**made.tensors), camera, photograph


def _ways_in_parts() -> Iterator[tuple[str, LaneMode, Callable[[Client], AbstractContextManager[Step]]]]:
    gaussians, camera, photograph = _scene_in_parts()
    lanes: tuple[tuple[str, LaneMode], ...] = (("shared memory", "shared"), ("stream", "stream"))
    for how, lane in lanes:
        yield (
            f"PyTorch's loss and optimiser, gradients of the worker; {how}",
            lane,
            lambda client: nullcontext(WithRemoteGradients(gaussians, camera, photograph, client, LOSS).step),
        )
    for how, lane in lanes:
        yield (
            f"a trainer, your own loss in bfloat16; {how}",
            lane,
            lambda client: _own_loss(gaussians, camera, photograph, client, ahead=1),
        )
    yield (
        "a trainer, the worker's loss; stream",
        "stream",
        lambda client: _worker_side(gaussians, camera, photograph, client),
    )


def _operator_table() -> str:
    """A row for each part of a step with PyTorch's loss and optimiser, beside the parts of the worker's own step."""
    gaussians, camera, photograph = _scene_in_parts()
    columns: list[dict[str, float]] = []
    with worker("--device", "cpu") as process:
        for lane in ("shared", "stream"):
            with Client(process.target, lane=lane) as client:  # type: ignore[arg-type]
                remote = WithRemoteGradients(gaussians, camera, photograph, client, LOSS)
                column = _parts(remote.step, lambda: Counter(remote.parts))  # noqa: B023
                columns.append({**column, "loss": column["step"] - column["calls"] - column["optimizer"]})
        with Client(process.target) as client, _worker_side(gaussians, camera, photograph, client, LOSS) as step:
            found = _parts(step, lambda: _sums(process))
            kernels = {part: sum(found.get(stage, 0.0) for stage in stages) for part, stages in KERNELS.items()}
            columns.append({**kernels, "step": found["step"]})
    scene_bytes, picture_bytes = sum(array.nbytes for array in gaussians.tensors.values()), 4 * photograph.size
    moved = dict(zip(OPERATOR_PARTS, (scene_bytes, 0, picture_bytes, 0, picture_bytes, 0, scene_bytes), strict=False))
    rows = [("part", ["bytes", "shared memory", "stream", "the worker's loss and optimiser"]), ("---", ["---"] * 4)]
    for part, title in OPERATOR_PARTS.items():
        rows.append((title, [f"{moved[part]:,}" if moved.get(part) else "", *_cells(columns, part)]))
    # The worker's steps follow each other without waits.
    for column in columns[:2]:
        column["rest"] = column["step"] - sum(column.get(part, 0.0) for part in OPERATOR_PARTS)
    rows += [(title, ["", *_cells(columns, part)]) for part, title in (("rest", "gRPC, waits"), ("step", "all"))]
    return "\n".join(f"| {title} | {' | '.join(cells)} |" for title, cells in rows)


def _cells(columns: Sequence[dict[str, float]], part: str) -> list[str]:
    return [f"{1e3 * column[part]:.1f}" if part in column else "" for column in columns]


def _parts(step: Step, sums: Callable[[], Counter[str]]) -> dict[str, float]:
    """Medians per step over some turns: growth of `sums`, and seconds of the step and of this process."""
    turns: list[dict[str, float]] = []
    for _ in range(1 + PARTS_TURNS):
        before, processor, start = sums(), time.process_time(), time.perf_counter()
        for _ in range(PARTS_BURST):
            step()
        found = {"step": time.perf_counter() - start, "program": time.process_time() - processor}
        found |= {name: value - before[name] for name, value in sums().items()}
        turns.append(found)
    return {name: statistics.median(turn[name] for turn in turns[1:]) / PARTS_BURST for name in turns[-1]}


def _sums(process: WorkerProcess) -> Counter[str]:
    """The worker's times and bytes so far."""
    sums: Counter[str] = Counter()
    for *names, value in SUM.findall(process.metrics()):
        sums["".join(names)] += float(value)  # type: ignore[assignment]
    return sums


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
