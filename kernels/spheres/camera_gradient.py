"""Gradients of the camera's parameters from the camera sums of the backward pass."""

from __future__ import annotations

import numpy as np

from lumigrad.kernels.spheres import rotation
from lumigrad.kernels.spheres.camera import Camera
from lumigrad.kernels.spheres.camera_sources import OpenCVSource, PulsarSource

Array = np.ndarray


def names(camera: Camera) -> tuple[str, ...]:
    """Names of the gradients that `gradients` returns for a camera of this kind."""
    if isinstance(camera.source, PulsarSource):
        return ("cameras",)
    return ("camera_rotation", "camera_translation", "camera_intrinsics")


def gradients(camera: Camera, sums: Array, exact: bool, auto_depth: bool) -> dict[str, Array]:
    """Gradients of one camera's parameters, float64.

    Args:
        camera: The view.
        sums: [24], the engine's sums (native/spheres/params.h, Gradients).
        exact: Whether the semantics are "exact".
        auto_depth: Whether this camera's focal length sets the start of the depth range, so that the gradient of the
            start is added to that of the focal length ("exact" only; Pulsar ignores it).

    Returns:
        By name: "cameras" [8 | 10 | 11 | 13] for Pulsar's parameters; "camera_rotation" [3, 3], "camera_translation"
        [3] and "camera_intrinsics" [4] (fx, fy, cx, cy) for OpenCV's.
    """
    if isinstance(camera.source, PulsarSource):
        chain = _pulsar_exact if exact else _pulsar_compat
        return {"cameras": chain(camera, camera.source, sums, auto_depth)}
    chain_cv = _opencv_exact if exact else _opencv_compat
    return chain_cv(camera.source, sums)


def _film_exact(camera: Camera, sums: Array) -> tuple[Array, Array]:
    """dL/d scale (x, y) and dL/d centre (x, y) of x_pixel = scale * u + centre."""
    scale = np.asarray(camera.scale)
    if camera.orthogonal:
        # Film positions are (x - centre) / scale, so a shift of the centre shifts the film relative to the spheres.
        return np.array([-sums[16] / scale[0], 0.0]), sums[9:11] / scale
    return -sums[14:16] / scale**2, -sums[12:14] / scale


def _pulsar_exact(camera: Camera, source: PulsarSource, sums: Array, auto_depth: bool) -> Array:
    m = source.axes(np.float64, camera.width, camera.height, camera.orthogonal)
    d_rows = sums[:9].reshape(3, 3)
    d_eye = -(m.right * sums[9] + m.down * sums[10] + m.forward * sums[11])
    d_scale, d_centre = _film_exact(camera, sums)
    d_scale_all = float(d_scale.sum())
    sensor, width = float(source.sensor), camera.width
    if camera.orthogonal:
        d_focal, d_sensor = 0.0, d_scale_all * -width / sensor**2
    else:
        d_focal, d_sensor = d_scale_all * width / sensor, d_scale_all * -camera.focal * width / sensor**2
        d_focal += sums[17] if auto_depth else 0.0
    hand = -1.0 if source.right_handed else 1.0
    d_matrix = np.stack([d_rows[0], -d_rows[1], hand * d_rows[2]], axis=1)
    return _pulsar_vector(source, d_eye, d_matrix, d_focal, d_sensor, -d_centre)


def _pulsar_compat(camera: Camera, source: PulsarSource, sums: Array, auto_depth: bool) -> Array:
    """Spec section 7.3."""
    m = source.axes(np.float64, camera.width, camera.height, camera.orthogonal)
    d_eye, d_origin, d_x, d_y = sums[:12].reshape(4, 3)
    sensor, width, height = float(source.sensor), camera.width, camera.height
    d_right = d_origin * (-(sensor / 2) + sensor / width / 2) + d_x * sensor / width
    d_down = d_origin * (-(height * sensor / width / 2) + sensor / width / 2) + d_y * sensor / width
    d_forward, d_focal = np.zeros(3), 0.0
    if not camera.orthogonal:
        d_forward, d_focal = camera.focal * d_origin, float(m.forward @ d_origin)
    d_sensor = (
        float(m.right @ d_origin) * (1 / width - 1) / 2
        + float(m.down @ d_origin) * (1 - height) / width / 2
        + float(m.right @ d_x + m.down @ d_y) / width
    )
    hand = -1.0 if source.right_handed else 1.0
    d_matrix = np.stack([d_right, -d_down, hand * d_forward], axis=1)
    return _pulsar_vector(source, d_eye + d_origin, d_matrix, d_focal, d_sensor, np.zeros(2))


def _pulsar_vector(
    source: PulsarSource, d_eye: Array, d_matrix: Array, d_focal: float, d_sensor: float, d_offset: Array
) -> Array:
    d_position = d_eye
    if source.first_r_then_t:
        r = rotation.matrix(source.rotation_values.astype(np.float64))
        d_matrix = d_matrix + np.outer(d_eye, source.values[:3])
        d_position = r.T @ d_eye
    d_rotation = rotation.gradient(source.rotation_values, d_matrix)
    parts: list[Array] = [d_position, d_rotation, np.array([d_focal, d_sensor])]
    if len(source.values) in (10, 13):
        parts.append(d_offset)
    return np.concatenate(parts)


def _opencv_exact(source: OpenCVSource, sums: Array) -> dict[str, Array]:
    # q = R P + t; the engine summed outer(dL/dq, P - eye).
    eye = -source.rotation.T @ source.translation
    d_q = sums[9:12]
    scale = np.array([source.fx, source.fy])
    return {
        "camera_rotation": sums[:9].reshape(3, 3) + np.outer(d_q, eye),
        "camera_translation": d_q.copy(),
        "camera_intrinsics": np.concatenate([-sums[14:16] / scale**2, -sums[12:14] / scale]),
    }


def _opencv_compat(source: OpenCVSource, sums: Array) -> dict[str, Array]:
    d_eye, d_origin, d_x, d_y = sums[:12].reshape(4, 3)
    r = source.rotation
    right, down, _ = r
    u, v = (0.5 - source.cx) / source.fx, (0.5 - source.cy) / source.fy
    d_eye = d_eye + d_origin
    d_rows = np.stack([u * d_origin + d_x / source.fx, v * d_origin + d_y / source.fy, d_origin])
    d_u, d_v = float(right @ d_origin), float(down @ d_origin)
    # eye = -R^T t.
    d_rotation = d_rows - np.outer(source.translation, d_eye)
    intrinsics = [
        -d_u * u / source.fx - float(right @ d_x) / source.fx**2,
        -d_v * v / source.fy - float(down @ d_y) / source.fy**2,
        -d_u / source.fx,
        -d_v / source.fy,
    ]
    return {
        "camera_rotation": d_rotation,
        "camera_translation": -(r @ d_eye),
        "camera_intrinsics": np.array(intrinsics),
    }
