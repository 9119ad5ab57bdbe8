"""Renders of scenes with levels: equal to a plain scene of the same rows, bit by bit, however little is in memory.

The rows are rounded for calls that are not differentiated.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumigrad.client import Camera, Client, FisheyeLens, Frame, Gaussians, GaussianSettings, PinholeLens, SceneHandle
from lumigrad.client.errors import InvalidArgument, ResourceExhausted
from lumigrad.client.formats.levels import GaussianLevels, leaf_gradients
from lumigrad.client.formats.levels.merging import merged
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.transport.lanes import LaneMode
from support.gaussians.levels import EDGE, as_drawn, city, joined, levels_of_pages
from support.workers.client_load import client_fixture, wait_for_lane
from support.workers.slow_render import wait_until
from support.workers.spooling import spooling_fixture
from support.workers.worker import WorkerProcess

LEVELS = city(4, page_rows=256)
# This camera looks from above the middle towards a corner: some pages are near, some far, and some out of view.
CAMERA = Camera.look_at((0, -3, 0), (2 * EDGE, 0, 2 * EDGE), (0, -1, 0), width=96, height=64, fov_degrees=50)
LARGE = Camera.look_at((0, -3, 0), (2 * EDGE, 0, 2 * EDGE), (0, -1, 0), width=640, height=480, fov_degrees=50)
ALL = Camera.look_at((0, -60, 0.1), (0, 0, 0), (0, 0, 1), width=96, height=64, fov_degrees=30)


process = spooling_fixture(supervised=False)
client = client_fixture("process")


@pytest.fixture
def scene(client: Client) -> SceneHandle:
    return client.put(LEVELS)


def same(one: Frame, other: Frame, *names: str) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in names or ("color",))


def test_a_background_is_one_number_for_all_channels(client: Client, scene: SceneHandle) -> None:
    expected = client.render(scene, [ALL, CAMERA], background=(0.25, 0.25, 0.25))
    assert expected.color.max() > 0.2
    for handle in (scene, client.get(scene.scene_id)):
        assert same(client.render(handle, [ALL, CAMERA], background=0.25), expected)
        with client.stream(handle, background=0.25) as stream:
            assert all(same(frame, expected) for frame in stream.frames([[ALL, CAMERA]] * 2))


@pytest.mark.parametrize("retain", [False, True])
def test_the_finest_and_the_coarsest_levels_are_drawn_as_plain_scenes(
    client: Client, scene: SceneHandle, retain: bool
) -> None:
    outputs = ("color", "alpha", "depth", "contributors")
    for level, error_px in ((0, 1e-6), (LEVELS.levels - 1, 1e6)):
        frame = client.render(scene, ALL, outputs=outputs, max_error_px=error_px, retain=retain)
        places = [(page, level) for page in range(len(LEVELS))]
        plain = (joined if retain else as_drawn)(LEVELS, places)
        assert same(frame, client.render(plain, ALL, outputs=outputs), *outputs)
        assert frame.levels is not None
        expected = [0] * LEVELS.levels
        expected[level] = len(plain)
        assert list(frame.levels.counts) == expected
        assert (frame.levels.coarse_pages, frame.levels.late_pages, frame.levels.missing_pages) == (0, 0, 0)
    assert frame.color.std() > 0.01


def moved(levels: GaussianLevels, step: float, directions: list[dict[str, np.ndarray]]) -> GaussianLevels:
    """The levels that the same merges make from moved leaves."""
    pages = []
    for page, direction in enumerate(directions):
        scene = StoredScene.of(levels.read(page, 0), "leaves")
        leaves = {name: getattr(scene, name) + step * change for name, change in direction.items()}
        pages.append([replace(scene, **{name: np.asarray(value, np.float32) for name, value in leaves.items()})])
        for _ in range(levels.levels - 1):
            finer = pages[-1][-1]
            variances = np.zeros(len(finer))
            is_one = len(finer) == 1
            pages[-1].append(finer if is_one else merged(finer, np.arange(0, len(finer), 4), variances)[0])
    return replace(levels, source=lambda page, level: pages[page][level].gaussians())


def test_gradients_of_leaves_go_through_the_merges(client: Client) -> None:
    levels = GaussianLevels.of(joined(LEVELS, [(page, 0) for page in range(len(LEVELS))]), page_rows=256)
    generator = np.random.default_rng(2)
    frame = client.render(client.put(levels), CAMERA, max_error_px=48, retain=True)
    places = levels_of_pages(levels, CAMERA, 48)
    assert len({level for _, level in places}) > 2
    upstream = generator.uniform(0.5, 1.5, frame.color.shape).astype(np.float32)
    gradients = frame.backward(upstream)
    leaves = leaf_gradients(levels, gradients)
    starts = np.cumsum(levels.counts.sum(axis=1)) - levels.counts.sum(axis=1)
    assert len(leaves.index) > len(gradients.index) and (np.diff(leaves.index) > 0).all()
    page_of = np.searchsorted(starts, leaves.index, "right") - 1
    assert (leaves.index - starts[page_of] < levels.counts[page_of, 0]).all()
    # Means and scales move the border at which Gaussians are cut off, which gradients do not see.
    for name, size in (("quats", 0.3), ("opacities", 0.1), ("sh", 1.0)):
        directions: list[dict[str, np.ndarray]] = []
        slope = 0.0
        for page in range(len(levels)):
            whole = np.zeros_like(getattr(levels.read(page, 0), name))
            rows = page_of == page
            whole[leaves.index[rows] - starts[page]] = leaves[name][rows]
            # Mostly along the gradient, so that the sum does not cancel.
            change = size * np.sign(whole) * generator.uniform(0, 1, whole.shape)
            directions.append({name: change})
            slope += float((whole.astype(np.float64) * change).sum())
        ends = [
            (
                client.render(joined(moved(levels, step, directions), places), CAMERA).color
                * upstream.astype(np.float64)
            ).sum()
            for step in (3e-4, -3e-4)
        ]
        assert slope == pytest.approx((ends[0] - ends[1]) / 6e-4, rel=0.01), name


def test_a_mixed_cut_and_its_gradients_are_those_of_a_plain_scene(client: Client, scene: SceneHandle) -> None:
    frame = client.render(scene, CAMERA, max_error_px=5, retain=True)
    places = levels_of_pages(LEVELS, CAMERA, 5)
    assert len({level for _, level in places}) > 2
    plain = joined(LEVELS, places)
    assert frame.levels is not None
    assert 0 < sum(frame.levels.counts) < len(plain)
    other = client.render(plain, CAMERA, retain=True)
    assert same(frame, other)
    upstream = np.random.default_rng(1).normal(size=frame.color.shape).astype(np.float32)
    numbers = np.concatenate([STARTS[place] + np.arange(LEVELS.counts[place]) for place in places])
    for again in (frame, client.render(scene, CAMERA, max_error_px=5)):
        mine, theirs = again.backward(upstream), other.backward(upstream, sparse=True)
        assert set(mine) == {"index", "means", "quats", "scales", "opacities", "sh"}
        assert np.array_equal(mine.index, numbers[theirs.index])
        for name in set(mine) - {"index"}:
            assert np.array_equal(mine[name], theirs[name]), name
    pose = frame.backward(upstream, wanted=["cameras"])
    assert "index" not in pose
    # The sums group the rows differently.
    assert np.allclose(pose.camera_pose, other.backward(upstream, wanted=["cameras"]).camera_pose, rtol=1e-4)


def cameras() -> dict[str, Camera]:
    """A camera of each kind in the middle of the city, which sees a part of it."""
    view, k = CAMERA.view_matrix, CAMERA.K
    rotation, translation, size = view[:3, :3], view[:3, 3], (CAMERA.width, CAMERA.height)
    focal = {"fx": k[0, 0], "fy": k[1, 1], "cx": k[0, 2], "cy": k[1, 2]}
    tan = (size[0] / 2 / k[0, 0], size[1] / 2 / k[1, 1])
    near, far = 0.01, 100.0
    projection = np.zeros((4, 4))
    projection[0, 0], projection[1, 1], projection[3, 2] = 1 / tan[0], 1 / tan[1], 1
    projection[2, 2:] = far / (far - near), -far * near / (far - near)
    wide = {**focal, "fx": 20.0, "fy": 20.0}
    end = {"end_rotation": rotation, "end_translation": np.add(translation, (0.1, 0, 0))}
    return {
        "far principal point": Camera.opencv(
            **{**focal, "cx": -30.0}, rotation=rotation, translation=translation, width=96, height=64
        ),
        "orthographic": Camera.opencv(8, 8, 48, 32, rotation, translation, *size, model="orthographic"),
        "fisheye": Camera.opencv(
            **wide, rotation=rotation, translation=translation, width=96, height=64, model="fisheye"
        ),
        "distorted": Camera.opencv(
            **focal, rotation=rotation, translation=translation, width=96, height=64, distortion=(0.1, 0, 0, 0)
        ),
        "inria": Camera.inria(view.T, (projection @ view).T, CAMERA.position, *tan, *size),
        "sensor": Camera.sensor(PinholeLens(**focal), rotation, translation, *size),
        "rolling": Camera.sensor(FisheyeLens(**wide), rotation, translation, *size, shutter="top_to_bottom", **end),
    }


@pytest.mark.parametrize("name", cameras())
def test_pages_that_are_left_out_would_show_nothing(client: Client, scene: SceneHandle, name: str) -> None:
    camera = cameras()[name]
    frame = client.render(scene, camera, max_error_px=1e-6)
    plain = as_drawn(LEVELS, [(page, 0) for page in range(len(LEVELS))])
    assert same(frame, client.render(plain, camera))
    assert frame.levels is not None
    assert 0 < sum(frame.levels.counts) <= len(plain)
    if name in ("far principal point", "orthographic"):
        assert sum(frame.levels.counts) < len(plain)
    coarse = client.render(scene, camera, max_error_px=20)
    assert coarse.levels is not None
    assert sum(coarse.levels.counts) < sum(frame.levels.counts)


def test_semantics_that_use_the_lengths_of_quaternions_draw_them_as_they_are(
    client: Client, scene: SceneHandle
) -> None:
    plain = joined(LEVELS, [(page, 0) for page in range(len(LEVELS))])
    for semantics in ("inria_depth", "inria_exact"):
        frame = client.render(scene, ALL, max_error_px=1e-6, semantics=semantics)
        assert same(frame, client.render(plain, ALL, semantics=semantics))
        assert not same(frame, client.render(plain, ALL))


def test_rounding_is_hardly_seen(client: Client, scene: SceneHandle) -> None:
    for camera in (CAMERA, LARGE, ALL):
        rounded, exact = (client.render(scene, camera, retain=retain).color for retain in (False, True))
        # A Gaussian whose alpha is near 1 / 255 may be drawn or not.
        assert 0 < np.abs(rounded - exact).max() < 2 / 255
        assert -10 * np.log10(np.square(rounded - exact).mean()) > 70


@pytest.mark.parametrize(("sigma", "most"), [(1.5, 0.0), (4.0, 0.0112), (40.0, 0.0112)])
def test_little_is_lost_of_a_gaussian_that_is_large_beside_the_picture(
    client: Client, sigma: float, most: float
) -> None:
    """The picture is 12 units wide, and the bounds end just beyond the margin of a sixteenth of that."""
    x = 6 + 12 / 16 + 3 * sigma + 0.01
    plain = Gaussians(
        np.array([[x, 0.0, 5.0]]),
        np.array([[1.0, 0.0, 0.0, 0.0]]),
        np.full((1, 3), sigma),
        np.full(1, 0.99),
        sh=np.full((1, 1, 3), 1.0),
    )
    camera = Camera.opencv(8, 8, 48, 32, np.eye(3), np.zeros(3), 96, 64, model="orthographic")
    drawn = client.render(client.put(GaussianLevels.of(plain)), camera, outputs=("alpha",), max_error_px=1e-6)
    assert drawn.levels is not None
    assert sum(drawn.levels.counts) == 0
    lost = float(client.render(plain, camera, outputs=("alpha",))["alpha"].max())
    assert lost <= most
    assert (lost > 0) == (most > 0)


def test_several_cameras_share_the_finest_level_that_any_needs(client: Client, scene: SceneHandle) -> None:
    # Both cameras see all pages, each some of them from nearby.
    cameras = [
        Camera.look_at((x, -8, z), (0, 0, 0), (0, -1, 0), width=96, height=64, fov_degrees=130)
        for x, z in ((-6, -6), (7, 5))
    ]
    frame = client.render(scene, cameras, max_error_px=0.7)
    places = levels_of_pages(LEVELS, cameras, 0.7)
    assert all(places != levels_of_pages(LEVELS, camera, 0.7) for camera in cameras)
    assert frame.levels is not None
    assert sum(frame.levels.counts) == sum(LEVELS.counts[place] for place in places)
    plain = as_drawn(LEVELS, places)
    assert same(frame, client.render(plain, cameras))


def test_a_budget_makes_all_pages_coarser(client: Client, scene: SceneHandle) -> None:
    free = client.render(scene, CAMERA, max_error_px=0.1).levels
    most = sum(free.counts) // 3
    tight = client.render(scene, CAMERA, max_error_px=0.1, max_gaussians=most).levels
    assert sum(tight.counts) <= most
    assert tight.coarse_pages > 0 == free.coarse_pages
    assert tight.error_px > free.error_px
    with pytest.raises(ResourceExhausted, match="max_gaussians"):
        client.render(scene, CAMERA, max_gaussians=1)


def test_in_batches_and_streams(client: Client, scene: SceneHandle) -> None:
    settings = GaussianSettings(max_error_px=7.5)
    frame = client.render(scene, CAMERA, settings=settings)
    one, two = client.render_batch([(scene, CAMERA), (scene, ALL)], settings=settings)
    assert isinstance(one, Frame)
    assert isinstance(two, Frame)
    assert same(frame, one)
    assert one.levels == frame.levels != two.levels
    good, bad = client.render_batch([(scene, CAMERA), (scene, CAMERA, {"max_gaussians": 1})], settings=settings)
    assert isinstance(good, Frame)
    assert isinstance(bad, ResourceExhausted)
    with client.stream(scene, settings=settings) as stream:
        stream.send(CAMERA)
        assert same(stream.receive(), frame)


def test_both_lanes_carry_the_same(process: WorkerProcess) -> None:
    levels = GaussianLevels.of(joined(LEVELS, [(page, 0) for page in range(len(LEVELS))]), page_rows=256)
    found = []
    lanes: tuple[LaneMode, ...] = ("stream", "shared")
    # The lanes of earlier clients end after these have left.
    wait_until(lambda: process.metric("lumigrad_lane_bytes") == 0)
    for lane in lanes:
        with Client(process.target, lane=lane) as client:
            wait_for_lane(client, lane)
            # Small tensors travel by the stream in any case.
            frame = client.render(client.put(levels), LARGE, max_error_px=4, retain=True)
            gradients = frame.backward(frame.color - 0.5)
            leaves = leaf_gradients(levels, gradients)
            assert (process.metric("lumigrad_lane_bytes") > frame.color.nbytes) == (lane == "shared")
            tensors = [
                each[name] for each in (gradients, leaves) for name in ("index", "means", "quats", "scales", "sh")
            ]
            found.append((frame.color, *tensors))
    for stream, shared in zip(*found, strict=True):
        assert stream.size
        np.testing.assert_array_equal(shared, stream)


def test_what_levels_do_not_have_is_refused(client: Client, scene: SceneHandle) -> None:
    for wrong, where in (
        ({"outputs": ["ids"]}, "outputs"),
        ({"transforms": [(0, 1, np.eye(4))]}, "transforms"),
        ({"max_error_px": 0}, "max_error_px"),
    ):
        with pytest.raises(InvalidArgument, match=where):
            client.render(scene, CAMERA, **wrong)
    with pytest.raises(InvalidArgument, match="scene with levels"):
        client.render(joined(LEVELS, [(0, 0)]), CAMERA, max_error_px=1)
    with pytest.raises(InvalidArgument, match="Gaussians"):
        client.render(LEVELS, CAMERA)


def test_nothing_in_view(client: Client, scene: SceneHandle) -> None:
    away = Camera.look_at((0, -60, 0.1), (0, -100, 0), (0, 0, 1), width=32, height=32)
    frame = client.render(scene, away)
    assert not frame.color.any()
    assert not any(frame.levels.counts)


STARTS = (np.cumsum(LEVELS.counts) - LEVELS.counts.ravel()).reshape(LEVELS.counts.shape)
