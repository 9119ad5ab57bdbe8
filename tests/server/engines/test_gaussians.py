"""Renders and gradients of Gaussians over the network are what the kernels compute in-process, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lumigrad.kernels.gaussians import OUTPUTS
from lumigrad.v1 import camera_pb2, gaussians_pb2, scene_pb2, worker_pb2
from support.calls.gaussian_calls import (
    camera_of,
    gaussian_cloud,
    gaussian_spec,
    inria_camera,
    kernel_backward,
    kernel_forward,
    same_bits,
)
from support.calls.raw_calls import Arrays, RawClient, color_gradient
from support.gaussians.rotation import turned
from support.workers.worker import WorkerProcess

CLOUD = gaussian_cloud()
CAMERAS = {
    "pinhole": camera_of(camera_pb2.PROJECTION_PINHOLE),
    "orthographic": camera_of(camera_pb2.PROJECTION_ORTHOGRAPHIC),
    "fisheye": camera_of(camera_pb2.PROJECTION_FISHEYE),
    "distorted": camera_of(distortion=(-0.12, 0.05, 0.004, -0.003)),
}
INRIA = {"near": 0.2, "semantics": gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT}


def moved(begin: int, end: int) -> gaussians_pb2.SliceTransform:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = turned(0.1, 0.05, -0.2), (0.1, -0.2, 0.3)
    return gaussians_pb2.SliceTransform(begin=begin, end=end, matrix=matrix.ravel().tolist())


def upstream(*shape: int, names: tuple[str, ...] = ("color",)) -> Arrays:
    """Returns gradients of the loss for images [C, H, W, D]."""
    return {name: color_gradient(*(shape if name == "color" else shape[:3])) for name in names}


@pytest.fixture(scope="module")
def scene_id(client: RawClient) -> str:
    return client.put(CLOUD).scene.scene_id


def test_the_worker_names_its_engines(client: RawClient) -> None:
    info = client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60)
    assert list(info.engines) == ["spheres", "gaussians", "meshes"]


@pytest.mark.parametrize("camera", CAMERAS)
@pytest.mark.parametrize(
    "semantics", [gaussians_pb2.GAUSSIAN_SEMANTICS_UNSPECIFIED, gaussians_pb2.GAUSSIAN_SEMANTICS_GSPLAT]
)
def test_every_output_of_a_stored_scene_is_the_kernels_own(
    client: RawClient, scene_id: str, camera: str, semantics: Any
) -> None:
    spec = gaussian_spec(CAMERAS[camera], scene_id=scene_id, outputs=OUTPUTS, semantics=semantics)
    reply = client.render(spec)
    assert list(reply.arrays) == list(OUTPUTS)
    assert reply.arrays["alpha"].max() > 0.5
    same_bits(reply.arrays, kernel_forward(spec, CLOUD).outputs)


@pytest.mark.parametrize(
    "semantics", [gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_DEPTH, gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT]
)
def test_inrias_cameras_come_as_they_are(client: RawClient, scene_id: str, semantics: Any) -> None:
    cameras = inria_camera(), inria_camera(0.3)
    spec = gaussian_spec(*cameras, scene_id=scene_id, outputs=OUTPUTS, semantics=semantics, near=0.2)
    same_bits(client.render(spec).arrays, kernel_forward(spec, CLOUD).outputs)
    wanted = ("means", "quats", "scales", "opacities", "sh")
    gradients = upstream(2, 48, 64, 3, names=("color", "depth", "transmittance"))
    local = kernel_backward(spec, CLOUD, gradients, wanted)
    same_bits(client.backward(gradients, spec=spec).arrays, local.gradients)


@pytest.mark.parametrize(
    ("name", "value", "common"),
    [
        ("sh_degree", 0, {}),
        ("antialiased", True, {}),
        ("eps2d", 0.1, {}),
        ("near", 5.0, {}),
        ("far", 6.0, {}),
        ("radius_clip", 4.0, {}),
        ("alpha_min", 0.1, {}),
        ("alpha_max", 0.5, {}),
        ("transmittance_min", 0.5, {}),
        ("pixel_center", 0.0, {}),
        ("scale_modifier", 1.5, INRIA),
        ("background", [0.1, 0.2, 0.3], {}),
        ("background", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], {}),
        ("transforms", [moved(100, 150), moved(0, 40)], {}),
        ("deterministic", True, {}),
    ],
)
def test_every_setting_reaches_the_kernels(
    client: RawClient, scene_id: str, name: str, value: Any, common: dict[str, Any]
) -> None:
    cameras = (inria_camera(), inria_camera(0.3)) if common else (camera_of(), camera_of(x=0.3))
    plain = gaussian_spec(*cameras, scene_id=scene_id, **common)
    spec = gaussian_spec(*cameras, scene_id=scene_id, **common, **{name: value})
    color = client.render(spec).arrays["color"]
    same_bits({"color": color}, kernel_forward(spec, CLOUD).outputs)
    same = color.tobytes() == client.render(plain).arrays["color"].tobytes()
    assert same == (name == "deterministic")


def test_the_precision_has_no_effect(client: RawClient, scene_id: str) -> None:
    kinds = gaussians_pb2.PRECISION_FULL, gaussians_pb2.PRECISION_HALF
    full, half = (client.render(gaussian_spec(scene_id=scene_id, precision=each)).arrays["color"] for each in kinds)
    assert full.any() and half.tobytes() == full.tobytes()


def test_a_scene_may_travel_with_the_call_and_leaves_nothing_behind(client: RawClient) -> None:
    before = client.scene_stub.List(scene_pb2.ListRequest(), timeout=60)
    cloud = gaussian_cloud(80, covariances=True, coefficients=0, channels=5, seed=1)
    spec = gaussian_spec(outputs=OUTPUTS)
    reply = client.render(spec, cloud=cloud)
    assert reply.arrays["color"].shape == (1, 48, 64, 5)
    same_bits(reply.arrays, kernel_forward(spec, cloud).outputs)
    assert not reply.header.HasField("scene")
    assert client.scene_stub.List(scene_pb2.ListRequest(), timeout=60) == before


EVERYTHING = (*CLOUD, "background", "cameras", "transforms", "means2d", "means2d_abs")


def test_gradients_from_a_context_or_from_scratch_are_the_kernels_own(
    client: RawClient, scene_id: str, shared_worker: WorkerProcess
) -> None:
    names = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth")
    cameras = camera_of(), camera_of(x=0.3)
    options: dict[str, Any] = {"outputs": names, "background": [0.1] * 6, "transforms": [moved(20, 60)]}
    spec = gaussian_spec(*cameras, scene_id=scene_id, **options)
    gradients = {**upstream(2, 48, 64, 3, names=names), "means2d": color_gradient(2, 150, 2)}
    local = kernel_backward(spec, CLOUD, gradients, EVERYTHING).gradients
    assert local["background"].shape == (2, 3)
    assert local["transforms"].shape == (1, 4, 4)
    assert {"camera_rotation", "camera_translation", "camera_intrinsics", "camera_pose"} <= set(local)
    labels = {"engine": "gaussians", "op": "backward"}
    before = shared_worker.metric("lumigrad_kernel_seconds_count", **labels)
    rendered = client.render(spec, retain=True)
    assert "kernel.blend" in {stage.name for stage in rendered.timings.stages}
    kept = shared_worker.metric("lumigrad_context_bytes")
    # A context can be used several times.
    for _ in range(2):
        reply = client.backward(gradients, context_id=rendered.header.context_id, wanted=EVERYTHING)
        same_bits(reply.arrays, local)
    # States of earlier tests may expire meanwhile.
    assert shared_worker.metric("lumigrad_context_bytes") <= kept, "backward gives back what it takes beside a state"
    same_bits(client.backward(gradients, spec=spec, wanted=EVERYTHING).arrays, local)
    inline = gaussian_spec(*cameras, **options)
    same_bits(client.backward(gradients, spec=inline, cloud=CLOUD, wanted=EVERYTHING).arrays, local)
    assert shared_worker.metric("lumigrad_kernel_seconds_count", **labels) > before


@pytest.mark.parametrize(
    "cloud",
    [gaussian_cloud(), gaussian_cloud(coefficients=0), gaussian_cloud(covariances=True)],
    ids=["sh", "colors", "covariances"],
)
def test_what_is_not_said_to_be_wanted_is_all_of_the_scene(client: RawClient, cloud: Arrays) -> None:
    gradients = upstream(1, 48, 64, 3)
    reply = client.backward(gradients, spec=gaussian_spec(), cloud=cloud)
    same_bits(reply.arrays, kernel_backward(gaussian_spec(), cloud, gradients, tuple(cloud)).gradients)


def test_a_gradient_of_the_projected_means_may_come_alone(client: RawClient, scene_id: str) -> None:
    gradients = {"means2d": color_gradient(1, 150, 2)}
    spec = gaussian_spec(scene_id=scene_id)
    local = kernel_backward(spec, CLOUD, gradients, ("means",)).gradients
    assert local["means"].abs().max() > 0
    same_bits(client.backward(gradients, spec=spec, wanted=["means"]).arrays, local)
    context_id = client.render(spec, retain=True).header.context_id
    same_bits(client.backward(gradients, context_id=context_id, wanted=["means"]).arrays, local)


@pytest.mark.parametrize("lead", [(150,), (2, 90)])
def test_sparse_gradients_are_the_rows_that_are_not_zero(client: RawClient, lead: tuple[int, ...]) -> None:
    cloud = gaussian_cloud(*lead, seed=3)
    # The cameras see only a part of the Gaussians.
    cameras = [camera_of(width=16, height=16, x=0.8), camera_of(width=16, height=16, x=-0.8)]
    for camera in cameras:
        camera.opencv.fx = camera.opencv.fy = 200
    gradients = upstream(2, 16, 16, 3)
    wanted = [*cloud, "cameras", "means2d"]
    spec = gaussian_spec(*cameras)
    dense = client.backward(gradients, spec=spec, cloud=cloud, wanted=wanted).arrays
    sparse = client.backward(gradients, spec=spec, cloud=cloud, wanted=wanted, format={"sparse": True}).arrays
    index = sparse.pop("index")
    assert index.dtype == np.int64
    assert (np.diff(index) > 0).all()
    assert 0 < len(index) < np.prod(lead)
    for name in cloud:
        full = np.zeros((int(np.prod(lead)), *dense[name].shape[len(lead) :]), np.float32)
        full[index] = sparse[name]
        assert full.tobytes() == dense[name].tobytes(), name
    for name in ("camera_rotation", "camera_pose", "means2d"):
        assert sparse[name].tobytes() == dense[name].tobytes()


@pytest.mark.parametrize("lead", [(70,), (2, 70)])
def test_colors_may_differ_from_camera_to_camera(client: RawClient, lead: tuple[int, ...]) -> None:
    each = 2 if len(lead) == 2 else 4
    cloud = gaussian_cloud(*lead, coefficients=0, channels=2, views=each, seed=6)
    spec = gaussian_spec(*[camera_of(x=0.1 * index) for index in range(4)])
    same_bits(client.render(spec, cloud=cloud).arrays, kernel_forward(spec, cloud).outputs)
    gradients = upstream(4, 48, 64, 2)
    local = kernel_backward(spec, cloud, gradients, ("means", "colors")).gradients
    wanted = ["means", "colors"]
    same_bits(client.backward(gradients, spec=spec, cloud=cloud, wanted=wanted).arrays, local)
    # Gradients of colours have a row per camera, and are never sparse.
    sparse = client.backward(gradients, spec=spec, cloud=cloud, wanted=wanted, format={"sparse": True}).arrays
    assert sparse["means"].shape == (len(sparse["index"]), 3)
    same_bits({"colors": sparse["colors"]}, {"colors": local["colors"]})
