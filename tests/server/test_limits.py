"""Every limit is checked, and the refusal names field, limit and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lumigrad.protos import dtypes
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import camera_pb2, render_pb2, scene_pb2, worker_pb2
from support.calls.distance_calls import mesh_arrays
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import (
    RawClient,
    assert_refused,
    failure,
    opencv_camera,
    pulsar_camera,
    spec_of,
    sphere_cloud,
    violation,
)
from support.meshes.shapes import torus
from support.workers.worker import worker_fixture

LIMITS = {
    "--max-payload-mib": 1,
    "--max-pixels": 10_000,
    "--max-cameras": 3,
    "--max-rows": 200,
    "--queue-size": 5,
}
CLOUD = sphere_cloud(20)
# The most primitives of a scene.
MOST = 1 << 27
process = worker_fixture(*[str(word) for pair in LIMITS.items() for word in pair])


def test_info_tells_the_limits(client: RawClient) -> None:
    info = client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60)
    # The default of --scene-mib, which is below that of --training-mib.
    assert info.target_image_bytes == 4096 << 20
    assert info.limits == worker_pb2.Limits(
        max_payload_bytes=1 << 20,
        max_pixels=10_000,
        max_primitives=1 << 27,
        max_cameras=3,
        max_queue=5,
        max_channels=512,
        max_rows=200,
        max_obstacles=16384,
        max_voxels=1 << 26,
    )


def changed(change: Callable[[Any], object], **settings: Any) -> Any:
    spec = spec_of(opencv_camera(32, 32), **settings)
    change(spec)
    return spec


def set_rotation(spec: Any) -> None:
    spec.cameras[0].opencv.rotation[0] = 2


def no_model(spec: Any) -> None:
    spec.cameras[0].ClearField("opencv")


def pulsar(*parameters: float) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        spec.cameras[0].pulsar.parameters.extend(parameters)

    return change


CAMERAS = " (the worker's --max-cameras)"
SPECS: list[tuple[Any, str, str]] = [
    (spec_of(*[opencv_camera(8, 8)] * 4), "spec.cameras", f"expected at most 3 cameras{CAMERAS}, got at least 4"),
    (changed(lambda s: s.ClearField("cameras")), "spec.cameras", f"expected 1 to 3 cameras{CAMERAS}, got 0"),
    (spec_of(opencv_camera(101, 100)), "spec.cameras", "expected at most 10000 pixels in all"),
    (spec_of(*[opencv_camera(60, 60)] * 3), "spec.cameras", "expected at most 10000 pixels in all (the worker's"),
    (
        spec_of(opencv_camera((1 << 32) - 1, (1 << 32) - 1)),
        "spec.cameras", f"expected at most 10000 pixels in all (the worker's --max-pixels), got {((1 << 32) - 1) ** 2}",
    ),
    (spec_of(opencv_camera(0, 10)), "spec.cameras[0]", "expected width and height >= 1, got 0x10"),
    (
        spec_of(opencv_camera(10, 10), opencv_camera(10, 11)),
        "spec.cameras[1]", "expected the size of the first camera, 10x10, got 10x11",
    ),
    (changed(no_model), "spec.cameras[0]", "expected pulsar or opencv, got none"),
    (changed(lambda s: s.cameras[0].opencv.rotation.pop()), "spec.cameras[0].opencv.rotation", "expected 9 values"),
    (changed(set_rotation), "spec.cameras[0].opencv.rotation", "expected an orthonormal 3x3 matrix"),
    (
        changed(lambda s: s.cameras[0].opencv.translation.append(1)),
        "spec.cameras[0].opencv.translation", "expected 3 values, got 4",
    ),
    (changed(lambda s: setattr(s.cameras[0].opencv, "fx", -1)), "spec.cameras[0].opencv.fx", "expected a finite"),
    (
        changed(lambda s: setattr(s.cameras[0].opencv, "projection", camera_pb2.PROJECTION_FISHEYE)),
        "spec.cameras[0].opencv.projection", "expected pinhole, the one projection of spheres, got fisheye",
    ),
    (
        changed(lambda s: setattr(s.cameras[0].opencv, "projection", 9)),
        "spec.cameras[0].opencv.projection", "expected a known value, got 9",
    ),
    (
        changed(lambda s: s.cameras[0].opencv.distortion.extend([0.1, 0, 0, 0])),
        "spec.cameras[0].opencv.distortion", "expected no values: spheres do not support distortion, got 4 values",
    ),
    (
        changed(lambda s: setattr(s.cameras[0].inria, "tan_fov_x", 1)),
        "spec.cameras[0].inria", "expected pulsar or opencv, got inria",
    ),
    (changed(pulsar(0, 0, 0)), "spec.cameras[0].pulsar", "expected camera parameters: 8, 10, 11 or 13 values, got 3"),
    (changed(pulsar(*[float("inf")] * 8)), "spec.cameras[0].pulsar", "expected camera parameters: finite values"),
    (spec_of(opencv_camera(32, 32), gamma=2), "spec.spheres.gamma", "expected a value in [1e-5, 1], got 2.0"),
    (spec_of(opencv_camera(32, 32), max_depth=float("nan")), "spec.spheres.max_depth", "expected 0 or a finite"),
    (spec_of(opencv_camera(32, 32), n_track=129), "spec.spheres.n_track", "expected 1 to 128, got 129"),
    (spec_of(opencv_camera(32, 32), allowed_difference=1), "spec.spheres.allowed_difference", "expected a value in"),
    (spec_of(opencv_camera(32, 32), background_depth=0), "spec.spheres.background_depth", "expected a value in (0, 1)"),
    (spec_of(opencv_camera(32, 32), semantics=9), "spec.spheres.semantics", "expected a known value, got 9"),
    (
        spec_of(opencv_camera(32, 32), background=[1, 1]),
        "spec.spheres.background", "expected 3 values, one per channel of the scene, or none, got 2",
    ),
    (
        spec_of(opencv_camera(32, 32), background=[1, float("nan"), 1]),
        "spec.spheres.background[1]", "expected a finite value, got nan",
    ),
    (spec_of(opencv_camera(32, 32), outputs=["colour"]), "spec.outputs", "expected one of color, alpha"),
    (
        spec_of(opencv_camera(60, 60), outputs=["weights", "sphere_ids"], n_track=128),
        "spec.outputs",
        f"expected at most {1 << 20} bytes of reply (the worker's --max-payload-mib), got {60 * 60 * 128 * 4 * 2}",
    ),
    (spec_of(pulsar_camera(32, 32), min_depth=0.5), "spec.min_depth", "expected 0 or a value above the largest focal"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "field", "text"), SPECS, ids=[f"{field}-{text[:40]}" for _, field, text in SPECS])
def test_a_render_out_of_limits_is_refused(client: RawClient, spec: Any, field: str, text: str) -> None:
    assert_refused(lambda: client.render(spec, cloud=CLOUD), field, text)


def cloud_with(**arrays: Any) -> dict[str, Any]:
    return {**CLOUD, **{name: np.asarray(array, np.float32) for name, array in arrays.items()}}


CLOUDS: list[tuple[dict[str, Any], str, str]] = [
    (sphere_cloud(20, channels=513), "colors", "expected at most 512 channels, got 513"),
    (cloud_with(positions=np.ones((20, 4))), "positions.shape", "expected [20, 3], got [20, 4]"),
    (cloud_with(positions=np.ones(())), "positions.shape", "expected [0, 3], got []"),
    (cloud_with(colors=np.ones((19, 3))), "colors", "expected shape [20, K] with K >= 1, got [19, 3]"),
    (cloud_with(colors=np.ones((20, 0))), "colors", "expected shape [20, K] with K >= 1, got [20, 0]"),
    (cloud_with(radii=np.ones((20, 1))), "radii.shape", "expected [20], got [20, 1]"),
    (cloud_with(opacities=np.ones(19)), "opacities.shape", "expected [20], got [19]"),
    ({**CLOUD, "radii": np.ones(20, np.float16)}, "radii.dtype", "expected DTYPE_FLOAT32, got DTYPE_FLOAT16"),
    ({**CLOUD, "colors": np.ones((20, 3), np.int32)}, "colors.dtype", "expected DTYPE_FLOAT32, got DTYPE_INT32"),
    ({"positions": CLOUD["positions"], "colors": CLOUD["colors"]}, "radii", "expected a tensor, got none"),
    (cloud_with(radii=-np.ones(20)), "radii", "expected finite values above 1e-6, got values from -1.0 to -1.0"),
    (cloud_with(radii=np.full(20, np.inf)), "radii", "expected finite values above 1e-6"),
    (cloud_with(positions=np.full((20, 3), np.nan)), "positions", "expected finite values"),
    (cloud_with(opacities=np.full(20, 1.5)), "opacities", "expected values in [0, 1]"),
]


@pytest.mark.parametrize(("cloud", "name", "text"), CLOUDS, ids=[f"{name}-{text[9:40]}" for _, name, text in CLOUDS])
def test_a_scene_out_of_limits_is_refused_whichever_way_it_comes(
    client: RawClient, cloud: dict[str, Any], name: str, text: str
) -> None:
    assert_refused(lambda: client.put(cloud), f"scene.spheres.{name}", text)
    spec = spec_of(opencv_camera(8, 8))
    assert violation(failure(lambda: client.render(spec, cloud=cloud)))[0] == f"spec.scene.spheres.{name}"
    gradient = {"color": np.ones((1, 8, 8, 3), np.float32)}
    error = failure(lambda: client.backward(gradient, spec=spec, cloud=cloud))
    assert violation(error)[0] == f"spec.render.scene.spheres.{name}"


@pytest.mark.parametrize(
    ("path", "shape", "text"),
    [
        ("spheres.positions", [MOST + 1, 3], f"expected at most {MOST} spheres, got {MOST + 1}"),
        ("gaussians.means", [MOST + 1, 3], f"expected at most {MOST} Gaussians in all (scenes with levels have more)"),
        ("gaussians.means", [2, MOST // 2 + 1, 3], f"expected at most {MOST} Gaussians in all"),
        ("mesh.vertices", [MOST + 1, 3], f"expected at most {MOST} vertices, got {MOST + 1}"),
        ("mesh.faces", [MOST + 1, 3], f"expected at most {MOST} faces, got {MOST + 1}"),
    ],
)
def test_more_primitives_than_kernels_can_number_are_refused_by_their_header(
    client: RawClient, path: str, shape: list[int], text: str
) -> None:
    kind, name = path.split(".")
    arrays = {"spheres": CLOUD, "gaussians": gaussian_cloud(20), "mesh": mesh_arrays(torus(8, 8))}[kind]
    payload = PayloadWriter()
    request = scene_pb2.PutRequest()
    content = getattr(request.scene, kind)
    for key, array in arrays.items():
        getattr(content, key).CopyFrom(payload.add(array))
    getattr(content, name).shape[:] = shape
    assert_refused(lambda: client.scene_stub.Put(frames_of(request, payload), timeout=60), f"scene.{path}", text)


def test_other_kinds_of_scene_and_no_scene_are_refused(client: RawClient) -> None:
    put = failure(lambda: client.scene_stub.Put(iter([Frame(scene_pb2.PutRequest())]), timeout=60))
    assert violation(put) == ("scene", "expected one of spheres, gaussians, mesh, world, target, levels, got none")
    assert violation(failure(lambda: client.render(spec_of())))[0] == "spec"
    empty = spec_of()
    empty.scene.SetInParent()
    assert violation(failure(lambda: client.render(empty))) == ("spec.scene", "expected spheres, got none")


GRADIENT = np.ones((1, 32, 32, 3), np.float32)
BACKWARDS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {}, "spec.output_gradients", "expected at least one of color, alpha, depth, got none"),
    ({"hits": GRADIENT[..., 0]}, {}, "spec.output_gradients[0].name", "expected one of color, alpha, depth, each once"),
    ({"color": GRADIENT[0]}, {}, "spec.output_gradients[0].tensor.shape", "expected [1, 32, 32, 3], got [32, 32, 3]"),
    ({"alpha": GRADIENT}, {}, "spec.output_gradients[0].tensor.shape", "expected [1, 32, 32], got [1, 32, 32, 3]"),
    (
        {"color": GRADIENT.astype(np.int32)},
        {},
        "spec.output_gradients[0].tensor.dtype",
        "expected DTYPE_FLOAT32, DTYPE",
    ),
    ({"color": GRADIENT}, {"wanted": ["normals"]}, "spec.wanted", "expected one of positions, colors"),
    ({"color": GRADIENT}, {"format": {"dtype": dtypes.INT32}}, "spec.format.dtype", "expected DTYPE_FLOAT32, DTYPE"),
]


@pytest.mark.parametrize(("gradients", "fields", "field", "text"), BACKWARDS)
def test_a_backward_out_of_limits_is_refused(
    client: RawClient, gradients: dict[str, Any], fields: dict[str, Any], field: str, text: str
) -> None:
    spec = spec_of(opencv_camera(32, 32))
    assert_refused(lambda: client.backward(gradients, spec=spec, cloud=CLOUD, **fields), field, text)


def test_what_only_the_kernels_refuse_names_the_spec_that_is_rendered_again(client: RawClient) -> None:
    spec = spec_of(pulsar_camera(32, 32), min_depth=0.5)
    error = failure(lambda: client.backward({"color": GRADIENT}, spec=spec, cloud=CLOUD))
    assert violation(error)[0] == "spec.render.min_depth"


def test_gradients_of_cameras_of_several_kinds_are_refused(client: RawClient) -> None:
    spec = spec_of(opencv_camera(32, 32), pulsar_camera(32, 32), min_depth=1.5)
    gradient = {"color": np.ones((2, 32, 32, 3), np.float32)}
    error = failure(lambda: client.backward(gradient, spec=spec, cloud=CLOUD, wanted=["cameras"]))
    assert violation(error)[0] == "spec.wanted"


def test_a_payload_above_the_limit_is_refused_by_its_header(client: RawClient) -> None:
    request = render_pb2.RenderRequest(spec=spec_of(), payload_bytes=(1 << 20) + 1)
    request.spec.scene_ref.scene_id = client.put(CLOUD).scene.scene_id
    error = failure(lambda: list(client.render_stub.Render(iter([Frame(request)]), timeout=60)))
    assert violation(error) == (
        "payload_bytes",
        f"expected at most {1 << 20} bytes (the worker's --max-payload-mib), got {(1 << 20) + 1}",
    )


def test_the_largest_lie_in_a_header_allocates_nothing(client: RawClient) -> None:
    request = scene_pb2.PutRequest(payload_bytes=(1 << 64) - 1)
    for name, width in (("positions", 3), ("colors", 3)):
        tensor = getattr(request.scene.spheres, name)
        tensor.dtype = dtypes.FLOAT32
        tensor.shape.extend([20, width])
        tensor.payload.length = 80 * width
    request.scene.spheres.radii.dtype = dtypes.FLOAT32
    request.scene.spheres.radii.shape.append(20)
    request.scene.spheres.radii.payload.offset = (1 << 64) - 1
    error = failure(lambda: client.scene_stub.Put(iter([Frame(request)]), timeout=60))
    assert violation(error)[0] == "payload_bytes"
