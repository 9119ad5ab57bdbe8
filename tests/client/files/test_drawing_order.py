"""The drawing order that files declare: commands obey it, and conversions keep it or report its loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.formats import StoredScene, read_scene, save_scene
from lumigrad.client.formats.save import WRITABLE, losses
from support.workers.forks import lumigrad

VIEW = ("--camera", "look-at 0,0,0 0,0,1", "--fov", "90", "--size", "48x32")
BY_DISTANCE: dict[str, Any] = {"depth_order": "distance", "projection_method": "unscented"}


def two() -> Gaussians:
    """Two Gaussians that cover each other: red is closer along the view direction, blue is closer to the camera."""
    colors = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (2, 1))
    return Gaussians([[1.6, 0, 2.0], [0.3, 0, 2.3]], quats, np.full((2, 3), 0.7), np.full(2, 0.9), colors=colors)


def stored(sorting: str) -> StoredScene:
    return replace(StoredScene.of(two(), "scene.ply"), details={"sorting": sorting})


@pytest.fixture
def files(scene: Path) -> Path:
    """A folder with the scene as .ply, which declares no order, and as .glb, which declares an order by distance."""
    two().save(scene)
    two().save(scene.with_name("scene.glb"))
    return scene.parent


def picture(render: Any, file: str, folder: Path, *options: str) -> np.ndarray:
    done = render(*VIEW, "-o", "out.npy", *options, file=file)
    assert done.returncode == 0, done.stderr
    return np.load(folder / "out.npy")


def test_pictures_are_in_the_order_of_the_file(render: Any, files: Path, client: Client) -> None:
    pytest.importorskip("pxr", reason="there is no usd-core for this Python")
    by_depth, by_distance = (picture(render, name, files) for name in ("scene.ply", "scene.glb"))
    assert np.abs(by_depth - by_distance).max() > 0.2
    camera = Camera.look_at((0, 0, 0), (0, 0, 1), (0, -1, 0), fov_degrees=90, width=48, height=32)
    np.testing.assert_allclose(by_distance, client.render(two(), camera, **BY_DISTANCE).color, atol=1e-5)
    for sorting, expected in (("zDepth", by_depth), ("cameraDistance", by_distance), ("rayHitDistance", by_distance)):
        save_scene(stored(sorting), files / "scene.usdc")
        np.testing.assert_allclose(picture(render, "scene.usdc", files), expected, atol=1e-5)


def test_the_option_wins_over_the_file(render: Any, files: Path) -> None:
    by_depth, by_distance = (picture(render, name, files) for name in ("scene.ply", "scene.glb"))
    np.testing.assert_allclose(picture(render, "scene.glb", files, "--depth-order", "z"), by_depth, atol=1e-5)
    np.testing.assert_allclose(picture(render, "scene.ply", files, "--depth-order", "distance"), by_distance, atol=1e-5)
    # Sigma points have no antialiasing.
    done = render(*VIEW, "-o", "out.npy", "--antialiased", file="scene.glb")
    assert done.returncode == 0
    said = "lumigrad: draws by depth, not by distance as the file says, because of --antialiased"
    assert said in done.stderr


def test_orbits_are_in_the_order_of_the_file(render: Any, files: Path) -> None:
    frames = []
    for name in ("scene.ply", "scene.glb"):
        done = render("--size", "48x32", "--fov", "90", "--orbit", "2", "-o", f"{name[-3:]}/", file=name)
        assert done.returncode == 0, done.stderr
        frames.append([path.read_bytes() for path in sorted((files / name[-3:]).iterdir())])
    assert len(frames[0]) == 2 and frames[0][0] != frames[1][0]


def test_conversions_keep_the_order(files: Path) -> None:
    pytest.importorskip("pxr", reason="there is no usd-core for this Python")
    for source, output in (("scene.glb", "far.usda"), ("far.usda", "again.gltf"), ("scene.ply", "near.usda")):
        done = lumigrad("convert", source, output, folder=files)
        assert done.returncode == 0, done.stderr
    assert 'sortingModeHint = "cameraDistance"' in (files / "far.usda").read_text()
    assert 'sortingModeHint = "zDepth"' in (files / "near.usda").read_text()
    document = json.loads((files / "again.gltf").read_text())
    [primitive] = document["meshes"][0]["primitives"]
    assert primitive["extensions"]["KHR_gaussian_splatting"]["sortingMethod"] == "cameraDistance"
    assert read_scene(files / "far.usda").drawing_order == "cameraDistance"


def test_info_says_which_formats_lose_the_order(files: Path) -> None:
    lost = json.loads(lumigrad("info", "scene.glb", "--json", folder=files).stdout)["would_lose"]
    assert not lost[".glb"] and not lost[".usda"]
    said = "is drawn by depth along the view direction, not by distance to the camera, so pictures differ"
    assert all(said in lost[suffix] for suffix in (".ply", ".compressed.ply", ".splat", ".spz", ".ksplat", ".sog"))
    assert said in lumigrad("info", "scene.glb", folder=files).stdout
    turned = "is drawn by distance to the camera, not by depth along the view direction, so pictures differ"
    assert {suffix for suffix in WRITABLE if turned in losses(stored("zDepth"), suffix)} == {".glb", ".gltf"}
    along_rays = "is drawn by distance to the camera, not by distance along each ray, so pictures differ"
    assert along_rays in losses(stored("rayHitDistance"), ".glb") and not losses(stored("rayHitDistance"), ".usd")
    assert losses(stored("cameraDistance, zDepth"), ".usd") == ["keeps one drawing order for all Gaussians"]


def test_the_viewer_draws_in_the_order_of_the_file(files: Path, client: Client) -> None:
    pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")
    from lumigrad.client.commands import scene_file
    from lumigrad.client.viewer.lens import Lens
    from lumigrad.client.viewer.modes import Look
    from lumigrad.client.viewer.painter import Painter, View
    from support.viewing import options

    given = scene_file.read(options(client.target, str(files / "scene.glb")))
    settings, handle = given.settings, given.put(client)
    settings.pop("background")
    lens = Lens((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0), np.pi / 2, 1.5)
    painter = Painter(client, lambda: handle, "gaussians", settings)
    view = View(lens, (48, 32), "colour", Look((0.0, 0.0, 0.0)), is_solid=True)
    expected = client.render(two(), lens.camera(48, 32), **BY_DISTANCE).color
    np.testing.assert_allclose(painter.levels(view), 255 * expected, atol=1)
    # Browsers compare depths along the view direction with those of their own objects.
    frame = client.render(two(), lens.camera(48, 32), **BY_DISTANCE, outputs=("expected_depth", "alpha"))
    along, corner = painter._along_axis(frame, lens), np.sqrt(1 + 1.5**2 + 1)
    np.testing.assert_allclose(along[0, 0], frame.expected_depth[0, 0] / corner, rtol=1e-5)
    np.testing.assert_allclose(along[16, 24], frame.expected_depth[16, 24], rtol=2e-3)
