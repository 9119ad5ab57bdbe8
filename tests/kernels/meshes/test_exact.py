"""Distances, costs and gradients of the exact semantics, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from support.backends.mesh_engines import Engine
from support.closeness import assert_image, assert_relative
from support.meshes.case import MeshCase
from support.meshes.cases import exact_cases
from support.meshes.marks import DIRECTION, DISTANCE, GRADIENT, exact, size_of, upstream_of
from support.meshes.obstacles import ANY
from support.meshes.runs import DISTANCES, OUTPUTS, run, world_of

CASES = {case.name: case for case in exact_cases()}
BOTH = ("cost", "distance")
SEVERAL = ["all kinds", "three", "worlds", "limited", "radii"]
SWEPT = ["swept", "swept kinds at most", "swept speed", "swept worlds", "swept still and off"]


def found(name: str) -> MeshCase:
    return CASES[name]


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_reference(name: str, mesh_engine: Engine) -> None:
    case, scene = CASES[name], exact(name, found)
    outputs = run(mesh_engine, case, outputs=OUTPUTS).outputs
    expected = {key: scene.shaped(value) for key, value in scene.nearest.items()}
    expected |= {"cost": scene.shaped(scene.cost), "exhausted": scene.shaped(scene.exhausted)}
    sure, smooth = scene.shaped(scene.sure), scene.shaped(scene.sure & scene.smooth)
    assert sure.mean() > 0.9 and smooth.mean() > 0.8
    tolerance = DISTANCE * size_of(case)
    np.testing.assert_array_equal(outputs["distance"] == np.inf, expected["distance"] == np.inf)
    there = sure & np.isfinite(expected["distance"])
    assert_image(outputs["distance"][there], expected["distance"][there], tolerance)
    largest = float(np.abs(expected["cost"]).max())
    assert_image(outputs["cost"][sure], expected["cost"][sure], tolerance * case.options.weight + 2e-6 * largest)
    for key in ("exhausted", "beyond"):
        np.testing.assert_array_equal(outputs[key][sure], expected[key][sure], err_msg=key)
    np.testing.assert_array_equal(outputs["instance"][smooth], expected["instance"][smooth])
    decided = smooth & (expected["face"] != ANY)
    np.testing.assert_array_equal(outputs["face"][decided], expected["face"][decided])
    direction = DIRECTION * (1 + 2 * (size_of(case) > 100))
    assert_image(outputs["normal"][smooth], expected["normal"][smooth], direction)
    away = np.where(np.isfinite(expected["distance"]), np.abs(expected["distance"]), 0)[smooth]
    assert_image(outputs["closest"][smooth], expected["closest"][smooth], (tolerance + DIRECTION * away)[:, None])


@pytest.mark.parametrize("names", [BOTH, ("cost",), ("distance",)], ids=" and ".join)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_reference(name: str, names: tuple[str, ...], mesh_engine: Engine) -> None:
    case, scene = CASES[name], exact(name, found)
    stable = scene.shaped(scene.sure & scene.smooth)
    upstream = upstream_of(case, stable, BOTH)
    given = {key: upstream[key] for key in names}
    gradients = run(mesh_engine, case, outputs=names, upstream=given).gradients
    tolerance = GRADIENT * max(1.0, size_of(case) / 20 if size_of(case) < 1e3 else 1.0)
    for key, expected in scene.gradients(given).items():
        assert_relative(key, gradients[key], expected, tolerance, 1e-5 * case.options.weight)


@pytest.mark.parametrize("name", [*SEVERAL, *SWEPT, "bowl rays", "open box auto"])
def test_the_gradient_of_the_sum_comes_with_the_costs(name: str, mesh_engine: Engine) -> None:
    case = CASES[name]
    outputs = run(mesh_engine, case, outputs=("cost", "gradient")).outputs
    again = run(mesh_engine, case, upstream={"cost": np.ones(case.shape)}, wanted=("spheres",))
    np.testing.assert_array_equal(outputs["cost"], again.outputs["cost"])
    assert_relative("gradient", outputs["gradient"], again.gradients["spheres"], 1e-6)


@pytest.mark.parametrize("name", [*SEVERAL, *SWEPT, "bowl rays", "open box auto"])
def test_outputs_do_not_depend_on_what_else_is_asked_for(name: str, mesh_engine: Engine) -> None:
    world = world_of(mesh_engine, CASES[name])
    everything = run(mesh_engine, CASES[name], outputs=OUTPUTS, world=world).outputs
    for key in OUTPUTS:
        alone = run(mesh_engine, CASES[name], outputs=(key,), world=world).outputs
        assert set(alone) == {key}
        assert alone[key].shape == everything[key].shape and alone[key].dtype == everything[key].dtype
        off = np.abs(np.nan_to_num(alone[key].astype(np.float64)) - np.nan_to_num(everything[key].astype(np.float64)))
        # Another face may be found if two are equally far.
        rows = off.reshape(*CASES[name].shape, -1).max(-1) > 3 * DISTANCE * size_of(CASES[name])
        scene = exact(name, found)
        assert not (rows & scene.shaped(scene.sure & scene.smooth)).any() or key == "face", key


@pytest.mark.parametrize("name", SEVERAL)
def test_each_instance_can_be_asked_for(name: str, mesh_engine: Engine) -> None:
    case, scene = CASES[name], exact(name, found)
    expected = {key: scene.shaped(value) for key, value in scene.per_instance.items()}
    sure, smooth = scene.shaped(scene.sure), scene.shaped(scene.sure & scene.smooth)
    random = np.random.default_rng(3).standard_normal(expected["distance"].shape)
    upstream = {"distance": np.where(smooth[..., None], random, 0)}
    result = run(mesh_engine, case, outputs=DISTANCES, upstream=upstream, per_instance=True)
    outputs = result.outputs
    there = sure[..., None] & np.isfinite(expected["distance"])
    assert_image(outputs["distance"][there], expected["distance"][there], DISTANCE)
    np.testing.assert_array_equal(outputs["distance"] == np.inf, expected["distance"] == np.inf)
    for key in ("instance", "beyond"):
        np.testing.assert_array_equal(outputs[key][sure], expected[key][sure], err_msg=key)
    assert_image(outputs["normal"][smooth], expected["normal"][smooth], DIRECTION)
    gradients = scene.gradients(upstream, per_instance=True)
    for key in ("spheres", "poses"):
        assert_relative(key, result.gradients[key], gradients[key], GRADIENT, 1e-5)
    # The closest instance is the answer without `per_instance`.
    nearest = run(mesh_engine, case, outputs=DISTANCES).outputs
    closest = outputs["distance"].min(-1)
    there = sure & np.isfinite(closest)
    assert_image(closest[there], nearest["distance"][there], DISTANCE)
