"""Messages for calls with Gaussians, and the kernels' in-process results for the same messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import gaussians
from lumigrad.v1 import camera_pb2, gaussians_pb2, render_pb2, scene_pb2
from support.calls.raw_calls import Array, Arrays, opencv_camera
from support.gaussians.rotation import turned

SEMANTICS = {
    gaussians_pb2.GAUSSIAN_SEMANTICS_UNSPECIFIED: "exact",
    gaussians_pb2.GAUSSIAN_SEMANTICS_EXACT: "exact",
    gaussians_pb2.GAUSSIAN_SEMANTICS_GSPLAT: "gsplat",
    gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_DEPTH: "inria_depth",
    gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT: "inria_exact",
}
PROJECTIONS = {
    camera_pb2.PROJECTION_UNSPECIFIED: "pinhole",
    camera_pb2.PROJECTION_PINHOLE: "pinhole",
    camera_pb2.PROJECTION_ORTHOGRAPHIC: "orthographic",
    camera_pb2.PROJECTION_FISHEYE: "fisheye",
}


def gaussian_cloud(
    *lead: int,
    channels: int = 3,
    coefficients: int = 4,
    covariances: bool = False,
    views: int = 0,
    seed: int = 0,
) -> dict[str, Array]:
    """Gaussians in front of `opencv_camera`, [N] or [S, N]; with 0 coefficients, colours (of each of `views`)."""
    lead = lead or (150,)
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {"means": rng.uniform((-1, -1, 4), (1, 1, 8), (*lead, 3))}
    if covariances:
        roots = rng.normal(0, 0.1, (*lead, 3, 3))
        whole = roots @ np.swapaxes(roots, -1, -2) + 1e-3 * np.eye(3)
        arrays["covariances"] = whole[..., [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]]
    else:
        arrays["quats"] = rng.normal(size=(*lead, 4))
        arrays["scales"] = np.exp(rng.uniform(-3.5, -1.5, (*lead, 3)))
    arrays["opacities"] = rng.uniform(0.1, 0.95, lead)
    if coefficients:
        arrays["sh"] = rng.normal(0, 0.3, (*lead, coefficients, channels))
    else:
        each = (*lead[:-1], views, lead[-1]) if views else lead
        arrays["colors"] = rng.uniform(0, 1, (*each, channels))
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def camera_of(projection: int = 0, distortion: Sequence[float] = (), x: float = 0.0, **size: int) -> camera_pb2.Camera:
    """A rotated camera of any projection that has the cloud in view."""
    camera = opencv_camera(x=x, **size)
    camera.opencv.projection = projection
    camera.opencv.distortion.extend(distortion)
    if projection == camera_pb2.PROJECTION_ORTHOGRAPHIC:
        camera.opencv.fx = camera.opencv.fy = 0.25 * camera.width
    camera.opencv.rotation[:] = turned(0.02, -0.05, 0.1).ravel().tolist()
    return camera


def inria_camera(x: float = 0.0) -> camera_pb2.Camera:
    """A camera at (x, 0, 0) that looks along z, with the matrices of Inria's rasterizer."""
    camera = camera_pb2.Camera(width=64, height=48)
    inria = camera.inria
    inria.tan_fov_x, inria.tan_fov_y = 1 / 3, 1 / 4
    view = np.eye(4)
    view[3, 0] = -x
    near, far = 0.01, 100.0
    lens = np.zeros((4, 4))
    lens[0, 0], lens[1, 1] = 1 / inria.tan_fov_x, 1 / inria.tan_fov_y
    lens[2, 2], lens[2, 3], lens[3, 2] = far / (far - near), 1, -far * near / (far - near)
    inria.view_matrix.extend(view.ravel().tolist())
    inria.full_projection.extend((view @ lens).ravel().tolist())
    inria.position.extend([x, 0, 0])
    return camera


def gaussian_spec(
    *cameras: camera_pb2.Camera, scene_id: str = "", outputs: Sequence[str] = (), **settings: Any
) -> render_pb2.RenderSpec:
    """The specification of a render; `settings` replace defaults."""
    return render_pb2.RenderSpec(
        scene_ref=scene_pb2.SceneRef(scene_id=scene_id) if scene_id else None,
        cameras=cameras or [opencv_camera()],
        gaussians=gaussians_pb2.GaussianSettings(**settings),
        outputs=outputs,
    )


def kernel_camera(message: camera_pb2.Camera) -> gaussians.Camera:
    """The same camera in-process."""
    size = message.width, message.height
    if message.HasField("inria"):
        inria = message.inria
        view, projection = (np.array(m).reshape(4, 4) for m in (inria.view_matrix, inria.full_projection))
        return gaussians.Camera.inria(view, projection, list(inria.position), inria.tan_fov_x, inria.tan_fov_y, *size)
    opencv = message.opencv
    return gaussians.Camera.opencv(
        opencv.fx,
        opencv.fy,
        opencv.cx,
        opencv.cy,
        np.array(opencv.rotation).reshape(3, 3),
        list(opencv.translation),
        *size,
        model=PROJECTIONS[opencv.projection],
        distortion=tuple(opencv.distortion),
    )


def kernel_forward(spec: render_pb2.RenderSpec, cloud: Arrays, **options: Any) -> gaussians.Forward:
    """The same render in-process."""
    message = spec.gaussians
    special = {"semantics", "background", "transforms"}
    given = {field.name: value for field, value in message.ListFields() if field.name not in special}
    background = None
    if message.background:
        background = torch.tensor(list(message.background))
        if len(message.background) > cloud["sh" if "sh" in cloud else "colors"].shape[-1]:
            background = background.reshape(len(spec.cameras), -1)
    return gaussians.forward(
        gaussians.Gaussians(**{name: torch.from_numpy(array) for name, array in cloud.items()}),
        [kernel_camera(camera) for camera in spec.cameras],
        gaussians.Settings(semantics=SEMANTICS[message.semantics], **given),
        background=background,
        transforms=[
            gaussians.Transform(entry.begin, entry.end, np.array(entry.matrix).reshape(4, 4))
            for entry in message.transforms
        ],
        outputs=tuple(spec.outputs) or ("color",),
        **options,
    )


def kernel_backward(
    spec: render_pb2.RenderSpec, cloud: Arrays, gradients: Arrays, wanted: Sequence[str]
) -> gaussians.Backward:
    """The same gradients in-process."""
    state = kernel_forward(spec, cloud, retain=True).state
    assert state is not None
    return gaussians.backward(state, {name: torch.from_numpy(array) for name, array in gradients.items()}, wanted)


def same_bits(remote: Mapping[str, Array], local: Mapping[str, torch.Tensor]) -> None:
    """Assert that remote and local results are equal bit by bit."""
    assert set(remote) == set(local)
    for name, tensor in local.items():
        assert remote[name].shape == tuple(tensor.shape), name
        assert remote[name].tobytes() == tensor.contiguous().numpy().tobytes(), name
