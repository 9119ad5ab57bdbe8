"""Lidars: images and every gradient as the reference computes them, on each instruction set."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, SpinningLidar, Windshield, forward
from support import refusals
from support.backends.gaussian_engines import Engine, cpu
from support.closeness import assert_image
from support.gaussians.lidars import ARC, CASES, TABLES, TURN, around, lidar_rays, reference_of_lidar
from support.gaussians.sensor_cases import IMAGES, Known, assert_as_known, known, run
from support.gaussians.sensors import Exposure

ALONG = Settings(response="ray")


@cache
def expected(name: str) -> Known:
    return known(*reference_of_lidar(CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_returns_and_gradients_are_those_of_the_reference(name: str, gaussian_engine: Engine) -> None:
    assert_as_known(CASES[name], gaussian_engine, expected(name), loose=("lidar_",))


def test_gradients_of_tables_and_poses_are_slopes_of_the_loss() -> None:
    settings = {**CASES["moving"].settings, "alpha_min": 1e-7, "transmittance_min": 0.0}
    base = replace(CASES["moving"], settings=settings)
    random = np.random.default_rng(8)
    weights = {"color": torch.rand(base.height, base.width, 3, generator=torch.Generator().manual_seed(1))}
    ways = {
        "row_elevations": np.sort(random.normal(size=14))[::-1],
        "column_azimuths": random.normal(size=90),
        "row_azimuth_offsets": random.normal(size=14),
    }
    shift = random.normal(size=(2, 3))
    step = 1e-3

    def loss(sign: float) -> float:
        tables = {name: getattr(TURN, name) + sign * step * way for name, way in ways.items()}
        start, end = base.start.copy(), np.array(base.end)
        start[:3, 3] += sign * step * shift[0]
        end[:3, 3] += sign * step * shift[1]
        made = run(cpu(), replace(base, lens=replace(TURN, **tables), start=start, end=end), weights)
        return float((made.outputs["color"] * weights["color"].double().numpy()).sum())

    slope = (loss(1.0) - loss(-1.0)) / (2 * step)
    found = run(cpu(), base, weights).gradients
    predicted = sum(
        float((found[name][0] * way).sum())
        for name, way in zip(("lidar_elevations", "lidar_azimuths", "lidar_offsets"), ways.values(), strict=True)
    )
    predicted += float((found["camera_translation"][0] * shift[0]).sum())
    predicted += float((found["camera_translation_end"][0] * shift[1]).sum())
    assert abs(predicted - slope) < 5e-3 * abs(slope), f"{predicted} instead of {slope}"


@pytest.mark.parametrize("bounds", ["conservative", "gsplat"])
@pytest.mark.parametrize("name", ["turn", "jumping", "moving"])
def test_nothing_is_left_out_in_any_direction(name: str, bounds: str, gaussian_engine: Engine) -> None:
    """Many small and long Gaussians; some lie where azimuths jump, and some below the lidar."""
    settings = {**CASES[name].settings, "tile_bounds": bounds}
    many = around(400, seed=9)
    many["scales"] = many["scales"] * torch.tensor([0.2, 0.4, 1.5])
    case = replace(CASES[name], scene=many, settings=settings)
    images = reference_of_lidar(case)[0]
    found = run(gaussian_engine, case, {"alpha": torch.ones(case.height, case.width)})
    stable = images["stable"].numpy()
    assert_image(found.outputs["alpha"][stable], images["alpha"].detach().numpy()[stable], 1e-4)


def test_gsplat_semantics_have_gradients_of_the_scene_alone() -> None:
    case = CASES["moving"]
    upstream = expected("moving")[2]
    found = run(cpu(), replace(case, settings={**case.settings, "semantics": "gsplat"}), upstream).gradients
    for name in ("lidar_elevations", "lidar_azimuths", "lidar_offsets"):
        assert not found[name].any(), name
    assert found["means"].any()


def test_only_gsplats_bounds_cull_what_is_out_of_the_field() -> None:
    """Gaussians within the margin are kept; there is no margin at the beginning of the turn."""
    azimuths = np.array([-2.5, -1.0, -0.5, 0.0, 1.0, 2.5, 0.0, 0.0])
    elevations = np.array([0.0, 0.0, 0.0, -0.1, 0.0, 0.0, 0.6, -0.44])
    level = 5 * np.cos(elevations)
    means = np.stack([level * np.cos(azimuths), level * np.sin(azimuths), 5 * np.sin(elevations)], -1)
    tensors = {name: value[:8] for name, value in around(8).items()} | {"means": torch.tensor(means).float()}
    small = {**tensors, "scales": torch.full((8, 3), 0.01)}
    camera = Camera.sensor(ARC, np.eye(3), np.zeros(3), *ARC.size)
    for bounds, expected in (("conservative", [1] * 8), ("gsplat", [0, 0, 1, 1, 1, 0, 0, 1])):
        made = forward(Gaussians(**small), [camera], replace(ALONG, tile_bounds=bounds), outputs=("radii",))
        assert made.outputs["radii"][0].any(-1).int().tolist() == expected, bounds


def test_a_single_row_sees_what_is_mostly_above_it() -> None:
    single = SpinningLidar(row_elevations=[0.0], column_azimuths=np.linspace(-1.0, 1.0, 40))
    tensors = {name: value[:1] for name, value in around(1).items()}
    tensors |= {"means": torch.tensor([[5.0, 0.0, 1.0]]), "scales": torch.ones(1, 3), "opacities": torch.ones(1)}
    camera = Camera.sensor(single, np.eye(3), np.zeros(3), *single.size)
    alpha = forward(Gaussians(**tensors), [camera], ALONG, outputs=("alpha",)).outputs["alpha"]
    assert float(alpha.max()) == pytest.approx(math.exp(-0.5), rel=1e-2)


def test_the_largest_lidar_sees_in_its_last_column(gaussian_engine: Engine) -> None:
    columns = 65536
    lidar = SpinningLidar(row_elevations=[0.1, 0.0], column_azimuths=np.linspace(-2, 2, columns))
    last = torch.tensor([[5 * math.cos(2), 5 * math.sin(2), 0.25]])
    tensors = {**{name: value[:1] for name, value in around(1).items()}, "means": last}
    # The emulation takes seconds for so many columns.
    others = () if gaussian_engine.name == "emulation" else (replace(ALONG, tile_bounds="gsplat", tile_size=4),)
    for settings in (ALONG, *others):
        camera = Camera.sensor(lidar, np.eye(3), np.zeros(3), *lidar.size)
        alpha = gaussian_engine.forward(Gaussians(**tensors), [camera], settings, outputs=("alpha",))[0]["alpha"]
        assert alpha.shape == (1, 2, columns)
        assert float(alpha[0, 0, -1]) > 0.1
        assert not alpha[0, :, : columns // 2].any()


def test_extreme_lidars_give_finite_results(gaussian_engine: Engine) -> None:
    single = SpinningLidar(row_elevations=[-math.pi / 2], column_azimuths=[0.0])
    upright = SpinningLidar(row_elevations=np.linspace(math.pi / 2, -math.pi / 2, 9), column_azimuths=[0.0, 0.0, 1.0])
    means = torch.tensor([[0.0, 0.0, -3.0], [0.0, 0.0, 0.0], [1e-20, 0.0, 3.0], [-4.0, 0.0, 0.0], [1e8, 0.0, 0.0]])
    tensors = {**around(5), "means": means}
    moving = {"end": CASES["moving"].end, "shutter": "left_to_right"}
    for lidar, motions in ((single, ({}, moving)), (upright, ({}, moving)), (TURN, (moving,))):
        width, height = lidar.size
        for motion in motions:
            case = replace(CASES["arc"], lens=lidar, width=width, height=height, scene=tensors, **motion)
            shape = {name: (3,) if name in ("color", "normals") else () for name in IMAGES}
            upstream = {name: torch.ones(height, width, *last) for name, last in shape.items()}
            made = run(gaussian_engine, case, upstream)
            for key, value in {**made.outputs, **made.gradients}.items():
                assert np.isfinite(value).all(), f"{lidar.size}: {key}"


def test_given_rays_replace_those_of_returns() -> None:
    """Tables have no gradients if rays are given."""
    case = CASES["turn"]
    exposure = Exposure(torch.tensor(case.start))
    tables = {name: torch.tensor(getattr(TURN, theirs)) for name, theirs in TABLES.items()}
    rays = lidar_rays(tables, exposure).float()
    upstream = {"alpha": torch.ones(case.height, case.width)}
    own, given = run(cpu(), case, upstream), run(cpu(), replace(case, rays=rays), upstream)
    assert_image(given.outputs["hit_distance"], own.outputs["hit_distance"], 1e-3)
    assert given.gradients["rays"].any() and not given.gradients["lidar_azimuths"].any()


def test_lidars_that_make_no_sense_are_refused() -> None:
    def refused(argument: str, *words: str, call: Any, **given: Any) -> None:
        refusals.refused(lambda: call(**given), argument, *words)

    table = {"row_elevations": [0.1, 0.0], "column_azimuths": [0.0, 1.0]}

    def lidar(argument: str, *words: str, **changes: Any) -> None:
        refused(argument, *words, call=SpinningLidar, **{**table, **changes})

    lidar("row_elevations", "highest to the lowest", row_elevations=[0.0, 0.1])
    lidar("row_elevations", "1 to 4096", row_elevations=[])
    lidar("row_elevations", "pi / 2", row_elevations=[1.7, 0.0])
    lidar("row_elevations", "1 to 4096", row_elevations=np.zeros(4097))
    lidar("column_azimuths", "1 to 65536", column_azimuths=np.zeros(65537))
    lidar("column_azimuths", "radians", column_azimuths=[0.0, math.nan])
    lidar("column_azimuths", "clockwise", direction="clockwise", column_azimuths=[0.0, 0.5, 1.0])
    lidar("column_azimuths", "angles", column_azimuths="east")
    lidar("row_azimuth_offsets", "2 angles", row_azimuth_offsets=[0.0])
    lidar("direction", "clockwise", direction="up")

    given = {"lens": ARC, "rotation": np.eye(3), "translation": np.zeros(3), "width": 66, "height": 14}
    refused("width", "66", call=Camera.sensor, **{**given, "width": 64})
    ends = {"end_rotation": np.eye(3), "end_translation": np.zeros(3)}
    refused("shutter", "left_to_right", call=Camera.sensor, **given, **ends, shutter="top_to_bottom")
    glass = Windshield(horizontal=(0.0, 1.0, 0.0), vertical=(0.0, 0.0, 1.0))
    refused("windshield", "lidar", call=Camera.sensor, **given, windshield=glass)
    cameras = [Camera.sensor(**given)]
    refused("response", "'ray'", call=forward, gaussians=Gaussians(**around()), cameras=cameras, settings=Settings())
