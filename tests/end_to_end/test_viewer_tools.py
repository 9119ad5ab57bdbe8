"""The tools of the viewer in a headless browser: screenshots, crop box, camera paths, cameras of a capture, keys."""

from __future__ import annotations

import io
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, FisheyeLens
from lumigrad.client.datasets import Capture, View
from lumigrad.client.datasets.view import resized
from lumigrad.client.pictures import write_image
from support.chromium import canvas_pixels, opened_page
from support.viewing import HEIGHT, SECONDS, WIDTH, Page, blobs, options, psnr, wait_for
from support.workers.forks import ForkedProcess
from support.workers.worker import WorkerProcess

pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")

from lumigrad.client.commands.view_page import opened
from lumigrad.client.viewer.crop import Box

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="no imageio-ffmpeg: pip install 'lumigrad[video]'")

SCENE = blobs()
# Other processors may round a level the other way.
SAME_DB = 45.0


def taken(index: int) -> Camera:
    """A fisheye on a ring around the scene, which moves while its rows are exposed."""
    angle = 0.9 * index
    eye = np.array([4 * np.sin(angle), -0.8, 4 * np.cos(angle)])
    pose = Camera.look_at(eye, np.zeros(3), (0, -1, 0), fov_degrees=60, width=64, height=48).model
    lens = FisheyeLens(fx=150, fy=150, cx=120, cy=90, radial=(-0.05, 0.01, 0.0, 0.0))
    return Camera.sensor(
        lens, pose.rotation, pose.translation, 240, 180, shutter="top_to_bottom",
        end_rotation=pose.rotation, end_translation=np.add(pose.translation, (0.3, 0.0, 0.0)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(process: WorkerProcess, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page for all tests, of Gaussians and a capture of four real cameras."""
    folder = tmp_path_factory.mktemp("tools")
    SCENE.save(folder / "blobs.ply")
    Capture(tuple(View(f"taken_{index}", taken(index)) for index in range(4))).save(folder / "capture")
    with opened(options(process.target, str(folder / "blobs.ply"), "--camera", str(folder / "capture"))) as viewer:
        yield Page(browser, viewer, folder)


def saved(page: Page, begin: Any) -> tuple[str, bytes]:
    """The name and content of what the browser saves after an action."""
    with page.page.expect_download(timeout=1000 * SECONDS) as found:
        begin()
    return found.value.suggested_filename, Path(found.value.path()).read_bytes()


def screenshot(page: Page) -> np.ndarray:
    name, content = saved(page, lambda: page.page.get_by_role("button", name="Screenshot").click())
    assert name == "blobs.png"
    return np.asarray(Image.open(io.BytesIO(content)))


def rendered(process: WorkerProcess, scene: Any, camera: Camera) -> np.ndarray:
    with Client(process.target) as client:
        return client.render(scene, camera, image_format="uint8", background=0.0).color


def test_the_tab_has_the_name_of_the_file_and_a_key_shows_all_keys(page: Page) -> None:
    wait_for(lambda: page.page.title() == "blobs.ply")
    page.page.keyboard.press("h")
    page.page.get_by_text("Mouse and keys").wait_for(timeout=1000 * SECONDS)
    page.page.get_by_text("Play the camera path, or stop").first.wait_for(timeout=1000 * SECONDS)
    page.page.get_by_role("button", name="Close", exact=True).last.click()
    page.page.get_by_text("Mouse and keys").wait_for(state="hidden", timeout=1000 * SECONDS)


def test_a_screenshot_has_the_full_size_and_no_loss(page: Page, process: WorkerProcess) -> None:
    picture = screenshot(page)
    assert picture.shape == (HEIGHT, WIDTH, 3)
    assert psnr(picture, rendered(process, SCENE, page.lens.camera(WIDTH, HEIGHT))) > SAME_DB


def test_a_crop_box_hides_what_is_outside(page: Page, process: WorkerProcess) -> None:
    crop = page.session._crop
    crop._is_on.value = True
    low, _ = crop._sliders[0].value
    assert np.isinf([*crop.box.low, *crop.box.high]).all()
    count = len(page.session.statistics.records)
    crop._sliders[0].value = (low, 0.0)
    assert crop.box.high[0] == pytest.approx(0.0, abs=0.02)
    page.wait_until_sharp(after=count)
    part = Box((-np.inf,) * 3, (crop.box.high[0], np.inf, np.inf)).part_of(SCENE)
    assert 0.3 * len(SCENE) < len(part) < 0.7 * len(SCENE)
    camera = page.lens.camera(WIDTH, HEIGHT)
    assert psnr(screenshot(page), rendered(process, part, camera)) > SAME_DB
    # An empty box is an error with advice, and leaves the page alive.
    crop._sliders[0].value = (0.0, 0.0)
    page.page.get_by_text("nothing is inside the box").first.wait_for(timeout=1000 * SECONDS)
    crop._is_on.value = False
    assert psnr(screenshot(page), rendered(process, SCENE, camera)) > SAME_DB


def test_a_capture_is_seen_through_its_lenses_and_played(page: Page, process: WorkerProcess) -> None:
    cameras = page.session._cameras
    cameras._name.value = "taken_1"
    cameras._is_through.value = True
    picture = screenshot(page)
    assert picture.shape == (HEIGHT, round(HEIGHT * 4 / 3), 3)
    camera = resized(taken(1), round(HEIGHT * 4 / 3), HEIGHT)
    assert psnr(picture, rendered(process, SCENE, camera)) > SAME_DB
    pinhole = rendered(process, SCENE, page.lens.camera(WIDTH, HEIGHT))
    left = (WIDTH - picture.shape[1]) // 2
    assert psnr(picture, pinhole[:, left : left + picture.shape[1]]) < SAME_DB - 10

    def shown() -> np.ndarray:
        return np.pad(picture, ((0, 0), (left, WIDTH - left - picture.shape[1]), (0, 0)))

    page.matches(shown, 28.0, "through")
    cameras._rate.value = 10.0
    cameras.play()
    wait_for(lambda: cameras._name.value == "taken_3" and not page.session._player.is_playing)
    cameras._is_through.value = False


def test_a_camera_path_plays_and_becomes_a_video(page: Page, process: WorkerProcess) -> None:
    path, panel = page.session._path, page.session._panel
    page.page.mouse.click(200, 400)
    page.page.keyboard.press("k")
    wait_for(lambda: len(path._keys) == 1)
    # The mouse would not do: notices of earlier tests may lie above the picture.
    begin = path._keys[0]
    page.session.jump(replace(begin, position=np.add(begin.position, (0.7, 0.3, 0.2))))
    wait_for(lambda: np.linalg.norm(np.subtract(page.lens.position, begin.position)) > 0.3)
    page.wait_until_sharp()
    page.page.keyboard.press("k")
    wait_for(lambda: len(path._keys) == 2)
    first, last = path._keys
    assert np.linalg.norm(first.position - last.position) > 0.3
    path._seconds.value = 0.5
    path.play()
    wait_for(lambda: not page.session._player.is_playing)
    wait_for(lambda: np.linalg.norm(np.subtract(page.lens.position, last.position)) < 1e-2)

    panel._height.value = "240"
    name, content = saved(page, lambda: threading.Thread(target=path.export, daemon=True).start())
    assert name == "blobs.mp4"
    file = page._folder / "path.mp4"
    file.write_bytes(content)
    rate, pictures = decoded(file, 432, 240)
    assert (rate, len(pictures)) == (30.0, 16)
    for view, picture in ((first, pictures[0]), (last, pictures[-1])):
        assert psnr(picture, rendered(process, SCENE, view.lens.camera(432, 240))) > 26.0
    panel._height.value = "window"


def decoded(file: Path, width: int, height: int) -> tuple[float, Any]:
    """The frames per second of a video, and its frames; not by a fork of this process, which gRPC may not survive."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(file), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    rate = re.search(rb"([\d.]+) fps", done.stderr)
    assert rate
    return float(rate[1]), np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


def test_a_fit_is_watched_while_it_runs(process: WorkerProcess, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    views = []
    with Client(process.target) as client:
        for index in range(9):
            camera = Camera.orbit((0, 0, 0), 4.0, 40.0 * index, 15.0, (0, -1, 0), width=96, height=72)
            image = tmp_path / "capture" / f"shot_{index}.png"
            write_image(image, client.render(SCENE, camera, background=0.0).color)
            views.append(View(f"shot_{index}", camera, image))
    Capture(tuple(views)).save(tmp_path / "capture")
    options = ("--view", "--steps", "100000", "--target", process.target)
    fitting = ForkedProcess(["fit", "capture", "-o", "scene.ply", *options], tmp_path)
    try:
        url = next(line for line in fitting.stderr if line.startswith("watch it: ")).split(": ", 1)[1].strip()
        page = opened_page(browser, url, 480, 360)
        step = page.get_by_text(" of 100,000 steps, ")
        step.wait_for(timeout=1000 * SECONDS)
        wait_for(lambda: page.title() == "fit: scene.ply")
        before, shown = step.inner_text(), canvas_pixels(page, tmp_path / "before.png")
        wait_for(lambda: step.inner_text() != before)
        wait_for(lambda: psnr(canvas_pixels(page, tmp_path / "after.png"), shown) < 40.0)
        page.close()
        fitting.send_signal(2)
        fitting.communicate(timeout=120)
        assert fitting.returncode == 0
    finally:
        fitting.kill()
