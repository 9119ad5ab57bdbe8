"""The operator for real cameras and gsplat's function through a real worker, against cases computed elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Client
from lumigrad.client.compat import gsplat
from lumigrad.client.compat.gsplat import (
    BivariateWindshieldModelParameters,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RollingShutterType,
    UnscentedTransformParameters,
)
from lumigrad.client.torch import render_gaussians
from support.closeness import assert_image, assert_relative
from support.gaussians import sensor_oracle
from support.gaussians.sensor_arguments import leaf, lidar_parameters, operator_arguments, pose6
from support.spheres import oracle

DATA = os.environ.get(oracle.VARIABLE)
FILES = sensor_oracle.files(Path(DATA) / "oracle" / "sensors" if DATA else None)
SHUTTERS = {
    "global": RollingShutterType.GLOBAL,
    **{kind.name.removeprefix("ROLLING_").lower(): kind for kind in list(RollingShutterType)[:4]},
}
POLYNOMIALS = {
    "windshield_h": "horizontal_poly",
    "windshield_v": "vertical_poly",
    "windshield_h_inv": "horizontal_poly_inverse",
    "windshield_v_inv": "vertical_poly_inverse",
}
POSES = {"viewmats": "pose6", "viewmats_rs": "pose6_rs"}
TOLERANCES = {"colors": 5e-4, "opacities": 5e-4, "backgrounds": 5e-4, "means": 1e-3, "quats": 1e-3, "scales": 1e-3}


def arguments_of(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, Any], Any]:
    """gsplat's arguments for a file, the tensors among them by the names in the file, its settings, and its arrays."""
    found = sensor_oracle.load(path)
    arrays, given = found.arrays, sensor_oracle.settings_of(path)
    names = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds")
    names += ("rays", "viewmats_rs", "radial_coeffs", "tangential_coeffs", "thin_prism_coeffs")
    leaves = {name: leaf(arrays[f"in_{name}"]) for name in names if f"in_{name}" in arrays}
    none = torch.zeros(len(found.scene["means"]), 1)
    arguments: dict[str, Any] = {"colors": none, **leaves, "width": given["width"], "height": given["height"]}
    if given["rolling_shutter"] == "global":
        for each in (leaves, arguments):
            each.pop("viewmats_rs", None)
    if "in_ftheta_forward" in arrays:
        fields = ("ftheta_forward", "ftheta_backward", "ftheta_cde")
        leaves |= {name: leaf(arrays[f"in_{name}"]) for name in fields}
        arguments["ftheta_coeffs"] = FThetaCameraDistortionParameters(
            FThetaPolynomialType[given["ftheta"]["reference"].upper()],
            leaves["ftheta_backward"],
            leaves["ftheta_forward"],
            given["ftheta"]["max_angle"],
            leaves["ftheta_cde"],
        )
    if "in_lidar_elevations" in arrays:
        leaves |= {name: leaf(arrays[f"in_{name}"]) for name in ("lidar_elevations", "lidar_azimuths", "lidar_offsets")}
        arguments |= {"Ks": None, "width": 1, "height": 1}
        arguments["lidar_coeffs"] = lidar_parameters(leaves)
    if "in_windshield_h" in arrays:
        glass = BivariateWindshieldModelParameters()
        for name, field in POLYNOMIALS.items():
            if f"in_{name}" in arrays:
                leaves[name] = leaf(arrays[f"in_{name}"])
                setattr(glass, field, leaves[name])
        arguments["external_distortion_coeffs"] = glass
    arguments |= {
        "with_ut": True,
        "with_eval3d": given["with_eval3d"],
        "camera_model": given["camera_model"],
        "rolling_shutter": SHUTTERS[given["rolling_shutter"]],
        "global_z_order": given["global_z_order"],
        "sh_degree": given["sh_degree"],
        "ut_params": UnscentedTransformParameters(*given["ut"].values()),
        "eps2d": given["eps2d"],
        "radius_clip": given["radius_clip"],
    }
    return arguments, leaves, given, found


def compare(leaves: dict[str, torch.Tensor], arrays: Any, prefix: str) -> None:
    compared = 0
    for name, tensor in leaves.items():
        theirs = f"{prefix}_{POSES.get(name, name)}"
        if theirs not in arrays or tensor.grad is None:
            continue
        expected, actual = arrays[theirs], tensor.grad.numpy().astype(np.float64)
        if name in POSES:
            actual = pose6(tensor.detach().numpy().astype(np.float64), actual)
        if name == "Ks":
            expected, actual = (k[..., (0, 1, 0, 1), (0, 1, 2, 2)] for k in (expected, actual))
        tolerance = TOLERANCES.get(name, 1e-3 if name in POSES else 2e-3)
        assert_relative(f"{prefix} {name}", actual, expected, tolerance, 1e-6)
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_operator_reproduces_cases_computed_elsewhere(path: Path, client: Client) -> None:
    arguments, leaves, given, found = arguments_of(path)
    rules = {"row_time": given["row_time"], "lens_domain": given.get("lens_domain", "gsplat")}
    result = render_gaussians(
        **operator_arguments({**arguments, **rules}),
        near=given["near"],
        far=given["far"],
        tile_bounds="gsplat",
        tile_size=given["tile_size"],
        outputs=found.outputs,
        client=client,
    )
    images = {name: getattr(result, name) for name in found.outputs}
    for name, expected in found.image("exact").items():
        tolerance = (5e-5 if given["with_eval3d"] else 3e-5) * max(1.0, float(np.abs(expected).max()))
        stable = found.arrays["stable"]
        assert_image(images[name].detach().numpy()[stable], expected[stable], tolerance)
    sum((images[name] * torch.tensor(v).float()).sum() for name, v in found.image("v").items()).backward()
    compare(leaves, found.arrays, "exact_grad")


def has_gsplats_rules(path: Path) -> bool:
    """Whether gsplat's function can express a case: its times of rows and domains of lenses follow one rule each."""
    given = sensor_oracle.settings_of(path)
    return given["row_time"] == "staircase" and given.get("lens_domain", "gsplat") == "gsplat"


@pytest.mark.parametrize("path", list(filter(has_gsplats_rules, FILES)), ids=lambda path: path.stem)
def test_gsplats_function_reproduces_cases_computed_elsewhere(path: Path, client: Client) -> None:
    arguments, leaves, given, found = arguments_of(path)
    image, alpha, meta = gsplat.rasterization(
        **arguments,
        near_plane=given["near"],
        far_plane=given["far"],
        tile_size=given["tile_size"],
        render_mode=given["render_mode"],
        return_normals=given["return_normals"],
        packed=False,
        target=client.target,
    )
    stable = found.arrays["stable"]
    expected = found.arrays["exact_image"]
    tolerance = 5e-5 if given["with_eval3d"] else 3e-5
    assert_image(image.detach().numpy()[stable], expected[stable], tolerance * max(1.0, float(np.abs(expected).max())))
    radii = found.arrays["exact_radii"]
    # gsplat's lidars give a Gaussian across the azimuth of half a turn a radius of a whole turn.
    whole = (radii < 1e5).all(-1)
    np.testing.assert_array_equal(meta["radii"].numpy()[whole], radii[whole])
    if given["camera_model"] == "lidar":
        assert meta["tiles_per_gauss"] is None and (meta["width"], meta["height"]) == (72, 12)
    else:
        assert meta["tiles_per_gauss"].sum() == len(meta["flatten_ids"]) > 0
    upstream = torch.tensor(found.arrays["v_image"]).float(), torch.tensor(found.arrays["v_alpha"]).float()
    objective = (image * upstream[0]).sum() + (alpha * upstream[1]).sum()
    if given["return_normals"]:
        normals = meta["normals"]
        expected = found.arrays["exact_normals"]
        assert_image(normals.detach().numpy()[stable], expected[stable], 5e-5)
        objective = objective + (normals * torch.tensor(found.arrays["v_normals"]).float()).sum()
    objective.backward()
    compare(leaves, found.arrays, "compat_grad")


@pytest.mark.skipif(bool(FILES), reason="the files are there")
def test_the_files_are_absent() -> None:
    pytest.skip(oracle.ABSENT)
