"""Results of any valid input are finite and keep the promises of their kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.backends.engines import Engine
from support.drawn import common, numbers, powers
from support.spheres.case import SphereCase
from support.spheres.cases import Cloud, build
from support.spheres.runs import Semantics, run, wanted_of

BLANK = build("blank", Cloud(count=0), width=9, height=7)
OUTPUTS = ("color", "alpha", "depth", "hits", "weights", "sphere_ids", "info")


@st.composite
def spheres(draw: st.DrawFn) -> tuple[list[float], list[float], float, float]:
    """A position, a colour, a radius, an opacity; many positions on the axis, where rays meet centres."""
    size = draw(powers(1e-3, 1e4))
    position = draw(st.sampled_from([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]) | st.lists(numbers, min_size=3, max_size=3))
    color = draw(st.lists(numbers, min_size=3, max_size=3))
    return [size * value for value in position], color, draw(powers(2e-6, 1e4)), draw(st.floats(0, 1, width=32))


@st.composite
def cases(draw: st.DrawFn) -> SphereCase:
    """Up to six spheres in front of an arbitrary camera."""
    rows = draw(st.lists(spheres(), max_size=6))
    orthogonal = draw(st.booleans())
    eye = [draw(powers(1e-3, 1e2)) * draw(st.sampled_from([-1, 0, 1])) for _ in range(3)]
    turn = draw(st.lists(st.sampled_from([0.0, 0.3, 1.5707964, -3.1415927]) | numbers, min_size=3, max_size=3))
    focal = 0.0 if orthogonal else draw(powers(1e-3, 10))
    shift = draw(st.lists(st.integers(-4, 4), min_size=2, max_size=2))
    nearest = draw(powers(11, 50)) if draw(st.booleans()) else 0.0
    return replace(
        BLANK, positions=np.array([row[0] for row in rows], np.float32).reshape(-1, 3),
        colors=np.array([row[1] for row in rows], np.float32).reshape(-1, 3),
        radii=np.array([row[2] for row in rows], np.float32),
        opacities=np.array([row[3] for row in rows], np.float32) if draw(st.booleans()) else None,
        camera=np.array([*eye, *turn, focal, draw(powers(1e-2, 1e2)), *shift], np.float32), orthogonal=orthogonal,
        right_handed=draw(st.booleans()), first_r_then_t=draw(st.booleans()), gamma=draw(powers(1.1e-5, 1)),
        min_depth=nearest, max_depth=draw(powers(60, 1e5)),
        background=np.array(draw(st.lists(numbers, min_size=3, max_size=3)), np.float32),
        background_depth=draw(powers(1e-6, 0.99)), allowed_difference=draw(st.sampled_from([0.0, 0.01, 0.5])),
        max_hits=draw(st.sampled_from([0, 1, 3])), n_track=draw(st.sampled_from([1, 3])),
        output_gradient=np.random.default_rng(0).standard_normal((7, 9, 3)).astype(np.float32),
    )  # fmt: skip


def check(engine: Engine, case: SphereCase, semantics: Semantics) -> None:
    wanted = wanted_of(case) if semantics == "compat" else (*wanted_of(case), "background", "gamma")
    result = run(engine, case, semantics, outputs=OUTPUTS, wanted=wanted)
    outputs = result.outputs
    for name in ("color", "alpha", "depth", "weights"):
        assert np.isfinite(outputs[name]).all(), name
    for name, gradient in result.gradients.items():
        assert np.isfinite(gradient).all(), name
    assert outputs["alpha"].min() >= -1e-6 and outputs["alpha"].max() <= 1 + 1e-6
    assert outputs["weights"].min() >= 0 and outputs["weights"].max() <= 1 + 1e-5
    ids = outputs["sphere_ids"]
    assert ids.min() >= -1 and ids.max() < max(len(case.radii), 1)
    np.testing.assert_array_equal((ids >= 0).sum(-1), np.minimum(outputs["hits"], case.n_track))
    np.testing.assert_array_equal(outputs["hits"] > 0, outputs["depth"] != -1)
    np.testing.assert_array_equal(outputs["info"].view(np.int32)[..., 3::2], ids)
    assert result.touched.min(initial=0) >= 0
    if semantics == "exact":
        palette = np.concatenate([case.colors, case.background[None]])
        assert (outputs["color"] >= palette.min(0) - 1e-5).all()
        assert (outputs["color"] <= palette.max(0) + 1e-5).all()
        if case.max_hits:
            assert outputs["hits"].max() <= case.max_hits


@common
@given(case=cases())
def test_exact_is_finite_for_every_valid_input(case: SphereCase, engine: Engine) -> None:
    check(engine, case, "exact")


@common
@given(case=cases())
def test_compat_is_finite_for_every_valid_input(case: SphereCase, engine: Engine) -> None:
    check(engine, case, "compat")
