"""`lumigrad fit` of captures by real cameras: it trains through their lenses, and corrects them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, FisheyeLens, FThetaLens, Gaussians, PinholeLens
from lumigrad.client.datasets import Capture, View
from lumigrad.client.pictures import write_image
from lumigrad.client.values.lenses import Lens
from support.files.dataset_files import shots
from support.training.scenes import gaussian_lesson
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

SIZE = (72, 56)
FILM: dict[str, Any] = {"fx": 46.0, "fy": 46.0, "cx": 36.0, "cy": 28.0}
LENSES = {
    "fisheye": (FisheyeLens(**FILM, radial=(0.05, -0.01, 0, 0)), {"fx": 44.5, "fy": 44.5, "radial": (0.0,) * 4}),
    "pinhole": (PinholeLens(**FILM, radial=(-0.15, 0.0)), {"radial": ()}),
    "ftheta": (
        FThetaLens(cx=36, cy=28, max_angle=1.0, angle_to_pixel_distance=(0, 46, 0, -3)),
        {"angle_to_pixel_distance": (0, 44.5, 0, 0)},
    ),
}


def write_capture(folder: Path, lens: Lens, wrong: Lens, client: Client, **sensor: Any) -> Gaussians:
    """Writes photographs of a scene through `lens`, with a data set that has the lens `wrong`; returns the scene."""
    scene = gaussian_lesson(count=400, degree=0).scene
    (folder / "images").mkdir(parents=True)
    views = []
    for shot in shots(13):
        # Near enough for the scene to fill pictures.
        position = shot.axes.T @ np.zeros(3) + [0, 0, 3.2]
        end = {"end_rotation": shot.axes.T, "end_translation": position + sensor["motion"]} if sensor else {}
        shutter = sensor.get("shutter", "global")
        camera = Camera.sensor(lens, shot.axes.T, position, *SIZE, shutter=shutter, **end)
        picture = client.render(scene, camera).color
        path = folder / "images" / f"{Path(shot.file).stem}.png"
        write_image(path, picture)
        views.append(View(path.stem, replace(camera, model=replace(camera.model, lens=wrong)), path))
    Capture(tuple(views)).save(folder)
    return scene


@pytest.mark.parametrize("name", LENSES)
def test_wrong_lenses_are_found(name: str, tmp_path: Path, client: Client, running: WorkerProcess) -> None:
    lens, changes = LENSES[name]
    scene = write_capture(tmp_path, lens, replace(lens, **changes), client)
    begin = tmp_path / "begin.ply"
    scene.save(begin)
    output = tmp_path / "scene.ply"
    command = ["fit", tmp_path, "-o", output, "--begin", begin, "--strategy", "none", "--steps", 200, "--json"]
    command += ["--refine-intrinsics", "--refine-lenses"]
    done = lumigrad(*map(str, command), "--target", running.target)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["held_out"]["psnr"] > report["begin"]["psnr"] + 1.0, report
    # The cameras that were found are a data set, with one lens.
    refined = Capture.load(output.with_suffix(".fit"), sensors=True)
    assert len(refined) == 13 and len({view.camera.model.lens for view in refined.views}) == 1
    assert all(view.image is not None for view in refined.views)
    better = refined.views[0].camera.model.lens
    first = "angle_to_pixel_distance" if name == "ftheta" else "radial"
    which = 1 if name == "ftheta" else 0
    values = [(getattr(each, first) or (0.0, 0.0))[which] for each in (replace(lens, **changes), better, lens)]
    # Few steps at fit's rates go only a part of the way.
    assert abs(values[1] - values[2]) < 0.97 * abs(values[0] - values[2]), values


def test_rolling_shutters_are_fitted_as_they_are(tmp_path: Path, client: Client, running: WorkerProcess) -> None:
    lens = PinholeLens(**FILM)
    motion = {"shutter": "left_to_right", "motion": np.array([0.15, 0.05, 0.0])}
    write_capture(tmp_path, lens, lens, client, **motion).save(tmp_path / "begin.ply")
    options = ["--begin", tmp_path / "begin.ply", "--strategy", "none", "--steps", 20, "--json", "--refine-end-poses"]
    output = tmp_path / "scene.ply"
    done = lumigrad(*map(str, ["fit", tmp_path, "-o", output, *options]), "--target", running.target)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["begin"]["psnr"] > 40
    ends = [view.camera.model.end_translation for view in Capture.load(output.with_suffix(".fit")).views]
    assert all(np.abs(end - [0.15, 0.05, 3.2]).max() < 0.02 for end in ends)


def test_end_poses_are_refined_of_rolling_shutters_alone(
    tmp_path: Path, client: Client, running: WorkerProcess
) -> None:
    lens = PinholeLens(**FILM)
    write_capture(tmp_path, lens, lens, client).save(tmp_path / "begin.ply")
    options = ["--begin", tmp_path / "begin.ply", "--steps", 20, "--refine-end-poses"]
    done = lumigrad(*map(str, ["fit", tmp_path, "-o", tmp_path / "scene.ply", *options]), "--target", running.target)
    assert done.returncode != 0
    assert "--refine-end-poses: expected cameras with a rolling shutter, and " in done.stderr
