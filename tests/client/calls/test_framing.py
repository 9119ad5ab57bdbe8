"""Default views of a scene: extents of Gaussians, camera distances, depth ranges and their colours."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera, Gaussians, Spheres
from lumigrad.client.commands import aim
from lumigrad.client.commands.aim import Extent, depth_range
from lumigrad.client.commands.destination import Content
from lumigrad.client.datasets import View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.pictures import ramp_colors

DOWN_IS_Y = np.array([0.0, -1.0, 0.0])


def gaussians(means: np.ndarray, opacities: object = 0.9) -> Gaussians:
    count = len(means)
    return Gaussians(
        means,
        np.tile([1.0, 0, 0, 0], (count, 1)),
        np.full((count, 3), 0.01),
        np.broadcast_to(opacities, count),
        colors=np.ones((count, 3)),
    )


def pillar(count: int = 5000) -> np.ndarray:
    """A person's shape: 2 high around (1, -3, 0.5), 0.3 in radius."""
    generator = np.random.default_rng(0)
    angles, radii = generator.uniform(0, 2 * np.pi, count), 0.3 * np.sqrt(generator.uniform(0, 1, count))
    heights = generator.uniform(-1, 1, count)
    upright = np.stack([radii * np.cos(angles), heights, radii * np.sin(angles)], axis=1)
    return upright + np.array([1, -3, 0.5])


def test_the_extent_of_an_object():
    extent = Extent.of(gaussians(pillar()), DOWN_IS_Y)
    np.testing.assert_allclose(extent.center, (1, -3, 0.5), atol=0.02)
    assert extent.radius == pytest.approx(0.3, abs=0.02)
    assert extent.half_height == pytest.approx(1, abs=0.02)


def test_strays_what_is_transparent_and_wide_surroundings_do_not_count():
    generator = np.random.default_rng(1)
    strays = np.concatenate([pillar(), generator.normal(size=(10, 3)) * 1000])
    assert Extent.of(gaussians(strays), DOWN_IS_Y).radius < 0.4
    haze = np.concatenate([pillar(), generator.normal(size=(5000, 3)) * 50])
    seen = Extent.of(gaussians(haze, np.repeat([0.9, 0.001], 5000)), DOWN_IS_Y)
    assert seen.radius < 0.4
    # A dense object and, far around it, two fifths of the scene's Gaussians.
    far = generator.normal(size=(3300, 3))
    far *= (np.exp(generator.uniform(0, 4, 3300)) / np.linalg.norm(far, axis=1))[:, None]
    extent = Extent.of(gaussians(np.concatenate([pillar(), far])), DOWN_IS_Y)
    assert extent.radius < 3
    assert np.linalg.norm(extent.center - (1, -3, 0.5)) < 1.5


def test_a_long_object_is_framed_as_a_whole():
    """A guitar: most Gaussians are in its body, but neck and head reach several times as far."""
    generator = np.random.default_rng(2)
    body = generator.uniform(-1, 1, (8000, 3)) * (0.2, 0.25, 0.05)
    neck = generator.uniform(-1, 1, (1200, 3)) * (0.03, 0.35, 0.02) - (0, 0.6, 0)
    head = generator.uniform(-1, 1, (400, 3)) * (0.05, 0.08, 0.02) - (0, 1.0, 0)
    means = np.concatenate([body, neck, head])
    extent = Extent.of(gaussians(means), DOWN_IS_Y)
    top, bottom = extent.center[1] - extent.half_height, extent.center[1] + extent.half_height
    assert top == pytest.approx(-1.08, abs=0.05) and bottom == pytest.approx(0.25, abs=0.05)
    camera = aim.parse("orbit 30,20").camera(gaussians(means), aim.View(640, 480, 40.0, (0.0, -1.0, 0.0)))
    x, y, z = camera.model.rotation @ means.T + camera.model.translation[:, None]
    assert (np.abs(x / z * camera.model.fx) < 320).all() and (np.abs(y / z * camera.model.fy) < 240).all()


def test_scenes_without_extent_can_be_framed():
    for means in (np.zeros((0, 3)), np.zeros((1, 3)), np.ones((3, 3))):
        camera = aim.parse("orbit 30,20").camera(gaussians(means), aim.View(64, 64, 40.0, (0.0, -1.0, 0.0)))
        assert np.isfinite(camera.model.translation).all()
    extent = Extent.of(gaussians(pillar(), 0.0), DOWN_IS_Y)
    assert extent.half_height == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("elevation", [-60, 0, 20, 80])
@pytest.mark.parametrize("size", [(1920, 1080), (400, 900)])
@pytest.mark.parametrize("up", [(0, -1, 0), (0, 0, 1), (0.1, -0.9, -0.4)])
def test_an_orbit_shows_all_of_an_object_from_every_side_and_fills_the_picture(elevation, size, up):
    means = pillar()
    # The same object upright in these axes.
    upward = np.array(up) / np.linalg.norm(up)
    if up == (0, 0, 1):
        means = means[:, [0, 2, 1]]
    view = aim.View(*size, 40.0, tuple(upward))
    orbit = aim.Orbit(30.0, elevation)
    largest = 0.0
    for camera in orbit.turn(gaussians(means), view, (0.0, 77.0, 200.0)):
        x, y, z = camera.model.rotation @ means.T + camera.model.translation[:, None]
        assert (z > 0).all()
        across = np.abs(x / z * camera.model.fx) / (size[0] / 2)
        down = np.abs(y / z * camera.model.fy) / (size[1] / 2)
        # Up to 1 % of the points may be cut off as strays.
        assert np.quantile(across, 0.99) < 1 and np.quantile(down, 0.99) < 1
        assert across.max() < 1.05 and down.max() < 1.05
        largest = max(largest, across.max(), down.max())
    assert largest > 0.75


def test_up_is_up_in_the_picture():
    camera = aim.parse("orbit 30,20").camera(gaussians(pillar()), aim.View(64, 64, 40.0, (0.0, -1.0, 0.0)))
    head, feet = (camera.model.rotation @ place + camera.model.translation for place in ((1, -4, 0.5), (1, -2, 0.5)))
    assert head[1] < feet[1]


def test_the_range_of_depths_is_that_of_what_is_seen():
    means = np.array([[0, 0, 2.0], [0, 0, 4.0], [0, 0, -9.0], [100, 0, 1.0], [0, 0, 50.0]])
    camera = Camera.look_at((0, 0, 0), (0, 0, 1), width=64, height=64)
    opacities = np.array([0.9, 0.9, 0.9, 0.9, 0.01], np.float32)
    low, high = depth_range(means.astype(np.float32), opacities, [camera])
    assert (low, high) == pytest.approx((2.0, 4.0), abs=0.05)
    pulsar = Camera.pulsar([0, 0, -5, 0, 0, 0, 1, 1], 64, 64)
    assert depth_range(means.astype(np.float32), None, [pulsar]) == (0.0, 1.0)


def test_depths_are_light_where_close_and_black_where_nothing_is():
    camera = Camera.look_at((0, 0, -5), (0, 0, 0), width=64, height=64)
    content = Content.of("expected_depth", gaussians(pillar() - (1, -3, 0.5)), [View("frame", camera)])
    assert content.outputs == ("expected_depth", "alpha")
    assert 4.6 < content.nearest < content.farthest < 5.4

    class Rendered(dict):
        alpha = np.array([[1.0, 1.0, 0.0]])

    picture = content.picture(Rendered(expected_depth=np.array([[4.7, 5.3, 0.0]])))
    brightness = picture.sum(axis=-1)[0]
    assert brightness[0] > brightness[1] > brightness[2] == 0
    spheres = Content.of("depth", Spheres([[0, 0, 0]], [[1, 1, 1]], [1]), [View("frame", camera)])
    assert (spheres.picture(Rendered(depth=np.array([[-1.0, 5.0, 5.0]])))[0, 0] == 0).all()
    assert Content.of("alpha", gaussians(pillar()), []).outputs == ("alpha",)


def test_the_ramp_grows_lighter_all_the_way():
    colors = ramp_colors(np.linspace(0, 1, 257))
    luminance = colors @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(luminance) > 0).all()
    assert colors.min() >= 0 and colors.max() <= 1
    np.testing.assert_array_equal(ramp_colors(np.array([-1, np.nan, 2])), ramp_colors(np.array([0, 0, 1])))


def test_the_view_beside_a_scene_is_shown_first(tmp_path):
    view = SceneView((1.0, -3.0, -4.0), (1.0, -3.0, 0.5), (0.0, -1.0, 0.0), 50.0, (1.0, 1.0, 1.0))
    view.save(tmp_path / "scene.ply")
    saved = SceneView.load(tmp_path / "scene.spz")
    assert saved == view
    assert SceneView.load(tmp_path / "other.ply") is None
    camera = saved.camera(64, 48)
    np.testing.assert_allclose(camera.position, saved.eye, rtol=1e-6)
    assert (camera.width, camera.height) == (64, 48)
    size = {"width": 64, "height": 48, "fov_degrees": None, "up": None}
    scene = gaussians(pillar())
    aimed, options = aim.resolved(None, scene, saved, size)
    camera = aimed.camera(scene, options)
    np.testing.assert_allclose(camera.model.eye, view.eye, atol=1e-6)
    assert camera.model.fy == pytest.approx(24 / np.tan(np.radians(25)))
    # Orbits turn around the point looked at, at the saved distance.
    for other in (aim.parse("orbit 40,10"), aimed):
        for turned in other.turn(scene, options, (0.0, 90.0)):
            assert np.linalg.norm(turned.model.eye - view.target) == pytest.approx(4.5)
    # Explicit options take precedence over the saved view.
    aimed, options = aim.resolved(None, scene, saved, {**size, "fov_degrees": 30.0, "up": (1.0, 0.0, 0.0)})
    assert aimed.camera(scene, options).model.fy == pytest.approx(24 / np.tan(np.radians(15)))
    chosen, _ = aim.resolved(aim.parse("orbit 40,10,2"), scene, saved, size)
    assert np.linalg.norm(chosen.camera(scene, options).model.eye - view.target) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"eye": [0, 0], "target": [0, 0, 0], "up": [0, 1, 0], "fov_degrees": 40}',
        '{"eye": [0, 0, 3], "target": [0, 0, 0], "up": [0, 1, 0], "fov_degrees": 40, "background": [128, 128, 128]}',
    ],
)
def test_a_broken_view_is_named(tmp_path, text):
    (tmp_path / "scene.view.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"scene\.view\.json: expected .* remove or correct the file"):
        SceneView.load(tmp_path / "scene.ply")
