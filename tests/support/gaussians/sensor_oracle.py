"""Sensor cases that another program computed in double precision, from the folder named by LUMIGRAD_TEST_DATA."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lumigrad.kernels.gaussians import (
    Camera,
    FisheyeLens,
    FThetaLens,
    OrthographicLens,
    PinholeLens,
    SensorLens,
    SpinningLidar,
    UnscentedTransform,
    Windshield,
)

Arrays = Mapping[str, NDArray[Any]]
SCENE = {"means": "means", "quats": "quats", "scales": "scales", "opacities": "opacities"}
DEPTHS = {"D": "depth", "ED": "expected_depth", "d": "hit_distance", "Ed": "expected_hit_distance"}
REFERENCES = {"angle_to_pixeldist": "angle_to_pixel_distance", "pixeldist_to_angle": "pixel_distance_to_angle"}
DIRECTIONS = {"cw": "clockwise", "ccw": "counter_clockwise"}
# The file's names of gradients, by ours.
LENSES = {
    "lens_radial": "radial_coeffs",
    "lens_tangential": "tangential_coeffs",
    "lens_thin_prism": "thin_prism_coeffs",
    "lens_angle_to_pixel_distance": "ftheta_forward",
    "lens_pixel_distance_to_angle": "ftheta_backward",
    "lens_linear": "ftheta_cde",
    "windshield_horizontal": "windshield_h",
    "windshield_vertical": "windshield_v",
    "windshield_horizontal_inverse": "windshield_h_inv",
    "windshield_vertical_inverse": "windshield_v_inv",
    "lidar_elevations": "lidar_elevations",
    "lidar_azimuths": "lidar_azimuths",
    "lidar_offsets": "lidar_offsets",
    "rays": "rays",
    "camera_pose": "pose6",
    "camera_pose_end": "pose6_rs",
    "background": "backgrounds",
}


@dataclass(frozen=True)
class SensorFile:
    """A file: the scene's tensors, the cameras and settings, and the arrays as they are."""

    scene: dict[str, NDArray[np.float32]]
    cameras: list[Camera]
    settings: dict[str, Any]
    arrays: Arrays
    outputs: tuple[str, ...]

    def image(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The planes of an image [C, H, W, X] by their names, and alpha."""
        image = self.arrays[f"{prefix}_image"]
        planes = {"alpha": self.arrays[f"{prefix}_alpha"][..., 0]}
        depths = [name for name in self.outputs if name in DEPTHS.values()]
        if "color" in self.outputs:
            planes["color"] = image[..., : image.shape[-1] - len(depths)]
        if depths:
            planes[depths[0]] = image[..., -1]
        if "normals" in self.outputs:
            planes["normals"] = self.arrays[f"{prefix}_normals"]
        return planes

    def gradients(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Expected gradients by our names."""
        names = {**SCENE, **LENSES, "sh" if "sh" in self.scene else "colors": "colors"}
        found = {ours: f"{prefix}_{theirs}" for ours, theirs in names.items()}
        gradients = {ours: self.arrays[theirs] for ours, theirs in found.items() if theirs in self.arrays}
        if f"{prefix}_Ks" in self.arrays:
            k = self.arrays[f"{prefix}_Ks"]
            gradients["camera_intrinsics"] = np.stack([k[:, 0, 0], k[:, 1, 1], k[:, 0, 2], k[:, 1, 2]], -1)
        return gradients


def _all_files(folder: Path | None) -> list[Path]:
    return sorted(folder.glob("s[0-9][0-9]_*.npz")) if folder is not None and folder.is_dir() else []


def files(folder: Path | None) -> list[Path]:
    """The cases of sensors."""
    return [path for path in _all_files(folder) if not settings_of(path).get("two")]


def surfel_files(folder: Path | None) -> list[Path]:
    """The cases of 2D Gaussians."""
    return [path for path in _all_files(folder) if settings_of(path).get("two")]


def settings_of(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        settings: dict[str, Any] = json.loads(str(archive["settings_json"]))
        return settings


def lens_of(arrays: Arrays, settings: Mapping[str, Any], camera: int, prefix: str = "in_") -> SensorLens:
    """The lens of one camera."""
    if settings["camera_model"] == "lidar":
        return SpinningLidar(
            row_elevations=arrays[f"{prefix}lidar_elevations"],
            column_azimuths=arrays[f"{prefix}lidar_azimuths"],
            row_azimuth_offsets=arrays[f"{prefix}lidar_offsets"],
            direction=DIRECTIONS[settings["lidar"]["direction"]],
        )
    k = arrays[f"{prefix}Ks"][camera].astype(np.float64)
    focal = {"fx": k[0, 0], "fy": k[1, 1], "cx": k[0, 2], "cy": k[1, 2]}
    domain = settings.get("lens_domain", "gsplat")

    def row(name: str) -> tuple[float, ...]:
        value = arrays.get(prefix + name)
        return () if value is None else tuple(float(v) for v in value[camera])

    model = settings["camera_model"]
    if model == "ortho":
        return OrthographicLens(**focal)
    if model == "fisheye":
        return FisheyeLens(**focal, radial=row("radial_coeffs"), domain=domain)
    if model == "ftheta":
        return FThetaLens(
            # Calibrations count the centre of the first pixel as 0.
            cx=focal["cx"] + 0.5,
            cy=focal["cy"] + 0.5,
            max_angle=settings["ftheta"]["max_angle"],
            reference=REFERENCES[settings["ftheta"]["reference"]],
            angle_to_pixel_distance=arrays[f"{prefix}ftheta_forward"].tolist(),
            pixel_distance_to_angle=arrays[f"{prefix}ftheta_backward"].tolist(),
            linear=arrays[f"{prefix}ftheta_cde"].tolist(),
            domain=domain,
        )
    return PinholeLens(
        **focal,
        radial=row("radial_coeffs"),
        tangential=row("tangential_coeffs"),
        thin_prism=row("thin_prism_coeffs"),
        domain=domain,
    )


def glass_of(arrays: Arrays) -> Windshield | None:
    """The windshield, if there is one."""
    if "in_windshield_h" not in arrays:
        return None
    horizontal, vertical = (arrays[f"in_windshield_{axis}"].tolist() for axis in ("h", "v"))
    back = {}
    if "in_windshield_h_inv" in arrays:
        back["horizontal_inverse"], back["vertical_inverse"] = (
            arrays[f"in_windshield_{axis}_inv"].tolist() for axis in ("h", "v")
        )
    return Windshield(horizontal=horizontal, vertical=vertical, **back)


def load(path: Path) -> SensorFile:
    """Reads one file."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    given = json.loads(str(arrays.pop("settings_json")))
    cameras = []
    for index, view in enumerate(arrays["in_viewmats"].astype(np.float64)):
        end = {}
        if given["rolling_shutter"] != "global":
            last = arrays["in_viewmats_rs"][index].astype(np.float64)
            end = {"end_rotation": last[:3, :3], "end_translation": last[:3, 3]}
        cameras.append(
            Camera.sensor(
                lens_of(arrays, given, index),
                view[:3, :3],
                view[:3, 3],
                given["width"],
                given["height"],
                shutter=given["rolling_shutter"],
                row_time=given["row_time"],
                windshield=glass_of(arrays),
                **end,
            )
        )
    scene = {name: arrays[f"in_{name}"] for name in SCENE}
    none = np.zeros((len(scene["means"]), 1), np.float32)
    scene["colors" if given["sh_degree"] is None else "sh"] = arrays.get("in_colors", none)
    settings = {name: given[name] for name in ("near", "far", "eps2d", "radius_clip", "sh_degree")}
    settings |= {"unscented": UnscentedTransform(**given["ut"]), "tile_bounds": "gsplat"}
    settings["depth_order"] = "z" if given["global_z_order"] else "distance"
    settings |= {"tile_size": given["tile_size"], "response": "ray" if given["with_eval3d"] else "picture"}
    mode = given["render_mode"]
    outputs = ["alpha", *(["color"] if mode.startswith("RGB") else [])]
    outputs += [name for ending, name in DEPTHS.items() if mode.replace("-", "+").split("+")[-1] == ending]
    outputs += ["normals"] if given["return_normals"] else []
    return SensorFile(scene, cameras, settings, arrays, tuple(outputs))
