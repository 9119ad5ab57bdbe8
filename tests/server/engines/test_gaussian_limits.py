"""Limits of requests about Gaussians: each refusal names field, limit and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lumigrad.v1 import camera_pb2, gaussians_pb2
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec, inria_camera
from support.calls.raw_calls import Arrays, RawClient, assert_refused, failure, opencv_camera, pulsar_camera, violation
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess, worker_fixture

CLOUD = gaussian_cloud(20)
COLORS = gaussian_cloud(20, coefficients=0)
PER_CAMERA = gaussian_cloud(20, coefficients=0, views=2)
SCENES = gaussian_cloud(2, 20)
MATRIX = np.eye(4).ravel().tolist()
EXACT = gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT
process = worker_fixture("--max-payload-mib", "1", "--max-pixels", "10000", "--max-cameras", "200")


def small(x: float = 0.0) -> camera_pb2.Camera:
    return opencv_camera(32, 32, x)


def changed(change: Callable[[Any], object], camera: camera_pb2.Camera | None = None, **settings: Any) -> Any:
    """Returns a spec with a changed camera."""
    spec = gaussian_spec(camera or small(), **settings)
    change(spec.cameras[0])
    return spec


def sliced(*slices: tuple[int, int], matrix: Any = MATRIX) -> Any:
    entries = [gaussians_pb2.SliceTransform(begin=begin, end=end, matrix=matrix) for begin, end in slices]
    return gaussian_spec(small(), transforms=entries)


SPECS: list[tuple[Any, Arrays, str, str]] = [
    (changed(lambda c: c.ClearField("opencv")), CLOUD, "spec.cameras[0]", "expected opencv, inria or sensor, got none"),
    (gaussian_spec(pulsar_camera(32, 32)), CLOUD,
     "spec.cameras[0].pulsar", "expected opencv, inria or sensor, got pulsar"),
    (changed(lambda c: c.opencv.rotation.pop()), CLOUD, "spec.cameras[0].opencv.rotation", "expected 9 values, got 8"),
    (changed(lambda c: c.opencv.translation.append(1)), CLOUD,
     "spec.cameras[0].opencv.translation", "expected 3 values, got 4"),
    (changed(lambda c: setattr(c.opencv, "projection", 7)), CLOUD,
     "spec.cameras[0].opencv.projection", "expected a known value, got 7"),
    (changed(lambda c: c.opencv.distortion.extend([1, 2, 3])), CLOUD,
     "spec.cameras[0].opencv.distortion", "expected 4, 5 or 8 values k1 k2"),
    (changed(lambda c: setattr(c.opencv, "fx", 0)), CLOUD, "spec.cameras[0].opencv.fx", "expected a finite focal"),
    (gaussian_spec(opencv_camera(40000, 1), outputs=["alpha"]), CLOUD, "spec.cameras", "expected at most 10000 pixels"),
    (changed(lambda c: c.inria.view_matrix.pop(), inria_camera(), semantics=EXACT), CLOUD,
     "spec.cameras[0].inria.view_matrix", "expected 16 values, got 15"),
    (changed(lambda c: c.inria.full_projection.append(0), inria_camera(), semantics=EXACT), CLOUD,
     "spec.cameras[0].inria.full_projection", "expected 16 values, got 17"),
    (changed(lambda c: c.inria.position.pop(), inria_camera(), semantics=EXACT), CLOUD,
     "spec.cameras[0].inria.position", "expected 3 values, got 2"),
    (gaussian_spec(camera_of(camera_pb2.PROJECTION_FISHEYE), semantics=EXACT), CLOUD,
     "spec.cameras", "expected pinhole cameras without distortion with semantics 'inria_exact'"),
    (gaussian_spec(small()), SCENES, "spec.cameras", "expected as many cameras for each of the scene's 2"),
    (gaussian_spec(small()), PER_CAMERA, "spec.cameras", "expected 2 cameras, as many as the scene's colours are for"),
    (gaussian_spec(small(), semantics=9), CLOUD, "spec.gaussians.semantics", "expected a known value, got 9"),
    (gaussian_spec(small(), sh_degree=2), CLOUD, "spec.gaussians.sh_degree", "expected at most 1, the degree stored"),
    (gaussian_spec(small(), sh_degree=0), COLORS, "spec.gaussians.sh_degree", "expected no degree for colours, got 0"),
    *(
        (gaussian_spec(small(), **{name: value}), CLOUD, f"spec.gaussians.{name}", "expected a")
        for name, value in [
            ("eps2d", -1), ("near", 0), ("far", 0.001), ("radius_clip", -1), ("alpha_min", 0), ("alpha_max", 1),
            ("transmittance_min", 1), ("scale_modifier", 0),
        ]
    ),
    (gaussian_spec(small(), pixel_center=0.25), CLOUD, "spec.gaussians.pixel_center", "expected 0.5 or 0, got 0.25"),
    (gaussian_spec(small(), small(), background=[1, 1]), CLOUD,
     "spec.gaussians.background", "expected 3 values, one per channel of the scene, or as many for each camera, or"),
    (gaussian_spec(small(), background=[1, 1, float("inf")]), CLOUD,
     "spec.gaussians.background[2]", "expected a finite value, got inf"),
    (sliced((0, 4), matrix=MATRIX[:15]), CLOUD, "spec.gaussians.transforms[0].matrix", "expected 16 values, got 15"),
    (sliced((0, 4), (4, 21)), CLOUD, "spec.gaussians.transforms[1].end", "expected at most 20, the Gaussians"),
    (sliced((5, 9), (0, 6)), CLOUD,
     "spec.gaussians.transforms", "expected slices that do not overlap, got [0, 6) and [5, 9)"),
    (sliced((0, 4), matrix=[2.0] * 16), CLOUD, "spec.gaussians.transforms[0]", "expected a rigid 4x4 matrix"),
    (gaussian_spec(inria_camera(), transforms=[gaussians_pb2.SliceTransform(end=4, matrix=MATRIX)]), CLOUD,
     "spec.gaussians.transforms", "expected none with Inria's cameras, got 1"),
    (gaussian_spec(small(), outputs=["hits"]), CLOUD, "spec.outputs", "expected one of color, alpha, transmitt"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "cloud", "field", "text"), SPECS, ids=[f"{field}-{text[:40]}" for _, _, field, text in SPECS]
)
def test_a_render_out_of_limits_is_refused(client: RawClient, spec: Any, cloud: Arrays, field: str, text: str) -> None:
    assert_refused(lambda: client.render(spec, cloud=cloud), field, text)


IMAGE = np.ones((1, 32, 32), np.float32)
COLOR = np.ones((1, 32, 32, 3), np.float32)
UPSTREAM = "color, alpha, transmittance, depth, expected_depth, inverse_depth, means2d"
NAMES = "means, quats, scales, opacities, sh, background, cameras, means2d, means2d_abs"
BACKWARDS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {}, "spec.output_gradients", f"expected at least one of {UPSTREAM}, got none"),
    ({"ids": IMAGE}, {}, "spec.output_gradients[0].name", f"expected one of {UPSTREAM}, each once, got ids"),
    ({"color": IMAGE}, {}, "spec.output_gradients[0].tensor.shape", "expected [1, 32, 32, 3], got [1, 32, 32]"),
    ({"means2d": np.ones((1, 19, 2), np.float32)}, {},
     "spec.output_gradients[0].tensor.shape", "expected [1, 20, 2], got [1, 19, 2]"),
    ({"color": COLOR}, {"wanted": ["colors"]}, "spec.wanted", f"expected one of {NAMES}, got colors"),
    ({"color": COLOR}, {"wanted": ["covariances"]}, "spec.wanted", f"expected one of {NAMES}, got covariances"),
]  # fmt: skip


@pytest.mark.parametrize(("gradients", "fields", "field", "text"), BACKWARDS)
def test_a_backward_out_of_limits_is_refused(
    client: RawClient, gradients: dict[str, Any], fields: dict[str, Any], field: str, text: str
) -> None:
    spec = gaussian_spec(small())
    assert_refused(lambda: client.backward(gradients, spec=spec, cloud=CLOUD, **fields), field, text)


def test_a_reply_above_the_payload_limit_is_refused_by_the_header(client: RawClient) -> None:
    cloud = gaussian_cloud(3000)
    cameras = [opencv_camera(2, 2)] * 100
    size = 100 * 3000 * 2 * 4
    limit = f"at most {1 << 20} bytes of reply (the worker's --max-payload-mib"
    spec = gaussian_spec(*cameras, outputs=["means2d"])
    assert violation(failure(lambda: client.render(spec, cloud=cloud))) == (
        "spec.outputs",
        f"expected {limit}), got {size}",
    )
    gradient = {"color": np.ones((100, 2, 2, 3), np.float32)}
    wanted = ["means2d_abs"]
    error = failure(lambda: client.backward(gradient, spec=gaussian_spec(*cameras), cloud=cloud, wanted=wanted))
    # Only gradients of rows may be sparse or have 16 bits.
    remedy = "fewer gradients take less"
    assert violation(error) == ("spec.wanted", f"expected gradients of {limit}; {remedy}), got {size}")


def test_a_sparse_reply_is_limited_by_the_rows_that_it_has(client: RawClient, process: WorkerProcess) -> None:
    count = 18_000
    cloud = gaussian_cloud(count, coefficients=0)
    gradient, form = {"color": np.ones((1, 32, 32, 3), np.float32)}, {"sparse": True}
    row_bytes = 8 + 4 * sum(array[0].size for array in cloud.values())
    assert count * row_bytes > 1 << 20
    dense = client.backward(gradient, spec=gaussian_spec(small()), cloud=cloud).arrays
    sparse = client.backward(gradient, spec=gaussian_spec(small()), cloud=cloud, format=form).arrays
    assert 0 < len(sparse["index"]) * row_bytes < 1 << 20
    assert all(np.array_equal(sparse[name], dense[name][sparse["index"]]) for name in cloud)
    # No Gaussian hides others now.
    cloud["means"][:, :2] *= 0.1
    cloud["opacities"][:] = 0.005
    cloud["scales"][:] = 0.1
    error = failure(lambda: client.backward(gradient, spec=gaussian_spec(small()), cloud=cloud, format=form))
    remedy = "fewer primitives, fewer gradients, or 16 bits take less"
    limit = f"gradients of at most {1 << 20} bytes of reply (the worker's --max-payload-mib; {remedy})"
    assert violation(error)[0] == "spec.wanted"
    assert violation(error)[1].startswith(f"expected {limit}, got ")
    fewer = client.backward(gradient, spec=gaussian_spec(small()), cloud=cloud, format=form, wanted=["means"]).arrays
    assert len(fewer["index"]) * row_bytes > 1 << 20
    # A call ends when its last byte has left, a moment after the caller has it.
    wait_for(process, "lumigrad_account_taken", 0, resource="transit")


def test_gradients_of_cameras_of_several_kinds_are_refused(client: RawClient) -> None:
    spec = gaussian_spec(opencv_camera(64, 48), inria_camera(), semantics=EXACT, near=0.2)
    gradient = {"color": np.ones((2, 48, 64, 3), np.float32)}
    error = failure(lambda: client.backward(gradient, spec=spec, cloud=CLOUD, wanted=["cameras"]))
    assert violation(error)[0] == "spec.wanted"
