"""Times of a driving simulator's frames and scans: latency, the kernels' part, and frames per second.

    make bench-simulators
    python -m tests.benchmarks.sensorsim --gaussians 500000 --rollouts 4 --device cuda:0

A separate worker renders a street of Gaussians through f-theta cameras with rolling shutters, in batches, and scans
it with both lidars; each rollout is a channel with one call in progress, as in AlpaSim.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from lumigrad.client import Gaussians
from lumigrad.protos.drive.lidars import LIDARS
from support.driving.scenes import FORWARD, pose
from support.driving.stubs import JPEG, MESSAGES, TOP_TO_BOTTOM, DrivingClient
from support.workers.worker import WorkerProcess, worker

SIZES = ((960, 540), (1920, 1080))
CAMERAS = (1, 2, 4)
SCENE = "benchmark"
# Headings of the cameras of a car, degrees to the left.
_HEADINGS = (0, 60, -60, 180)


@dataclass(frozen=True)
class Row:
    """Times of calls for some frames each, milliseconds."""

    sensor: str
    frames: int
    p50_ms: float
    p99_ms: float
    kernel_ms: float
    frames_per_second: float
    calls: int


def street(folder: Path, count: int) -> None:
    """A street 120 m long and 40 m wide, with harmonics of degree 1."""
    random = np.random.default_rng(1)
    sh = random.normal(0.0, 0.1, (count, 4, 3))
    sh[:, 0] = random.uniform(-1.5, 1.5, (count, 3))
    # Most of the Gaussians are on the ground, the rest on both sides up to 10 m.
    means = random.uniform([-60, -20, -0.2], [60, 20, 0.2], (count, 3))
    sides = random.random(count) < 0.4
    means[sides] = random.uniform([-60, 8, 0], [60, 20, 10], (int(sides.sum()), 3))
    means[sides, 1] *= random.choice([-1, 1], int(sides.sum()))
    scales = random.lognormal(-2.6, 0.4, (count, 3))
    place = folder / SCENE
    place.mkdir()
    Gaussians(means, random.normal(size=(count, 4)), scales, random.uniform(0.2, 0.95, count), sh=sh).save(
        place / "street.ply"
    )
    manifest = {"format": "lumigrad.drive", "version": 1, "scene_id": SCENE, "cameras": []}
    (place / "scene.json").write_text(json.dumps({**manifest, "gaussians": [{"file": "street.ply"}]}))


def batch(width: int, height: int, cameras: int, step: int) -> Any:
    """The request for one step of a simulation."""
    lens = MESSAGES["Ftheta"](
        principal_point_x=width / 2 - 0.5, principal_point_y=height / 2 - 0.5, reference_poly=1,
        pixeldist_to_angle_poly=[0, 2.1 / width], max_angle=1.3,
    )  # fmt: skip
    spec = MESSAGES["CameraSpec"](ftheta_param=lens, shutter_type=TOP_TO_BOTTOM)
    spec.resolution_w, spec.resolution_h = width, height
    items = []
    for heading in _HEADINGS[:cameras]:
        turned = (Rotation.from_euler("z", heading, degrees=True) * Rotation.from_quat(FORWARD)).as_quat()
        x = -20 + 0.5 * (step % 80)
        pair = MESSAGES["PosePair"](start_pose=pose((x, 0, 1.5), turned), end_pose=pose((x + 0.15, 0, 1.5), turned))
        request = MESSAGES["Frame"](
            scene_id=SCENE, resolution_w=width, resolution_h=height, camera_intrinsics=spec, frame_start_us=step,
            frame_end_us=step + 30_000, sensor_pose=pair, image_format=JPEG, image_quality=95,
        )  # fmt: skip
        items.append({"camera_name": str(heading), "request": request})
    return MESSAGES["Batch"](items=items)


def scan(device: int, step: int) -> Any:
    """The request for a scan of one turn of the lidar."""
    x = -20 + 0.5 * (step % 80)
    pair = MESSAGES["PosePair"](start_pose=pose((x, 0, 1.9)), end_pose=pose((x + 0.5, 0, 1.9)))
    times = {"frame_start_us": step, "frame_end_us": step + 100_000}
    return MESSAGES["LidarFrame"](scene_id=SCENE, lidar_config={"lidar_type": device}, sensor_pose=pair, **times)


def kinds() -> Iterator[tuple[str, int, str, Callable[[int], Any]]]:
    """The measured calls: name, frames of a call, method, and a function from a step to the request."""
    for width, height in SIZES:
        for cameras in CAMERAS:
            yield f"{width}x{height}", cameras, "batch_render_rgb", partial(batch, width, height, cameras)
    for number, name in enumerate(LIDARS):
        yield name, 1, "render_lidar", partial(scan, number)


def kernel_seconds(process: WorkerProcess) -> float:
    """The total of the kernels' own timers since the worker started."""
    return sum(map(float, re.findall(r"^lumigrad_kernel_seconds_sum\{.*\} (\S+)$", process.metrics(), re.M)))


def check(reply: Any) -> None:
    """Fails unless a reply has what was asked for."""
    if hasattr(reply, "items"):
        assert all(item.success for item in reply.items), reply.items[0].error_message
    else:
        assert reply.num_points


def measured(
    process: WorkerProcess,
    kind: tuple[str, int, str, Callable[[int], Any]],
    rollouts: int,
    seconds: float,
) -> Row:
    """Measures calls for some time, from several rollouts at once."""
    sensor, frames, method, request_at = kind

    def rollout(first: int) -> list[float]:
        times: list[float] = []
        with DrivingClient(process.target) as simulator:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until or len(times) < 5:
                request = request_at(first + len(times))
                started = time.perf_counter()
                reply = simulator.call(method, request)
                times.append((time.perf_counter() - started) * 1e3)
                check(reply)
        return times

    rollout(0)
    before, started = kernel_seconds(process), time.perf_counter()
    with ThreadPoolExecutor(rollouts) as threads:
        times = [one for each in threads.map(rollout, range(0, 20 * rollouts, 20)) for one in each]
    whole = time.perf_counter() - started
    p50, p99 = map(float, np.percentile(times, (50, 99)))
    kernel_ms = (kernel_seconds(process) - before) / len(times) * 1e3
    return Row(sensor, frames, p50, p99, kernel_ms, frames * len(times) / whole, len(times))


def rows(device: str, count: int, rollouts: int, seconds: float) -> Iterator[Row]:
    """All rows of the table, measured with a separate worker."""
    with tempfile.TemporaryDirectory() as folder:
        street(Path(folder), count)
        options = ("--device", device, "--sensorsim", folder, "--sensorsim-preload")
        with worker(*options) as process:
            for kind in kinds():
                yield measured(process, kind, rollouts, seconds)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", nargs="*", default=["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])])
    parser.add_argument("--gaussians", type=int, default=50_000)
    parser.add_argument("--rollouts", type=int, default=1, help="simulations at once")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row")
    given = parser.parse_args()
    for device in given.device:
        print(f"{given.gaussians:,} Gaussians, {given.rollouts} rollouts, JPEG, f-theta, rolling shutter, {device}")
        print("| sensor | frames a call | p50, ms | p99, ms | kernels, ms | frames/s | calls |")
        print("|---|---|---|---|---|---|---|")
        for row in rows(device, given.gaussians, given.rollouts, given.seconds):
            times = f"{row.p50_ms:.1f} | {row.p99_ms:.1f} | {row.kernel_ms:.1f} | {row.frames_per_second:.1f}"
            print(f"| {row.sensor} | {row.frames} | {times} | {row.calls} |", flush=True)
    print(f"{os.cpu_count()} cores; load of the last minutes: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
