"""One scene split over several workers of a Ray cluster: images and gradients are those of a single worker."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Gaussians, PinholeLens
from lumigrad.client.errors import DeadlineExceeded, InvalidArgument, Unavailable
from lumigrad.kernels import gaussians as kernels
from support.closeness import assert_image, assert_relative
from support.deploy.ray_cluster import ray_cluster, require_ray
from support.files.documents import ROOT, run_code_of
from support.gaussians.case import GaussianCase, InriaView, OpenCVView
from support.gaussians.cases import Cloud, build, inria, opencv, upstream_of
from support.gaussians.reference_runs import ReferenceScene
from support.gaussians.runs import cameras_of, scene_of

fleet = require_ray("lumigrad.ray")
ray = require_ray("ray")
bands = require_ray("lumigrad.ray.bands")

WAIT_S = 240.0
# Each start of a worker may take that long.
pytestmark = pytest.mark.timeout(5 * WAIT_S)
# 149 rows are ten rows of tiles for three workers; the last row is not whole.
WIDTH, HEIGHT = 90, 149
DISTORTION = (-0.12, 0.05, 0.004, -0.003)
IMAGES = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth", "contributors", "ids")

Arrays = Mapping[str, np.ndarray]


def many() -> GaussianCase:
    """Overlapping Gaussians of degree 2, some of which cover the image, in both of OpenCV's and Inria's cameras."""
    views = (opencv(WIDTH, HEIGHT), opencv(WIDTH, HEIGHT, focal=0.6, translation=np.array([0.1, 0.9, 1.5])))
    cloud = Cloud(count=400, degree=2, scales=(0.01, 0.8))
    case = build("split", cloud, width=WIDTH, height=HEIGHT, cameras=views, background=[0.2, 0.4, 0.1])
    # Some Gaussians are at the same depth, and are blended in the order of their numbers.
    means = case.means.copy()
    means[200:220] = means[180:200]
    return dataclasses.replace(case, means=means)


def camera_of(view: OpenCVView | InriaView) -> Camera:
    if isinstance(view, InriaView):
        return Camera.inria(view.view, view.projection, view.position, view.tan_fov_x, view.tan_fov_y, WIDTH, HEIGHT)
    pose = (view.rotation, view.translation)
    options: dict[str, Any] = {"model": view.model, "distortion": view.distortion}
    return Camera.opencv(*view.intrinsics, *pose, width=WIDTH, height=HEIGHT, **options)


def alone(case: GaussianCase, outputs: Sequence[str], upstream: Arrays | None = None) -> tuple[Arrays, Arrays]:
    """The outputs and gradients of the whole scene in one process."""
    background = None if case.background is None else torch.from_numpy(np.asarray(case.background, np.float32))
    settings = kernels.Settings(**dataclasses.asdict(case.options))
    arguments: dict[str, Any] = {"background": background, "outputs": outputs, "retain": upstream is not None}
    found = kernels.forward(scene_of(case), cameras_of(case), settings, **arguments)
    images = {name: tensor.numpy() for name, tensor in found.outputs.items()}
    if upstream is None:
        return images, {}
    back = kernels.backward(found.state, {name: torch.from_numpy(array) for name, array in upstream.items()})
    return images, {name: tensor.numpy() for name, tensor in back.gradients.items()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with ray_cluster():
        yield


@pytest.fixture(scope="module")
def scene(cluster: None) -> Iterator[Any]:
    """The scene of `many`, split over three workers."""
    with fleet.split(Gaussians(**many().tensors), workers=3, cpus=0, timeout_s=WAIT_S) as running:
        yield running


def kill(scene: Any, worker: int, *, is_restarted: bool = True) -> None:
    """Kills a worker, and waits until it no longer answers: Ray only begins to kill it."""
    actor = scene._actors[worker]
    before = ray.get(actor.life.remote())
    ray.kill(actor, no_restart=not is_restarted)
    with suppress(ray.exceptions.RayActorError):
        while ray.get(actor.life.remote()) == before:
            time.sleep(0.02)


def step_of(rate: float) -> Callable[[Any], int]:
    """A step of gradient descent; a nested function, which is sent whole to workers, since they lack this module."""

    def step(part: Any) -> int:
        for name, gradient in part.gradients.items():
            part.tensors[name] -= rate * gradient
        return len(part.numbers)

    return step


@pytest.mark.parametrize("semantics", ["exact", "gsplat", "inria_exact"])
def test_images_of_several_cameras_are_those_of_one_worker_bit_by_bit(scene: Any, semantics: str) -> None:
    case = many()
    if semantics.startswith("inria"):
        views = inria(WIDTH, HEIGHT), inria(WIDTH, HEIGHT, slope=0.2)
        case = dataclasses.replace(case, cameras=views)
    case = dataclasses.replace(case, options=dataclasses.replace(case.options, semantics=semantics))
    cameras = [camera_of(view) for view in case.cameras]
    options = {"semantics": semantics, "pixel_center": case.options.pixel_center}
    found = scene.render(cameras, outputs=IMAGES, background=case.background, **options)
    expected, _ = alone(case, IMAGES)
    for name in IMAGES:
        np.testing.assert_array_equal(found[name], expected[name], name)
    single = scene.render(cameras[1], background=case.background, **options)
    np.testing.assert_array_equal(single["color"], expected["color"][1])


def test_images_of_every_lens_are_those_of_one_worker_bit_by_bit(scene: Any) -> None:
    lenses = ({"model": "fisheye"}, {"model": "orthographic"}, {"distortion": DISTORTION})
    for lens in lenses:
        film = np.array([20.0, 20.0, 45.0, 75.0]) if lens.get("model") == "orthographic" else None
        view = opencv(WIDTH, HEIGHT, **lens, **({} if film is None else {"intrinsics": film}))
        case = dataclasses.replace(many(), cameras=(view,), background=None)
        case = dataclasses.replace(case, options=dataclasses.replace(case.options, antialiased=True))
        expected, _ = alone(case, IMAGES)
        found = scene.render([camera_of(view)], outputs=IMAGES, antialiased=True)
        assert found["contributors"].max() > 1
        for name in IMAGES:
            np.testing.assert_array_equal(found[name], expected[name], f"{lens} {name}")


def test_gradients_of_several_cameras_are_those_of_one_worker(scene: Any) -> None:
    """One of the cameras has a distorted lens."""
    case, outputs = many(), ("color", "alpha", "depth")
    views = case.cameras[0], dataclasses.replace(case.cameras[1], distortion=DISTORTION)
    case = dataclasses.replace(case, cameras=views)
    upstream = upstream_of(case, outputs)
    scene.render([camera_of(view) for view in case.cameras], outputs=outputs, background=case.background, retain=True)
    scene.backward(upstream)
    found = scene.gradients()
    _, expected = alone(case, outputs, upstream)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_relative(name, found[name], gradient, 1e-4)


def test_many_gradients_are_those_of_one_worker_bit_by_bit(scene: Any) -> None:
    case = many()
    upstream = upstream_of(dataclasses.replace(case, cameras=case.cameras[:1]), ("color",))
    scene.render(camera_of(case.cameras[0]), background=case.background, retain=True)
    scene.backward({"color": upstream["color"][0]})
    found = scene.gradients()
    _, expected = alone(dataclasses.replace(case, cameras=case.cameras[:1]), ("color",), upstream)
    same = (found["means"] == expected["means"]).all(axis=1)
    assert 0.3 < same.mean() < 1.0


def test_only_the_degree_in_use_is_sent(scene: Any) -> None:
    camera = camera_of(many().cameras[0])
    scene.render(camera)
    whole = scene.received_bytes
    found = scene.render(camera, sh_degree=0, retain=True)
    assert scene.received_bytes < 0.6 * whole
    case = dataclasses.replace(many(), cameras=many().cameras[:1], background=None)
    case = dataclasses.replace(case, options=dataclasses.replace(case.options, sh_degree=0))
    upstream = upstream_of(case, ("color",))
    images, gradients = alone(case, ("color",), upstream)
    np.testing.assert_array_equal(found["color"], images["color"][0])
    scene.backward({"color": upstream["color"][0]})
    assert_relative("sh", scene.gradients()["sh"], gradients["sh"], 1e-4)


def test_a_camera_that_sees_nothing_shows_the_background(scene: Any) -> None:
    away = Camera.look_at(eye=(0, 0, 1e4), target=(0, 0, 2e4), up=(0, -1, 0), width=WIDTH, height=HEIGHT)
    found = scene.render(away, background=0.25, retain=True, outputs=("color", "ids"))
    assert scene.received_bytes == 0
    assert (found["color"] == 0.25).all() and (found["ids"] == -1).all()
    scene.backward({"color": np.ones_like(found["color"])})
    assert not any(gradient.any() for gradient in scene.gradients().values())


def test_images_with_fewer_rows_of_tiles_than_workers_are_drawn(scene: Any) -> None:
    small = Camera.look_at(eye=(0, 0, -1), target=(0, 0, 4), up=(0, -1, 0), width=40, height=20)
    found = scene.render([small], outputs=("color", "contributors"))
    assert found["color"].shape == (1, 20, 40, 3)
    assert found["contributors"].max() > 1


def test_one_worker_reproduces_the_float64_reference(cluster: None) -> None:
    given = opencv(WIDTH, HEIGHT, distortion=DISTORTION)
    case = build("split reference", Cloud(count=40, degree=1), width=WIDTH, height=HEIGHT, cameras=(given,))
    reference = ReferenceScene(case)
    upstream = reference.forward().masked(upstream_of(case, ("color", "alpha")))
    stable = reference.forward().stacked("stable")[0]
    expected = reference.reference(upstream)
    with fleet.split(Gaussians(**case.tensors), workers=1, cpus=0, timeout_s=WAIT_S) as scene:
        found = scene.render(camera_of(given), outputs=("color", "alpha"), retain=True)
        scene.backward({name: array[0].astype(np.float32) for name, array in upstream.items()})
        gradients = scene.gradients()
    for name in found:
        assert_image(found[name][stable], expected.stacked(name)[0][stable], 1e-5)
    for name in case.tensors:
        assert_relative(name, gradients[name], expected.gradients[name], 1e-4)


def test_what_split_scenes_do_not_take_is_refused_by_name(scene: Any) -> None:
    camera = camera_of(many().cameras[0])
    sensor = Camera.sensor(PinholeLens(fx=80, fy=80, cx=32, cy=24), np.eye(3), (0, 0, 4), width=64, height=48)
    for fields, name in (
        ({"primitive": "surfel"}, "primitive"),
        ({"response": "ray"}, "response"),
        ({"projection_method": "unscented"}, "projection_method"),
        ({"max_error_px": 2.0}, "max_error_px"),
        ({"transforms": [(0, 1, np.eye(4))]}, "transforms"),
        ({"outputs": ("radii",)}, "outputs"),
        ({"background": [0.0, 1.0]}, "background"),
        ({"near": -1.0}, "near"),
        ({"sh_degree": 3}, "sh_degree"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            scene.render(camera, **fields)
    small = Camera.look_at(eye=(0, 0, -1), target=(0, 0, 4), up=(0, -1, 0), width=40, height=20)
    with pytest.raises(InvalidArgument, match="camera: expected one size"):
        scene.render([camera, small])
    with pytest.raises(InvalidArgument, match=r"camera: .* got SensorModel"):
        scene.render(sensor)
    with pytest.raises(InvalidArgument, match="scene: expected one scene"):
        fleet.split(
            Gaussians(
                np.zeros((2, 1, 3)), np.ones((2, 1, 4)), np.ones((2, 1, 3)), np.ones((2, 1)), colors=np.ones((2, 1, 3))
            )
        )
    with pytest.raises(InvalidArgument, match="workers: "):
        fleet.split(Gaussians(**many().tensors), workers=0)


def test_gradients_that_fit_no_rendering_are_refused(scene: Any) -> None:
    scene.update(step_of(0.0))
    with pytest.raises(InvalidArgument, match="retain=True"):
        scene.backward({"color": np.zeros((HEIGHT, WIDTH, 3))})
    image = scene.render(camera_of(many().cameras[0]), retain=True)["color"]
    for given, text in (
        ({"depth": np.zeros((HEIGHT, WIDTH))}, "'depth'"),
        ({"color": np.zeros((3, 3))}, "expected shape"),
        ({}, "at least"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            scene.backward(given)
    # The refused gradients cost no state: correct ones still work.
    scene.backward({"color": np.ones_like(image)})
    assert np.any(scene.gradients()["means"])


def test_workers_that_are_started_again_and_those_that_are_not(cluster: None) -> None:
    case = dataclasses.replace(many(), cameras=many().cameras[:1])
    camera, (expected, _) = camera_of(case.cameras[0]), alone(case, ("color",))
    with fleet.split(Gaussians(**case.tensors), workers=2, cpus=0, timeout_s=WAIT_S) as scene:
        render = lambda **options: scene.render(camera, background=case.background, **options)["color"]  # noqa: E731
        kill(scene, 1)
        np.testing.assert_array_equal(render(retain=True), expected["color"][0])
        kill(scene, 0)
        with pytest.raises(Unavailable, match="render again"):
            scene.backward({"color": np.ones_like(expected["color"][0])})
        np.testing.assert_array_equal(render(), expected["color"][0])
        assert sum(scene.update(step_of(0.0))) == len(case.means)
        kill(scene, 0)
        with pytest.raises(Unavailable, match="has lost what update"):
            render()
        kill(scene, 0, is_restarted=False)
        with pytest.raises(Unavailable, match="for good"):
            render()


def test_a_cluster_without_room_is_an_error(cluster: None) -> None:
    with pytest.raises(DeadlineExceeded, match="not all of 2 workers"):
        fleet.split(Gaussians(**many().tensors), cpus=1000, timeout_s=0.5)


def test_workers_that_cannot_start_are_an_error(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *_: Any) -> None:
            raise RuntimeError("no device")

        def life(self) -> str:
            return ""

    monkeypatch.setattr(require_ray("lumigrad.ray.split_scene"), "Part", Broken)
    with pytest.raises(Unavailable, match=r"(?s)cannot start: .*no device"):
        fleet.split(Gaussians(**many().tensors), cpus=0, timeout_s=WAIT_S)


def test_the_guide_trains_a_split_scene(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # The cluster's only node offers no CPUs.
    monkeypatch.setattr(fleet, "split", partial(fleet.split, cpus=0), raising=False)
    losses: Any = run_code_of(ROOT / "docs" / "ray.md")["losses"]
    assert losses[-1] < 0.5 * losses[0]


def test_bands_cost_about_the_same_and_none_is_left_out() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(0, 50, (3, 3, 10))
    edges = bands.edges_of(counts, 3, 90)
    assert edges[0] == 0 and edges[-1] == 10 and (np.diff(edges) > 0).all()
    lonely = np.zeros((4, 3, 6), np.int64)
    lonely[:, 0, 5] = 1_000_000
    assert np.diff(bands.edges_of(lonely, 4, 90)).min() == 1
    assert bands.edges_of(lonely[:, :, :2], 4, 90)[-1] == 2


def test_bands_are_drawn_where_most_of_their_gaussians_are() -> None:
    counts = np.zeros((3, 3, 10), np.int64)
    for worker, (first, last) in enumerate(((8, 9), (0, 1), (4, 5))):
        counts[worker, 1, first] = counts[worker, 2, last] = 100
    assert bands.shared_out(counts, [0, 3, 7, 10]) == [2, 0, 1]
