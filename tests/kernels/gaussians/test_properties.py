"""Results of any valid input are finite and keep the promises of their kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.backends.gaussian_engines import Engine
from support.closeness import assert_image
from support.drawn import common, numbers, powers
from support.gaussians.case import GaussianCase, Options
from support.gaussians.cases import Cloud, build, inria, opencv, random_of, upstream_of
from support.gaussians.reference_runs import IMAGES
from support.gaussians.rotation import turned
from support.gaussians.runs import OUTPUTS, run

BLANK = build("blank", Cloud(count=0, degree=1), width=9, height=7)
few = settings(common, max_examples=30)


@st.composite
def gaussians(draw: st.DrawFn) -> list[list[float]]:
    """A mean, quaternion, scales and opacity: often on the axis, at the camera, flat, or with a quaternion of 0."""
    size = draw(powers(1e-3, 1e4))
    # Most means are in front of a camera that looks along +z.
    x, y, z = draw(numbers), draw(numbers), draw(st.sampled_from([1.0, 1.0, 1.0, 0.0, -0.3]))
    mean = draw(st.sampled_from([[0.0, 0.0, 1.0], [x, y, z], [0.3 * x, 0.3 * y, z]]))
    quat = draw(st.sampled_from([[1.0, 0, 0, 0], [0.0] * 4]) | st.lists(numbers, min_size=4, max_size=4))
    scales = draw(st.lists(st.just(0.0) | powers(1e-7, 1e4), min_size=3, max_size=3))
    opacity = draw(st.sampled_from([0.0, 1.0]) | st.floats(0, 1, width=32))
    return [[size * value for value in mean], quat, scales, [opacity]]


@st.composite
def options(draw: st.DrawFn, semantics: tuple[str, ...]) -> Options:
    """Settings anywhere in their ranges."""
    return Options(
        semantics=draw(st.sampled_from(semantics)), antialiased=draw(st.booleans()),
        eps2d=draw(st.sampled_from([0.3, 0.0]) | powers(1e-4, 10)), near=draw(powers(1e-4, 1)),
        far=draw(powers(2, 1e10)), radius_clip=draw(st.sampled_from([0.0, 2.0])),
        alpha_min=draw(st.just(1 / 255) | powers(1e-5, 0.5)), alpha_max=draw(st.floats(0.6, 0.9999)),
        transmittance_min=draw(st.sampled_from([0.0, 1e-4, 0.3])), scale_modifier=draw(powers(1e-2, 1e2)),
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, semantics: tuple[str, ...]) -> GaussianCase:
    """Up to six Gaussians in front of an arbitrary camera."""
    rows = draw(st.lists(gaussians(), max_size=6))
    columns = [np.array([row[k] for row in rows], np.float32).reshape(len(rows), n) for k, n in enumerate((3, 4, 3, 1))]
    chosen = draw(options(semantics))
    if chosen.inria:
        camera, chosen = inria(9, 7, slope=draw(powers(0.05, 5))), replace(chosen, pixel_center=0.0)
    else:
        model = draw(st.sampled_from(["pinhole", "orthographic", "fisheye"]))
        focal = draw(powers(1, 30) | powers(1e-2, 1e3))
        turn = turned(0.0, draw(st.sampled_from([0.0, 0.1, 3.1415927])), draw(numbers) * 3)
        shift = np.array(draw(st.sampled_from([[0.0] * 3, [0.1, -0.2, 0.3], [0.0, 0.0, 20.0]])))
        centre = [draw(numbers) * 6 + 4.5, draw(numbers) * 5 + 3.5]
        intrinsics = np.array([focal, focal * draw(powers(0.2, 5)), *centre])
        bend = draw(st.sampled_from([(), (-0.3, 0.02, 0.0, 0.0), (0.3, -0.1, 0.002, 0.003, 0.02, 0.42, -0.05, 0.01)]))
        camera = opencv(9, 7, rotation=turn, translation=shift, model=model, intrinsics=intrinsics)
        camera = replace(camera, distortion=bend if model == "pinhole" else ())
    return replace(
        BLANK, means=columns[0], quats=columns[1], scales=columns[2], opacities=columns[3][:, 0],
        sh=random_of("sh").standard_normal((len(rows), 4, 3)).astype(np.float32),
        background=np.array(draw(st.lists(numbers, min_size=3, max_size=3)), np.float32), cameras=(camera,),
        options=chosen,
    )  # fmt: skip


def check(engine: Engine, case: GaussianCase) -> None:
    result = run(engine, case, outputs=OUTPUTS, upstream=upstream_of(case, IMAGES))
    for name, values in {**result.outputs, **result.gradients}.items():
        assert np.isfinite(values).all(), name
    alpha, transmittance = result.outputs["alpha"], result.outputs["transmittance"]
    assert alpha.min() >= 0 and alpha.max() <= 1
    assert_image(transmittance, 1 - alpha, 1e-6)
    assert transmittance.min() >= min(case.options.transmittance_min, 1) * (1 - 1e-5)
    contributors = result.outputs["contributors"]
    assert contributors.min() >= 0 and contributors.max() <= case.count
    assert (result.outputs["radii"] >= 0).all()
    assert (alpha[contributors == 0] == 0).all()
    # The transmittance, the rest of 1, has the rounding error of 1.
    assert (alpha[contributors > 0] >= case.options.alpha_min * (1 - 1e-4) - 2e-7).all()
    culled = (result.outputs["radii"] == 0).all(-1)
    for name in ("means2d", "depths", "conics", "projected_opacities"):
        assert not result.outputs[name][culled].any(), name
    assert set(np.unique(result.touched)) <= {0, 1}


@few
@given(case=cases(("exact", "gsplat")))
def test_results_are_finite_for_every_valid_input(case: GaussianCase, gaussian_engine: Engine) -> None:
    check(gaussian_engine, case)


@few
@given(case=cases(("inria_depth", "inria_exact")))
def test_inria_is_finite_for_every_valid_input(case: GaussianCase, gaussian_engine: Engine) -> None:
    check(gaussian_engine, case)
