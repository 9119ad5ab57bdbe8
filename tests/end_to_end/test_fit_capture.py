"""The example that fits Gaussians to photographs: it comes closer to those that it has not seen."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.pictures import write_image
from support.dataset_files import shots, transforms
from support.worker import WorkerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH, HEIGHT, FOCAL = 72, 56, 70.0
VIEWS, COUNT = 17, 600


def ball(generator: np.random.Generator) -> Gaussians:
    """Opaque Gaussians on a sphere, striped."""
    means = generator.normal(size=(COUNT, 3))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    colors = 0.5 + 0.45 * np.sin(4 * means + [0.0, 1.0, 2.0])
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (COUNT, 1))
    return Gaussians(means, quats, np.full((COUNT, 3), 0.07), np.full(COUNT, 0.95), colors=colors)


def write_points(path: Path, scene: Gaussians, generator: np.random.Generator) -> None:
    """Where the Gaussians are, roughly, with their colours, as text."""
    places = scene.means + generator.normal(scale=0.02, size=(COUNT, 3))
    properties = [f"property float {axis}" for axis in "xyz"]
    properties += [f"property uchar {color}" for color in ("red", "green", "blue")]
    rows = [
        " ".join(map(str, [*place, *color]))
        for place, color in zip(places, np.rint(255 * scene.colors).astype(int), strict=True)
    ]
    head = ["ply", "format ascii 1.0", f"element vertex {COUNT}", *properties, "end_header"]
    path.write_text("\n".join([*head, *rows, ""]))


@pytest.fixture
def capture(tmp_path: Path, client: Client) -> Path:
    """A folder as nerfstudio lays it out: pictures of a scene, their cameras, and points."""
    folder = tmp_path / "capture"
    (folder / "images").mkdir(parents=True)
    generator = np.random.default_rng(3)
    scene, taken = ball(generator), shots(VIEWS)
    lens = FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2
    cameras = [Camera.opencv(*lens, shot.axes.T, shot.translation, WIDTH, HEIGHT) for shot in taken]
    for shot, picture in zip(taken, client.render(scene, cameras).color, strict=True):
        write_image((folder / "images" / shot.file).with_suffix(".png"), picture)
    content = transforms(taken, fl_x=FOCAL, w=WIDTH, h=HEIGHT, ply_file_path="points.ply")
    (folder / "transforms.json").write_text(json.dumps(content))
    write_points(folder / "points.ply", scene, generator)
    return folder


def fit(capture: Path, *options: str, target: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLES / "fit_capture.py", capture, *options]
    environment = {"LUMIGRAD_TARGET": target, "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)


@pytest.mark.slow
def test_views_that_were_not_fitted_come_closer(capture: Path, tmp_path: Path, running: WorkerProcess):
    output = tmp_path / "out"
    done = fit(capture, "--steps", "60", "--sh-degree", "1", "--output", str(output), target=running.target)
    assert done.returncode == 0, done.stderr
    assert "600 Gaussians, 14 photographs to fit and 3 to measure by" in done.stdout
    numbers = re.search(r"PSNR from ([\d.]+) to ([\d.]+) dB, SSIM from ([\d.]+) to ([\d.]+)", done.stdout)
    before, after, before_ssim, after_ssim = map(float, numbers.groups())
    assert after > before + 4
    assert after_ssim > before_ssim + 0.04
    fitted = Gaussians.load(output / "fit.ply")
    assert len(fitted) == COUNT and fitted.sh_degree == 1
    picture = np.asarray(Image.open(output / "comparison.png"), np.float32) / 255
    assert picture.shape == (3 * HEIGHT, 3 * WIDTH, 3)
    # The columns are what was, what is, and what should be.
    initial, final, photographs = np.split(picture, 3, axis=1)
    assert np.square(final - photographs).mean() < np.square(initial - photographs).mean() / 2
    # A worker that was named is used, and left running.
    assert {path.name for path in output.iterdir()} == {"fit.ply", "comparison.png"}
    assert running.process.poll() is None


def test_a_capture_without_points_is_refused(capture: Path, tmp_path: Path):
    content = json.loads((capture / "transforms.json").read_text())
    del content["ply_file_path"]
    (capture / "transforms.json").write_text(json.dumps(content))
    done = fit(capture, "--output", str(tmp_path / "out"))
    assert done.returncode == 2
    assert f"expected initial points and at least two photographs in {capture}" in done.stderr
    assert not (tmp_path / "out").exists()


def test_ssim_is_the_mean_over_windows_of_the_definition():
    specification = importlib.util.spec_from_file_location("similarity", EXAMPLES / "similarity.py")
    similarity = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(similarity)
    generator = np.random.default_rng(0)
    x = generator.random((14, 17, 3))
    y = np.clip(x + generator.normal(scale=0.1, size=x.shape), 0, 1)
    offsets = np.arange(-5, 6)
    weights = np.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * 1.5**2))
    weights /= weights.sum()
    windows = [
        np.lib.stride_tricks.sliding_window_view(np.pad(picture, ((5, 5), (5, 5), (0, 0))), (11, 11), axis=(0, 1))
        for picture in (x, y)
    ]
    mean_x, mean_y = (np.sum(weights * window, axis=(-1, -2), keepdims=True) for window in windows)
    # Deviations from the mean of the window, also of the zeros in it.
    deviation_x, deviation_y = windows[0] - mean_x, windows[1] - mean_y
    variance_x, variance_y, covariance = (
        np.sum(weights * product, axis=(-1, -2), keepdims=True)
        for product in (deviation_x**2, deviation_y**2, deviation_x * deviation_y)
    )
    luminance = (2 * mean_x * mean_y + 1e-4) / (mean_x**2 + mean_y**2 + 1e-4)
    expected = np.mean(luminance * (2 * covariance + 9e-4) / (variance_x + variance_y + 9e-4))
    assert float(similarity.ssim(torch.tensor(x), torch.tensor(y))) == pytest.approx(expected, abs=1e-9)
    assert float(similarity.ssim(torch.tensor(x), torch.tensor(x))) == pytest.approx(1.0)
    assert similarity.psnr(torch.tensor(x), torch.tensor(x + 0.1)) == pytest.approx(20.0)
