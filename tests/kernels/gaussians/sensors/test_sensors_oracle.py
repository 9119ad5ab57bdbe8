"""Sensor cases computed in double precision outside the repository, if they are available."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians import sensor_oracle
from support.spheres import oracle

DATA = os.environ.get(oracle.VARIABLE)
FOLDER = Path(DATA) / "oracle" / "sensors" if DATA else None
FILES = sensor_oracle.files(FOLDER)
pytestmark = pytest.mark.skipif(not FILES, reason=oracle.ABSENT)
LENSES = ("pinhole", "opencv", "fisheye", "fisheye_k3", "ftheta", "ftheta_wide", "ftheta_backward", "ortho")
TOLERANCES = {"means": 1e-3, "quats": 1e-3, "scales": 1e-3, "camera_pose": 1e-3, "camera_pose_end": 1e-3}
ON_SCENE = {"colors": 5e-4, "sh": 5e-4, "opacities": 5e-4, "background": 5e-4}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("semantics", ["exact", "gsplat"])
def test_cases_computed_elsewhere_are_reproduced(path: Path, semantics: str, gaussian_engine: Engine) -> None:
    found = sensor_oracle.load(path)
    prefix = {"exact": "exact_grad", "gsplat": "compat_grad"}[semantics]
    gradients = found.gradients(prefix)
    if not gradients:
        pytest.skip("gsplat has no such option")
    scene = Gaussians(**{name: torch.tensor(value) for name, value in found.scene.items()})
    background = torch.tensor(found.arrays["in_backgrounds"]) if "in_backgrounds" in found.arrays else None
    settings = Settings(semantics=semantics, **found.settings)
    given = torch.tensor(found.arrays["in_rays"]) if "in_rays" in found.arrays else None
    on_rays = settings.response == "ray"
    per_gaussian = ("means2d", "conics", "radii", "depths")
    names = (*found.outputs, *per_gaussian)
    outputs, state = gaussian_engine.forward(
        scene, found.cameras, settings, background=background, rays=given, outputs=names, retain=True
    )
    stable = found.arrays["stable"]
    for name, image in found.image("exact").items():
        tolerance = (5e-5 if on_rays else 3e-5) * max(1.0, float(np.abs(image).max()))
        assert_image(outputs[name].numpy()[stable], image[stable], tolerance)
    radii = found.arrays["exact_radii"]
    # Ellipses of gsplat's lidars that cross the azimuth of half a turn are a whole turn wide; ours are not.
    whole = (radii < 1e5).all(-1)
    np.testing.assert_array_equal(outputs["radii"].numpy()[whole], radii[whole])
    seen = found.arrays["exact_visible"].astype(bool) & whole
    for name, tolerance in (("means2d", 5e-5), ("depths", 1e-5), ("conics", 1e-4)):
        values = found.arrays[f"exact_{name}"][seen]
        # Coordinates in a lidar's image reach 6434 units.
        assert_image(outputs[name].numpy()[seen], values, tolerance * max(1.0, float(np.abs(values).max()) / 200))
    upstream = {name: torch.tensor(v).float() for name, v in found.image("v").items()}
    wanted = [*found.scene, "cameras", "lenses", *(["background"] if background is not None else [])]
    wanted += ["rays"] if given is not None else []
    actual = gaussian_engine.backward(state, upstream, wanted)[0]
    for name, gradient in gradients.items():
        if name.endswith("_inverse") and not on_rays:
            assert not gradient.any(), name
            continue
        tolerance = {**TOLERANCES, **ON_SCENE}.get(name, 2e-3)
        # All cameras share one calibration, so its gradients are summed.
        value = actual[name].numpy().reshape(-1, *gradient.shape)[: len(found.cameras)].sum(0)
        assert_relative(f"{semantics} {name}", value, gradient, tolerance, 1e-6)


@pytest.mark.parametrize("name", LENSES)
def test_lenses_see_points_where_they_were_seen_elsewhere(name: str, gaussian_engine: Engine) -> None:
    """The points are Gaussians that are much smaller than pixels."""
    with np.load(FOLDER / "l01_lenses.npz") as archive:
        arrays = {key: archive[key] for key in archive.files}
    given = json.loads(str(arrays["settings_json"]))[name]
    lens = sensor_oracle.lens_of(arrays, given, 0, f"{name}_in_")
    points = torch.tensor(arrays[f"{name}_points"]).float()
    count = len(points)
    scene = Gaussians(
        means=points,
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(count, 4),
        scales=torch.full((count, 3), 1e-6),
        opacities=torch.ones(count),
        colors=torch.zeros(count, 1),
    )
    camera = Camera.sensor(lens, np.eye(3), np.zeros(3), given["width"], given["height"])
    settings = Settings(near=1e-6, depth_order="distance")
    outputs, _ = gaussian_engine.forward(scene, [camera], settings, outputs=("means2d", "radii"))
    shown = outputs["radii"][0].numpy().any(-1)
    expected, valid = arrays[f"{name}_exact_pixels"], arrays[f"{name}_exact_valid"].astype(bool)
    inside = ((expected > 0.5) & (expected < np.array([given["width"], given["height"]]) - 0.5)).all(-1)
    np.testing.assert_array_equal(shown[inside], valid[inside])
    assert (shown & inside).sum() > 5
    assert_image(outputs["means2d"][0].numpy()[shown & inside], expected[shown & inside], 2e-4)
