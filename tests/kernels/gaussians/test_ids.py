"""The id of a pixel is that of the Gaussian with the largest weight in the references, on each engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import Camera, Gaussians, PinholeLens, Settings, backward, forward
from support.backends.cuda_devices import Device
from support.backends.gaussian_engines import Engine
from support.closeness import assert_same_bits
from support.gaussians import lidars, surfel_cases
from support.gaussians.cases import Cloud, build, gsplat_cases, inria_cases, opencv
from support.gaussians.reference_runs import ReferenceScene
from support.gaussians.runs import run
from support.gaussians.sensor_cases import RAY_CASES, SLICES, SensorCase, reference
from support.gaussians.surfel_cases import SurfelCase, cloud

# If the two largest weights differ by less than this (relative), either may win.
MARGIN = 1e-4
FILM = (
    *("rgb", "overlap", "opaque", "faint", "ties", "odd_size", "radius_clip", "fisheye", "three_cameras", "batch"),
    *("alpha_min", "stop_early", "stop_never", "whole_pixels", "slices", "inria_crowd", "inria_opaque", "one_row"),
)
FILM_CASES = {case.name: case for case in (*gsplat_cases(), *inria_cases()) if case.name in FILM}
# More Gaussians in a tile than a batch holds, in two views.
CROWD = build(
    "crowd of ids",
    Cloud(count=900, scales=(0.02, 0.3)),
    cameras=(opencv(), opencv(rotation=np.eye(3), translation=np.array([0.2, 0.1, 0.4]))),
)
LINED_UP = {
    **{f"{name} on rays": RAY_CASES[name] for name in ("opencv", "orthographic", "rolling up", "tiles", "given")},
    "moving slices": replace(RAY_CASES["rolling"], transforms=SLICES),
    "lidar": lidars.CASES["moving"],
}
SURFELS = {
    "surfels": SurfelCase(cloud(60)),
    "clipped": SurfelCase(cloud(90, seed=8), settings={"radius_clip": 4.0, "near": 2.0, "tile_size": 8}),
}
Ids = NDArray[np.int32]
Expected = tuple[Ids, NDArray[np.bool_]]


def largest(weights: Tensor, order: Tensor, stable: Tensor) -> Expected:
    """Returns the ids [H, W] for weights [H W, N] in order of depth, and the pixels where no rounding decides."""
    values = weights.detach()
    two = torch.cat([values, values.new_zeros(len(values), 1)], -1).topk(2, -1).values
    none = two[:, 0] == 0
    clear = stable.reshape(-1) & (none | (two[:, 1] < (1 - MARGIN) * two[:, 0]))
    ids = torch.where(none, -1, order[values.argmax(-1)])
    return ids.reshape(stable.shape).numpy().astype(np.int32), clear.reshape(stable.shape).numpy()


def assert_ids(found: NDArray[np.generic], expected: Expected) -> None:
    ids, clear = expected
    assert found.dtype == np.int32
    assert found.shape == ids.shape
    assert clear.mean() > 0.75, "most pixels count"
    np.testing.assert_array_equal(found[clear], ids[clear])


@cache
def on_film(name: str) -> Expected:
    frames = ReferenceScene(CROWD if name == CROWD.name else FILM_CASES[name]).forward().frames
    found = [largest(frame.weights, frame.order, frame.stable) for frame in frames]
    return np.stack([ids for ids, _ in found]), np.stack([clear for _, clear in found])


@cache
def along_rays(name: str) -> Expected:
    case = LINED_UP[name]
    images = (lidars.reference_of_lidar if name == "lidar" else reference)(case)[0]
    return largest(images["weights"], images["order"], images["stable"])


@cache
def of_surfels(name: str) -> Expected:
    images = surfel_cases.reference(SURFELS[name])[0]
    return largest(images["weights"], images["order"], images["stable"])


def ray_outputs(engine: Engine, case: SensorCase, *outputs: str) -> dict[str, Ids]:
    rays = None if case.rays is None else case.rays[None]
    made, _ = engine.forward(
        Gaussians(**case.scene), [case.camera()], Settings(**case.settings), transforms=case.transforms, rays=rays,
        outputs=outputs,
    )  # fmt: skip
    return {name: value.numpy() for name, value in made.items()}


@pytest.mark.parametrize("name", FILM_CASES)
def test_ids_on_the_film_are_those_of_the_largest_weights(name: str, gaussian_engine: Engine) -> None:
    assert_ids(run(gaussian_engine, FILM_CASES[name], outputs=("ids",)).outputs["ids"], on_film(name))


@pytest.mark.parametrize("name", LINED_UP)
def test_ids_along_rays_are_those_of_the_largest_weights(name: str, gaussian_engine: Engine) -> None:
    assert_ids(ray_outputs(gaussian_engine, LINED_UP[name], "ids")["ids"][0], along_rays(name))


@pytest.mark.parametrize("name", SURFELS)
def test_ids_of_surfels_are_those_of_the_largest_weights(name: str, gaussian_engine: Engine) -> None:
    outputs = surfel_cases.run(gaussian_engine, SURFELS[name], outputs=("ids",)).outputs
    assert_ids(outputs["ids"][0], of_surfels(name))


@pytest.mark.parametrize("name", ["crowd", "rolling up", "surfels"])
def test_other_outputs_and_ids_are_the_same_together(name: str, gaussian_engine: Engine) -> None:
    """A pixel also has an id exactly where Gaussians were blended."""

    def made(*outputs: str) -> dict[str, NDArray[np.generic]]:
        if name == "crowd":
            return run(gaussian_engine, CROWD, outputs=outputs).outputs
        if name == "surfels":
            return surfel_cases.run(gaussian_engine, SURFELS[name], outputs=outputs).outputs
        return dict(ray_outputs(gaussian_engine, RAY_CASES[name], *outputs))

    images = ("color", "depth", "contributors")
    alone, without, together = made("ids"), made(*images), made(*images, "ids")
    assert_same_bits(together, {**alone, **without})
    np.testing.assert_array_equal(together["ids"] >= 0, together["contributors"] > 0)
    assert (together["ids"] < 0).any() and (together["contributors"] > 1).any()


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("settings", [{"response": "ray"}, {"primitive": "surfel"}])
def test_pixels_without_gaussians_have_none(count: int, settings: dict[str, str], gaussian_engine: Engine) -> None:
    """The scene is empty, or behind the camera."""
    behind = {
        "means": torch.tensor([[0.0, 0.0, -3.0]]).repeat(count, 1),
        "quats": torch.ones(count, 4),
        "scales": torch.full((count, 3), 0.5),
        "opacities": torch.full((count,), 0.9),
        "colors": torch.ones(count, 3),
    }
    size = np.eye(3), np.zeros(3), 33, 25
    camera = Camera.opencv(20.0, 20.0, 16.0, 12.0, *size)
    if "response" in settings:
        camera = Camera.sensor(PinholeLens(fx=20.0, fy=20.0, cx=16.0, cy=12.0), *size)
    outputs, _ = gaussian_engine.forward(Gaussians(**behind), [camera] * 2, Settings(**settings), outputs=("ids",))
    np.testing.assert_array_equal(outputs["ids"].numpy(), np.full((2, 25, 33), -1, np.int32))


@pytest.mark.parametrize("is_listed", [True, False])
def test_crowded_tiles_and_tiles_that_were_not_listed_have_the_same_ids(is_listed: bool, device: Device) -> None:
    if not is_listed:
        device.cuda.session.set_pair_limit(0)
    assert_ids(run(device.engine, CROWD, outputs=("ids",)).outputs["ids"], on_film(CROWD.name))


def test_ids_have_no_gradient() -> None:
    case = SURFELS["surfels"]
    result = forward(Gaussians(**case.scene), [case.camera()], Settings(), outputs=("color", "ids"), retain=True)
    upstream = {"ids": torch.zeros(result.outputs["ids"].shape)}
    with pytest.raises(ArgumentError, match=r"output_gradients.*'ids'"):
        backward(result.state, upstream)
