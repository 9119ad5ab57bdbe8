"""`lumigrad fit` in any frame and unit: as good as near 0, in a frame that is written down."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.base.cautions import said
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.fitting.evaluation import psnr
from lumigrad.client.pictures import write_image
from lumigrad.client.values.camera_models import OpenCVModel
from support.workers.forks import ForkedProcess, lumigrad
from support.workers.worker import WorkerProcess

SIZE, VIEWS, COUNT = (64, 48), 12, 300
FRAMES = {"utm": (500_123.4, 4_649_776.2, 105.0), "ecef": (-1_334_567.8, 5_333_456.7, 3_232_323.2)}
QUICK = ("--sh-degree", "0", "--strategy", "none", "--background", "image", "--hold-out", "4")


def capture(client: Client) -> tuple[Capture, np.ndarray]:
    """Striped Gaussians on a sphere around 0, and cameras around them."""
    generator = np.random.default_rng(3)
    means = generator.normal(size=(COUNT, 3))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    colors = 0.5 + 0.45 * np.sin(4 * means + [0.0, 1.0, 2.0])
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (COUNT, 1))
    scene = Gaussians(means, quats, np.full((COUNT, 3), 0.08), np.full(COUNT, 0.9), colors=colors)
    look = {"up": (0, -1, 0), "width": SIZE[0], "height": SIZE[1]}
    cameras = [Camera.orbit((0, 0, 0), 3.5, 30 * k, 25 * (-1) ** k, **look) for k in range(VIEWS)]
    pictures = client.render(scene, cameras).color
    views = [View(f"v{k:02d}", camera) for k, camera in enumerate(cameras)]
    return Capture(tuple(views), Points(means, colors)), pictures


@pytest.fixture
def sets(tmp_path: Path, client: Client) -> dict[str, Path]:
    """The folder of the data set near 0, and of the same one in other frames, by name."""
    near, pictures = capture(client)
    folders = {}
    for name, offset in {"near": (0, 0, 0), **FRAMES}.items():
        folders[name] = tmp_path / name
        folders[name].mkdir()
        for view, picture in zip(near.views, pictures, strict=True):
            write_image(folders[name] / f"{view.name}.png", picture)
        views = tuple(View(view.name, view.camera, folders[name] / f"{view.name}.png") for view in near.views)
        with said():
            Capture(views, near.points).moved(offset).save(folders[name])
    return folders


def fit(data: Path, scene: Path, *options: str, target: str) -> subprocess.CompletedProcess[str]:
    done = lumigrad("fit", str(data), "-o", str(scene), *QUICK, *options, "--target", target, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def report_of(scene: Path) -> dict[str, Any]:
    return json.loads((scene.with_suffix(".fit") / "report.json").read_text())


def offset_of(scene: Path) -> np.ndarray:
    return np.array(json.loads(scene.with_suffix(".offset.json").read_text())["offset"])


@pytest.mark.slow
def test_a_capture_far_from_0_is_fitted_as_well_as_near_0(
    sets: dict[str, Path], tmp_path: Path, running: WorkerProcess
) -> None:
    scores = {}
    for name, folder in sets.items():
        scene = tmp_path / f"{name}.ply"
        done = fit(folder, scene, "--steps", "80", target=running.target)
        scores[name] = report_of(scene)["held_out"]["psnr"]
        assert "PrecisionWarning" not in done.stderr and "float32" not in done.stderr
        assert ("coordinates: those of the data set minus" in done.stdout) == (name != "near")
    assert not (tmp_path / "near.offset.json").exists() and report_of(tmp_path / "near.ply")["recipe"]["offset"] is None
    assert scores["near"] > report_of(tmp_path / "near.ply")["begin"]["psnr"] + 4
    for name, frame in FRAMES.items():
        scene = tmp_path / f"{name}.ply"
        assert abs(scores[name] - scores["near"]) < 1, scores
        offset = offset_of(scene)
        assert np.abs(offset - frame).max() < 10 and report_of(scene)["recipe"]["offset"] == offset.tolist()
        assert np.abs(np.median(Gaussians.load(scene).means, axis=0)).max() < 10
        assert f"minus ({offset[0]:.15g}, " in (scene.with_suffix(".fit") / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1000.0, 0.001], ids=["millimetres", "kilometres"])
def test_a_capture_is_fitted_as_well_in_any_unit(
    unit: float, sets: dict[str, Path], tmp_path: Path, running: WorkerProcess
) -> None:
    metres, folder = Capture.load(sets["near"]), tmp_path / "unit"
    assert metres.points is not None
    views = tuple(replace(view, camera=scaled(view.camera, unit)) for view in metres.views)
    Capture(views, Points(metres.points.positions * unit, metres.points.colors)).save(folder)
    options = ("--steps", "80", "--strategy", "mcmc", "--refine-poses", "--images", str(sets["near"]))
    scores = {}
    for name, data in {"metres": sets["near"], "unit": folder}.items():
        scene = tmp_path / f"{name}.ply"
        fit(data, scene, *options, target=running.target)
        scores[name] = report_of(scene)["held_out"]["psnr"]
    assert scores["metres"] > report_of(tmp_path / "metres.ply")["begin"]["psnr"] + 3
    assert abs(scores["unit"] - scores["metres"]) < 1, scores
    # The scene is shown, however close the cameras are.
    picture = tmp_path / "picture.png"
    options = ("--size", "64x48", "-o", str(picture), "--target", running.target)
    done = lumigrad("render", str(tmp_path / "unit.ply"), *options)
    assert done.returncode == 0, done.stderr
    assert np.asarray(Image.open(picture)).mean() > 20


def scaled(camera: Camera, unit: float) -> Camera:
    model = camera.model
    assert isinstance(model, OpenCVModel)
    return replace(camera, model=replace(model, translation=model.translation * unit))


def test_cameras_and_other_formats_agree_with_the_scene(
    sets: dict[str, Path], tmp_path: Path, running: WorkerProcess
) -> None:
    scene = tmp_path / "utm.ply"
    fit(sets["utm"], scene, "--steps", "40", "--refine-poses", target=running.target)
    photograph = np.asarray(Image.open(sets["utm"] / "v01.png"), np.float32) / 255
    refined = tmp_path / "utm.fit" / "transforms.json"
    with said():
        there = Capture.load(refined)
    # The refined cameras are in the frame of the data set.
    expected = Capture.load(sets["near"]).view("v01").camera.position + FRAMES["utm"]
    np.testing.assert_allclose(there.view("v01").camera.position, expected, atol=0.05)
    done = lumigrad("convert", str(scene), str(tmp_path / "other.glb"))
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(offset_of(tmp_path / "other.ply"), offset_of(scene))
    for file, cameras in ((scene, sets["utm"]), (scene, refined), (tmp_path / "other.glb", sets["utm"])):
        picture = tmp_path / "picture.png"
        options = ("--camera", str(cameras), "--view", "v01", "-o", str(picture), "--target", running.target)
        done = lumigrad("render", str(file), *options)
        assert done.returncode == 0 and "float32" not in done.stderr, done.stderr
        assert psnr(np.asarray(Image.open(picture), np.float32) / 255, photograph) > 14
    said_by_info = lumigrad("info", str(scene)).stdout
    assert "coordinates   those of the data set minus (500" in said_by_info
    # A fit that begins with the scene keeps its frame.
    again = tmp_path / "again.ply"
    begun = fit(sets["utm"], again, "--begin", str(scene), "--steps", "4", target=running.target)
    np.testing.assert_array_equal(offset_of(again), offset_of(scene))
    assert report_of(again)["begin"]["psnr"] > report_of(scene)["begin"]["psnr"] + 1, begun.stdout
    # A scene near 0 that replaces it leaves no offset of the other frame.
    fit(sets["near"], again, "--steps", "4", target=running.target)
    assert not again.with_suffix(".offset.json").exists()


def test_points_that_the_data_set_has_rounded_are_told_of(
    sets: dict[str, Path], tmp_path: Path, running: WorkerProcess
) -> None:
    with said():
        there = Capture.load(sets["utm"])
        assert there.points is not None
        Capture(there.views, Points(there.points.positions.astype(np.float32), there.points.colors)).save(sets["utm"])
    done = fit(sets["utm"], tmp_path / "utm.ply", "--steps", "2", target=running.target)
    assert "lumigrad: points of the data set, which are float32: at coordinates of 4.65e+06 " in done.stderr
    done = fit(sets["ecef"], tmp_path / "ecef.ply", "--steps", "2", target=running.target)
    assert "float32" not in done.stderr
    # The offset of another scene is not left beside a file that has none.
    fit(sets["near"], tmp_path / "near.ply", "--steps", "2", target=running.target)
    done = lumigrad("convert", "near.ply", "utm.spz", folder=tmp_path)
    assert "lumigrad: removes utm.offset.json, because" in done.stderr and not (tmp_path / "utm.offset.json").exists()


def test_a_scene_of_another_frame_is_not_begun_with(
    sets: dict[str, Path], tmp_path: Path, running: WorkerProcess
) -> None:
    near = tmp_path / "near.ply"
    fit(sets["near"], near, "--steps", "2", target=running.target)
    options = ("fit", str(sets["utm"]), "-o", str(tmp_path / "no.ply"), "--begin", str(near), *QUICK)
    done = lumigrad(*options, "--steps", "2", "--target", running.target, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "--begin: expected a scene amid the cameras" in done.stderr
    near.with_suffix(".offset.json").write_text(json.dumps({"offset": FRAMES["utm"]}))
    done = lumigrad(*options, "--steps", "2", "--target", running.target, timeout=100)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(offset_of(tmp_path / "no.ply"), FRAMES["utm"])


def test_a_fit_far_from_0_is_resumed_in_its_frame(
    sets: dict[str, Path], tmp_path: Path, running: WorkerProcess
) -> None:
    scene = tmp_path / "scene.ply"
    options = [str(sets["ecef"]), "-o", str(scene), *QUICK, "--target", running.target]
    begun = ForkedProcess(["fit", *options, "--steps", "60000", "--every", "20"])
    interrupt_after(scene, 2, begun)
    first, offset = report_of(scene), offset_of(scene)
    again = ForkedProcess(["fit", *options, "--resume", "--every", "20"])
    interrupt_after(scene, first["steps"] // 20 + 2, again)
    assert report_of(scene)["steps"] > first["steps"] and report_of(scene)["recipe"] == first["recipe"]
    assert report_of(scene)["held_out"]["psnr"] > first["held_out"]["psnr"] - 1
    np.testing.assert_array_equal(offset_of(scene), offset)


def interrupt_after(scene: Path, previews: int, process: ForkedProcess) -> None:
    """Interrupts a fit once it has written `previews` previews, and waits for its end."""
    until = time.monotonic() + 120
    while len(list(scene.with_suffix(".fit").glob("preview_*"))) < previews:
        assert process.poll() is None and time.monotonic() < until, process.communicate(timeout=1)
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=100)
    assert process.returncode == 0, complaint
