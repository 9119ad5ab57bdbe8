"""Arguments of the sensor operator as a caller gives them: tensors that require gradients, and gsplat's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lumigrad.client import Camera, UnscentedTransform
from lumigrad.client.compat import gsplat
from lumigrad.client.values.lenses import (
    FisheyeLens,
    FThetaLens,
    OrthographicLens,
    PinholeLens,
    SpinningLidar,
    Windshield,
)

# Names of coefficients of the client, by those of gsplat's arguments.
COEFFICIENTS = {"radial_coeffs": "radial", "tangential_coeffs": "tangential", "thin_prism_coeffs": "thin_prism"}
F_THETA = {
    "angle_to_pixeldist_poly": "angle_to_pixel_distance",
    "pixeldist_to_angle_poly": "pixel_distance_to_angle",
    "linear_cde": "linear",
}
GLASS = {
    "horizontal_poly": "horizontal",
    "vertical_poly": "vertical",
    "horizontal_poly_inverse": "horizontal_inverse",
    "vertical_poly_inverse": "vertical_inverse",
}
LIDAR = {"row_elevations_rad": "elevations", "column_azimuths_rad": "azimuths", "row_azimuth_offsets_rad": "offsets"}
LENSES: dict[str, Any] = {"pinhole": PinholeLens, "ortho": OrthographicLens, "fisheye": FisheyeLens}


def leaf(values: Any, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=kind).requires_grad_()


def lidar_parameters(tables: Mapping[str, Any], **changes: Any) -> Any:
    """gsplat's parameters of a clockwise lidar."""
    return gsplat.RowOffsetStructuredSpinningLidarModelParameters(
        **{
            "row_elevations_rad": tables["lidar_elevations"],
            "column_azimuths_rad": tables["lidar_azimuths"],
            "row_azimuth_offsets_rad": tables["lidar_offsets"],
            "spinning_frequency_hz": 10.0,
            "spinning_direction": gsplat.SpinningDirection.CLOCKWISE,
            **changes,
        }
    )


def pose6(views: Any, gradients: Any) -> Any:
    """Gradients of xi, which moves views to exp(xi) V, from those of the matrices."""
    rotation, translation = gradients[:, :3, :3], gradients[:, :3, 3]
    turning = np.cross(views[:, :3, :3], rotation, axis=1).sum(-1) + np.cross(views[:, :3, 3], translation)
    return np.concatenate([translation, turning], -1)


def numbers(value: Any) -> np.ndarray:
    return np.asarray(value.detach() if isinstance(value, torch.Tensor) else value, np.float64)


def operator_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts gsplat's arguments to those of `render_gaussians`: cameras, and tensors in place of their numbers."""
    found = dict(given)
    model, domain = found.pop("camera_model", "pinhole"), found.pop("lens_domain", "monotone")
    tables = [(found.pop(name, None), names) for name, names in (
        ("ftheta_coeffs", F_THETA), ("external_distortion_coeffs", GLASS), ("lidar_coeffs", LIDAR)
    )]  # fmt: skip
    lens = {ours: found.pop(theirs) for theirs, ours in COEFFICIENTS.items() if found.get(theirs) is not None}
    for parameters, names in tables:
        values = {ours: getattr(parameters, theirs, None) for theirs, ours in names.items()}
        lens |= {name: value for name, value in values.items() if value is not None}
    for name in COEFFICIENTS:
        found.pop(name, None)
    ftheta, glass, lidar = (parameters for parameters, _ in tables)
    shutter = found.pop("rolling_shutter", None)
    shutter = "global" if shutter is None else shutter.name.removeprefix("ROLLING_").lower()
    ends, row_time = found.pop("viewmats_rs", None), found.pop("row_time", "continuous")
    size, Ks = (found.pop("width"), found.pop("height")), found.get("Ks")
    cameras = []
    for number, view in enumerate(numbers(found["viewmats"]).reshape(-1, 4, 4)):
        own = {}
        for name, value in lens.items():
            rows = numbers(value)
            own[name] = rows if rows.ndim == 1 else rows.reshape(-1, rows.shape[-1])[number]
        windshield = Windshield(**{name: own.pop(name) for name in GLASS.values() if name in own}) if glass else None
        if lidar is not None:
            direction = lidar.spinning_direction.name.lower()
            tables_of = ("row_elevations", "column_azimuths", "row_azimuth_offsets")
            own = dict(zip(tables_of, (own[name] for name in LIDAR.values()), strict=True))
            camera_lens: Any = SpinningLidar(**own, direction=direction)
            size = camera_lens.size
        else:
            k = numbers(Ks).reshape(-1, 3, 3)[number]
            film = {"fx": k[0, 0], "fy": k[1, 1], "cx": k[0, 2], "cy": k[1, 2]}
            if ftheta is not None:
                reference = ftheta.reference_poly.name.lower().replace("pixeldist", "pixel_distance")
                centre = {"cx": film["cx"] + 0.5, "cy": film["cy"] + 0.5}
                kind = {"reference": reference, "max_angle": float(ftheta.max_angle), "domain": domain}
                camera_lens = FThetaLens(**centre, **kind, **own)
            else:
                camera_lens = LENSES[model](**film, **own, **({} if model == "ortho" else {"domain": domain}))
        pose: dict[str, Any] = {"shutter": shutter, "row_time": row_time, "windshield": windshield}
        if lidar is not None and ends is not None:
            pose["shutter"] = "left_to_right"
        if ends is not None:
            end = numbers(ends).reshape(-1, 4, 4)[number]
            pose |= {"end_rotation": end[:3, :3], "end_translation": end[:3, 3]}
        cameras.append(Camera.sensor(camera_lens, view[:3, :3], view[:3, 3], *size, **pose))
    return {**settings_of(found), "camera": cameras, "lens": lens, "viewmats_end": ends}


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Replaces gsplat's arguments by the operator's settings."""
    found = {name: value for name, value in given.items() if name != "Ks" or value is not None}
    with_ut, in_order, points = (found.pop(name, None) for name in ("with_ut", "global_z_order", "ut_params"))
    found["projection_method"] = "unscented" if with_ut else "jacobian"
    if found.pop("with_eval3d", False):
        found["response"] = "ray"
    if in_order is not None:
        found["depth_order"] = "z" if in_order else "distance"
    if points is not None:
        found["unscented"] = UnscentedTransform(*vars(points).values())
    if "backgrounds" in found:
        found["background"] = found.pop("backgrounds")
    return found
