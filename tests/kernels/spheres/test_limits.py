"""Edge cases: nothing to draw, limits per pixel, odd films, early stops, any number of channels and tracked spheres."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from support.backends.engines import Engine
from support.closeness import assert_image, assert_of_maximum, assert_relative
from support.spheres.cases import IDENTITY, POSE, Cloud, build
from support.spheres.exact_runs import ExactScene
from support.spheres.runs import SPHERE_INPUTS, Semantics, camera_of, run, wanted_of

ALL_OUTPUTS = ("color", "alpha", "depth", "info", "sphere_ids", "weights", "hits")
CROWD = build("limits", Cloud(count=300, half_width=1.0, radii=(0.3, 0.8)), camera=POSE, gamma=0.05)
both_semantics = pytest.mark.parametrize("semantics", get_args(Semantics))


@both_semantics
@pytest.mark.parametrize("count", [0, 10])
def test_nothing_to_see_is_the_background(count: int, semantics: Semantics, engine: Engine) -> None:
    case = build("behind", Cloud(count=count, z=(-9.0, -5.0)), background=(0.2, 0.5, 0.7))
    wanted = (*wanted_of(case), *(("background", "gamma") if semantics == "exact" else ()))
    result = run(engine, case, semantics, outputs=ALL_OUTPUTS, wanted=wanted)
    outputs = result.outputs
    np.testing.assert_array_equal(outputs["color"][0], np.broadcast_to(case.background, (44, 44, 3)))
    for name, empty in (("alpha", 0), ("depth", -1), ("hits", 0), ("sphere_ids", -1), ("weights", 0)):
        assert (outputs[name] == empty).all(), name
    info = outputs["info"][0]
    assert (info.view(np.int32)[..., 3::2] == -1).all()
    assert (info[..., 4::2] == -1).all()
    assert (info[..., 2] == -1).all()
    np.testing.assert_allclose(info[..., 1], 1)
    np.testing.assert_allclose(info[..., 0], 1e-6 / 0.1, rtol=1e-5)
    for name in SPHERE_INPUTS:
        assert result.gradients[name].shape == getattr(case, name).shape
    if semantics == "exact":
        sums = case.output_gradient.astype(np.float64).sum((0, 1))
        np.testing.assert_allclose(result.gradients.pop("background"), sums, rtol=1e-4, atol=1e-3)
    for name, gradient in result.gradients.items():
        assert (gradient == 0).all(), name


@both_semantics
@pytest.mark.parametrize("size", [(2, 2), (3, 17), (33, 16), (65, 5), (16, 32), (1, 1)])
def test_films_of_any_size(size: tuple[int, int], semantics: Semantics, engine: Engine) -> None:
    width, height = size
    camera = (*IDENTITY[:7], 2.0 * width / max(width, height))
    case = build("film", Cloud(count=40), width=width, height=height, camera=camera)
    color = run(engine, case, semantics).outputs["color"][0]
    if semantics == "exact":
        frame = ExactScene(case).frames[0]
        assert_image(color, frame.color.detach(), 1e-5 + frame.rounding.color.numpy()[..., None])
    assert color.shape == (height, width, 3)
    assert np.isfinite(color).all()


@both_semantics
@pytest.mark.parametrize("tracked", [1, 2, 7, 16, 64, 128])
def test_any_number_of_tracked_spheres(tracked: int, semantics: Semantics, engine: Engine) -> None:
    case = replace(CROWD, n_track=tracked)
    outputs = run(engine, case, semantics, outputs=("color", "sphere_ids", "weights", "info", "hits")).outputs
    reference = run(engine, replace(CROWD, n_track=128), semantics, outputs=("color", "sphere_ids", "hits")).outputs
    assert outputs["info"].shape[-1] == 3 + 2 * tracked
    np.testing.assert_array_equal(outputs["color"], reference["color"])
    np.testing.assert_array_equal(outputs["sphere_ids"], reference["sphere_ids"][..., :tracked])
    kept = (outputs["sphere_ids"] >= 0).sum(-1)
    np.testing.assert_array_equal(kept, np.minimum(outputs["hits"], tracked))
    depths = np.where(outputs["sphere_ids"] >= 0, outputs["info"][..., 4::2], np.inf)
    assert (depths[..., 1:] >= depths[..., :-1]).all()


@both_semantics
@pytest.mark.parametrize("channels", [1, 2, 4, 5, 8, 33])
def test_any_number_of_channels(channels: int, semantics: Semantics, engine: Engine) -> None:
    colors = np.tile(CROWD.colors, (1, 22))[:, :channels]
    upstream = np.zeros((44, 44, channels), np.float32)
    upstream[..., -1] = CROWD.output_gradient[..., (channels - 1) % 3]
    single = np.zeros((44, 44, 3), np.float32)
    single[..., (channels - 1) % 3] = CROWD.output_gradient[..., (channels - 1) % 3]
    case = replace(
        CROWD, colors=np.ascontiguousarray(colors), background=np.ones(channels, np.float32), output_gradient=upstream
    )
    wanted = wanted_of(case)
    many = run(engine, case, semantics, wanted=wanted)
    three = run(engine, replace(CROWD, output_gradient=single), semantics, wanted=wanted)
    for channel in range(channels):
        assert_image(many.outputs["color"][..., channel], three.outputs["color"][..., channel % 3], 1e-6)
    assert_relative("colors", many.gradients["colors"][:, -1], three.gradients["colors"][:, (channels - 1) % 3], 1e-5)
    for name in ("positions", "radii", "cameras"):
        assert_relative(name, many.gradients[name], three.gradients[name], 1e-4)


@pytest.mark.parametrize("limit", [1, 2, 5, 64, 1000])
def test_max_hits_is_a_hard_limit_in_exact(limit: int, engine: Engine) -> None:
    outputs = run(engine, CROWD, "exact", outputs=("color", "hits"), max_hits=limit).outputs
    everything = run(engine, CROWD, "exact", outputs=("color", "hits")).outputs
    np.testing.assert_array_equal(outputs["hits"], np.minimum(everything["hits"], limit))
    unaffected = everything["hits"] <= limit
    np.testing.assert_array_equal(outputs["color"][unaffected], everything["color"][unaffected])
    frame = ExactScene(CROWD, max_hits=limit).frames[0]
    calm = ~frame.rounding.undecided.numpy()
    tolerance = 1e-5 + frame.rounding.color.numpy()[..., None]
    assert_image(outputs["color"][0][calm], frame.color.detach().numpy()[calm], tolerance[calm])


@pytest.mark.parametrize("difference", [1e-4, 0.01, 0.1, 0.5])
def test_stopping_early_changes_colours_by_no_more_than_allowed(difference: float, engine: Engine) -> None:
    case = build("early", Cloud(count=600, half_width=0.8, z=(8.0, 18.0), radii=(0.2, 0.6)), camera=POSE, gamma=0.015)
    full = run(engine, case, "exact", outputs=("color", "hits")).outputs
    early = run(engine, case, "exact", outputs=("color", "hits"), allowed_difference=difference).outputs
    assert_image(early["color"], full["color"], difference + 1e-6)
    assert (early["hits"] <= full["hits"]).all()
    if difference >= 0.01:
        assert early["hits"].sum() < full["hits"].sum(), "nothing was left out"


def test_gradients_after_an_early_stop_are_those_of_what_was_rendered(engine: Engine) -> None:
    case = build("early", Cloud(count=600, half_width=0.8, z=(8.0, 18.0), radii=(0.2, 0.6)), camera=POSE, gamma=0.015)
    result = run(engine, case, "exact", wanted=("colors", "background"), allowed_difference=0.1)
    # The image is linear in colours, so the gradient times the colours is the loss.
    loss = float((result.outputs["color"][0].astype(np.float64) * case.output_gradient).sum())
    by_gradient = float((result.gradients["colors"].astype(np.float64) * case.colors).sum())
    by_gradient += float((result.gradients["background"].astype(np.float64) * case.background).sum())
    size = float(np.abs(result.outputs["color"][0] * case.output_gradient).sum())
    assert abs(loss - by_gradient) < 1e-5 * size


@both_semantics
def test_outputs_do_not_depend_on_what_else_is_asked_for(semantics: Semantics, engine: Engine) -> None:
    everything = run(engine, CROWD, semantics, outputs=ALL_OUTPUTS).outputs
    for name in ALL_OUTPUTS:
        alone = run(engine, CROWD, semantics, outputs=(name,)).outputs
        assert set(alone) == {name}
        np.testing.assert_array_equal(alone[name].view(np.int32), everything[name].view(np.int32))


@both_semantics
def test_gradients_do_not_depend_on_what_else_is_wanted(semantics: Semantics, engine: Engine) -> None:
    wanted = wanted_of(CROWD)
    everything = run(engine, CROWD, semantics, wanted=wanted).gradients
    for name in wanted:
        alone = run(engine, CROWD, semantics, wanted=(name,)).gradients
        assert set(alone) == {name}
        assert_of_maximum(name, alone[name], everything[name], 0 if engine.repeatable else 1e-5)


def test_shapes_and_types_are_those_of_the_contract(engine: Engine) -> None:
    cameras = [camera_of(CROWD)] * 2
    outputs = run(engine, CROWD, "exact", outputs=ALL_OUTPUTS, cameras=cameras).outputs
    shapes = {name: (value.shape, value.dtype.name) for name, value in outputs.items()}
    assert shapes == {
        "color": ((2, 44, 44, 3), "float32"),
        "alpha": ((2, 44, 44), "float32"),
        "depth": ((2, 44, 44), "float32"),
        "info": ((2, 44, 44, 13), "float32"),
        "sphere_ids": ((2, 44, 44, 5), "int32"),
        "weights": ((2, 44, 44, 5), "float32"),
        "hits": ((2, 44, 44), "int32"),
    }
