"""2D Gaussians computed in double precision outside the repository, if they are available."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians import sensor_oracle
from support.spheres import oracle

DATA = os.environ.get(oracle.VARIABLE)
FILES = sensor_oracle.surfel_files(Path(DATA) / "oracle" / "sensors" if DATA else None)
pytestmark = pytest.mark.skipif(not FILES, reason=oracle.ABSENT)
SCENE = ("means", "quats", "scales", "opacities", "colors")
GRADIENTS = {**{name: name for name in SCENE}, "background": "backgrounds", "camera_pose": "pose6"}
TOLERANCES = {"means": 1e-3, "quats": 1e-3, "scales": 1e-3, "camera_pose": 1e-3, "camera_intrinsics": 2e-3}


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[Camera]]:
    """Returns a file's arrays, settings and cameras."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    cameras = []
    height, width = arrays["stable"].shape[1:]
    for view, k in zip(arrays["in_viewmats"].astype(np.float64), arrays["in_Ks"].astype(np.float64), strict=True):
        focal = (k[0, 0], k[1, 1], k[0, 2], k[1, 2])
        cameras.append(Camera.opencv(*focal, view[:3, :3], view[:3, 3], width, height))
    return arrays, json.loads(str(arrays["settings_json"])), cameras


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("semantics", ["exact", "gsplat"])
def test_cases_computed_elsewhere_are_reproduced(path: Path, semantics: str, gaussian_engine: Engine) -> None:
    arrays, given, cameras = load(path)
    with_depth = given["render_mode"] == "RGB+ED"
    settings = Settings(primitive="surfel", semantics=semantics, near=given["near"], radius_clip=given["radius_clip"])
    outputs, state = gaussian_engine.forward(
        Gaussians(**{name: torch.tensor(arrays[f"in_{name}"]) for name in SCENE}),
        cameras,
        settings,
        background=torch.tensor(arrays["in_backgrounds"]),
        outputs=("color", "alpha", "normals", "median_depth", "radii", "means2d", "depths")
        + (("expected_depth", "distortion", "surface_normals") if with_depth else ()),
        retain=True,
    )
    images = {"alpha": "alpha", "normals": "normals", **({"distortion": "distort"} if with_depth else {})}
    expected = {ours: arrays[f"exact_{theirs}"] for ours, theirs in images.items()}
    upstream = {ours: arrays[f"v_{theirs}"] for ours, theirs in images.items()}
    for found, prefix in ((expected, "exact"), (upstream, "v")):
        found["color"] = arrays[f"{prefix}_image"][..., :3]
        if with_depth:
            found["expected_depth"] = arrays[f"{prefix}_image"][..., 3]
    if with_depth:
        expected["median_depth"] = arrays["exact_median"]
    stable = arrays["stable"].astype(bool)
    for name, image in expected.items():
        tolerance = 1e-4 if name == "normals" else 5e-5 * max(1.0, float(np.abs(image).max()))
        assert_image(outputs[name].numpy()[stable], image.reshape(outputs[name].shape)[stable], tolerance)
    np.testing.assert_array_equal(outputs["radii"].numpy(), arrays["exact_radii"])
    seen = arrays["exact_visible"].astype(bool)
    assert_image(outputs["means2d"].numpy()[seen], arrays["exact_means2d"][seen], 5e-5)
    assert_image(outputs["depths"].numpy()[seen], arrays["exact_depths"][seen], 1e-5)
    given_gradients = {
        name: torch.tensor(value.reshape(outputs[name].shape)).float() for name, value in upstream.items()
    }
    gradients = gaussian_engine.backward(state, given_gradients, [*SCENE, "background", "cameras"])[0]
    for name, theirs in GRADIENTS.items():
        tolerance = TOLERANCES.get(name, 5e-4)
        assert_relative(name, gradients[name].numpy(), arrays[f"exact_grad_{theirs}"], tolerance, 1e-6)
    k = arrays["exact_grad_Ks"]
    intrinsics = np.stack([k[:, 0, 0], k[:, 1, 1], k[:, 0, 2], k[:, 1, 2]], -1)
    # gsplat has no gradients of intrinsics.
    intrinsics = intrinsics if semantics == "exact" else np.zeros_like(intrinsics)
    assert_relative("intrinsics", gradients["camera_intrinsics"].numpy(), intrinsics, 2e-3, 1e-6)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_surfaces_have_the_normals_computed_elsewhere(path: Path, gaussian_engine: Engine) -> None:
    arrays, given, cameras = load(path)
    if given["render_mode"] != "RGB+ED":
        pytest.skip("its depth is not the expected one")
    scene = Gaussians(**{name: torch.tensor(arrays[f"in_{name}"]) for name in SCENE})
    settings = Settings(primitive="surfel")
    outputs, _ = gaussian_engine.forward(scene, cameras, settings, outputs=("surface_normals",))
    clear = torch.tensor(arrays["stable"].astype(bool) & (arrays["exact_alpha"][..., 0] > 0.02)).float()
    clear = 1.0 - torch.nn.functional.max_pool2d((1.0 - clear)[:, None], 3, 1, 1)[:, 0]
    inner = clear.numpy() > 0
    assert inner.sum() > 100
    difference = np.abs(outputs["surface_normals"].numpy() - arrays["exact_surf_normals"])[inner]
    # Rounding turns the normals of surfaces that are seen edge-on.
    assert np.quantile(difference, 0.99) < 1e-3
