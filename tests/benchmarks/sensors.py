"""Sensor cameras and surfels in turns with a pinhole: `python -m tests.benchmarks.sensors [--docs] [CASE]`."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from lumigrad.kernels.gaussians import (
    Camera,
    FisheyeLens,
    FThetaLens,
    Gaussians,
    PinholeLens,
    Settings,
    SpinningLidar,
    backward,
    forward,
)
from tests.benchmarks.gaussian_scene import DISTANCE, Scene, output_gradient, scene
from tests.benchmarks.page import insert

CASES = {"100k@512x512": (100_000, 512, 512), "500k@1920x1080": (500_000, 1920, 1080)}
THREADS, TURNS = 2, 7
RESULTS = Path("build/bench/sensors.json")
PAGE, MARK = Path("docs/performance.md"), "benchmark sensors"
# Rows and columns of the lidar, and its largest elevations up and down, radians.
LIDAR, ELEVATIONS = (128, 2048), (0.26, -0.44)


@dataclass(frozen=True)
class Racer:
    """A camera with settings; `against` names the racer that its times are divided by."""

    label: str
    camera: Camera
    settings: Settings
    against: str


class Race:
    """The kernels for one scene through every camera."""

    def __init__(self, given: Scene) -> None:
        self.gaussians = Gaussians(**{name: torch.from_numpy(value) for name, value in given.tensors.items()})
        self._upstream = {"color": torch.from_numpy(output_gradient(given.width, given.height))}
        self.racers = racers(given)

    def once(self, racer: Racer) -> tuple[float, float]:
        """Milliseconds in the kernels' stages, forward and backward to every tensor of the scene."""
        done = forward(self.gaussians, [racer.camera], racer.settings, retain=True)
        assert done.state is not None
        ahead = sum(done.stages().values())
        return ahead, sum(backward(done.state, self._upstream).stages().values())

    def run(self, turns: int) -> dict[str, tuple[float, float]]:
        """Medians over the turns of each camera's times, divided by those of the camera that it is compared with."""
        times = []
        for turn in range(turns + 1):
            row = {racer.label: self.once(racer) for racer in self.racers}
            # The first turn warms up.
            if turn:
                times.append(row)
        return {
            racer.label: tuple(  # type: ignore[misc]
                float(np.median([row[racer.label][way] / row[racer.against][way] for row in times])) for way in (0, 1)
            )
            for racer in self.racers
        }


def racers(given: Scene) -> list[Racer]:
    """All cameras; the pinhole that the others are compared with comes first."""
    fx, fy, cx, cy = given.intrinsics
    film = {"fx": fx, "fy": fy, "cx": cx, "cy": cy}
    place = (given.rotation.astype(np.float64), given.translation.astype(np.float64), given.width, given.height)
    end = {"end_rotation": place[0], "end_translation": place[1] + [0.01 * DISTANCE, 0.0, 0.0]}
    widest = float(np.hypot(given.width, given.height) / 2 / min(fx, fy))
    ftheta = FThetaLens(
        cx=cx, cy=cy, max_angle=min(1.5, 1.2 * widest), angle_to_pixel_distance=(0.0, fx, 0.0, -0.02 * fx)
    )
    pinhole = Camera.opencv(*given.intrinsics, given.rotation, given.translation, given.width, given.height)
    ewa, ut, along = "pinhole, Jacobian", Settings(), Settings(response="ray")
    by_jacobian = Settings(projection_method="jacobian")
    sensor = Camera.sensor(PinholeLens(**film), *place)
    bent = Camera.sensor(PinholeLens(**film, radial=(-0.1, 0.02), tangential=(0.001, -0.001)), *place)
    rolling = Camera.sensor(PinholeLens(**film), *place, shutter="top_to_bottom", **end)
    fisheye = Camera.opencv(
        *given.intrinsics, given.rotation, given.translation, given.width, given.height, model="fisheye"
    )
    return [
        Racer(ewa, pinhole, Settings(), ewa),
        Racer("fisheye, Jacobian", fisheye, Settings(), ewa),
        Racer("surfels", pinhole, Settings(primitive="surfel"), ewa),
        Racer("pinhole, unscented", sensor, ut, ewa),
        Racer("with distortion", bent, ut, ewa),
        Racer("fisheye, unscented", Camera.sensor(FisheyeLens(**film), *place), ut, ewa),
        Racer("f-theta, unscented", Camera.sensor(ftheta, *place), ut, ewa),
        Racer("with distortion, Jacobian", bent, by_jacobian, ewa),
        Racer("f-theta, Jacobian", Camera.sensor(ftheta, *place), by_jacobian, ewa),
        Racer("rolling shutter, against the pinhole without", rolling, ut, "pinhole, unscented"),
        Racer("pinhole along rays", sensor, along, ewa),
        Racer("distortion along rays", bent, along, ewa),
    ]


def lidar_hits(gaussians: Gaussians) -> float:
    """Millions of pairs of a return and a Gaussian that it blends, per second and thread."""
    rows, columns = LIDAR
    lens = SpinningLidar(
        row_elevations=np.linspace(*ELEVATIONS, rows), column_azimuths=np.linspace(-np.pi, np.pi, columns + 1)[:-1]
    )
    # Axes in the middle of the scene, whose y points down: x forward, y to the left, z up.
    axes = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    camera = Camera.sensor(lens, axes, np.zeros(3), columns, rows)
    settings = Settings(response="ray")
    names = ("expected_hit_distance", "contributors")
    rates = []
    for _ in range(TURNS):
        done = forward(gaussians, [camera], settings, outputs=names)
        rates.append(float(done.outputs["contributors"].sum()) / sum(done.stages().values()) / 1e3 / THREADS)
    return float(np.median(rates))


def main() -> None:
    """Races, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    parser.add_argument("case", nargs="?", choices=CASES, default="500k@1920x1080", metavar="CASE")
    parser.add_argument("--turns", type=int, default=TURNS, help="(default: %(default)s)")
    arguments = parser.parse_args()
    _native.set_thread_count(THREADS)
    torch.set_num_threads(THREADS)
    race = Race(scene(*CASES[arguments.case]))
    ratios = race.run(arguments.turns)
    hits = lidar_hits(race.gaussians)
    machine = describe(resolve("cpu"))
    lines = [
        f"{arguments.case}, {THREADS} threads ({machine.device_name}, {machine.instruction_set}); times as multiples "
        f"of the pinhole's by its Jacobian, medians of {arguments.turns} turns in one run:",
        "",
        "| camera | forward | backward |",
        "|---|---|---|",
        *(f"| {label} | {ahead:.2f} | {back:.2f} |" for label, (ahead, back) in ratios.items()),
        "",
        f"A lidar of {LIDAR[0]} x {LIDAR[1]} returns in the middle of the same scene blends {hits:.1f} million pairs "
        "of a return and a Gaussian per second and thread.",
    ]
    print("\n".join(lines))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"case": arguments.case, "ratios": ratios, "lidar_million_pairs": hits}, indent=1))
    if arguments.docs:
        insert(MARK, "\n".join(lines), PAGE)


if __name__ == "__main__":
    main()
