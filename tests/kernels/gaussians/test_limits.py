"""Edge cases: nothing to draw, odd films, Gaussians of any size, crowds, any number of channels."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative, assert_same_bits
from support.gaussians.case import Doubles, GaussianCase
from support.gaussians.cases import Cloud, build, inria, opencv, upstream_of
from support.gaussians.reference_runs import IMAGES, Reference, ReferenceScene
from support.gaussians.runs import OUTPUTS, run, wanted_of

LEVEL = opencv(9, 7, rotation=np.eye(3), translation=np.zeros(3), intrinsics=np.array([8.0, 8.0, 4.5, 3.5]))
SMALL = {"width": 9, "height": 7, "cameras": (LEVEL,)}
CROWD = build("limits", Cloud(count=300, degree=1), background=(0.2, 0.5, 0.7))
both_kinds = pytest.mark.parametrize("semantics", ["exact", "inria_exact"])


def as_inria(case: GaussianCase) -> GaussianCase:
    """The case with Inria's camera and semantics."""
    options = replace(case.options, semantics="inria_exact", near=0.2, pixel_center=0.0)
    return replace(case, cameras=(inria(case.width, case.height),), options=options)


@both_kinds
@pytest.mark.parametrize("count", [0, 10])
def test_nothing_to_see_is_the_background(count: int, semantics: str, gaussian_engine: Engine) -> None:
    case = build("behind", Cloud(count=count, z=(-9.0, -5.0), degree=2), background=(0.2, 0.5, 0.7))
    case = as_inria(case) if semantics == "inria_exact" else case
    upstream = upstream_of(case, IMAGES)
    result = run(gaussian_engine, case, outputs=OUTPUTS, upstream=upstream)
    color = np.broadcast_to(case.background, (40, 48, 3))  # type: ignore[arg-type]
    np.testing.assert_array_equal(result.outputs["color"][0], color)
    assert (result.outputs["transmittance"] == 1).all()
    assert (result.outputs["ids"] == -1).all()
    for name in set(OUTPUTS) - {"color", "transmittance", "ids"}:
        assert not result.outputs[name].any(), name
    sums = upstream["color"].astype(np.float64).sum((0, 1, 2))
    np.testing.assert_allclose(result.gradients.pop("background"), sums, rtol=1e-5, atol=1e-4)
    for name, gradient in result.gradients.items():
        assert not gradient.any(), name
        if name in case.tensors:
            assert gradient.shape == case.tensors[name].shape
    assert not result.touched.any()


@both_kinds
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 17), (33, 16), (65, 5), (16, 32), (257, 1), (1, 70)])
def test_films_of_any_size(size: tuple[int, int], semantics: str, gaussian_engine: Engine) -> None:
    width, height = size
    case = build(f"film {width} {height}", Cloud(count=60), width=width, height=height)
    case = as_inria(case) if semantics == "inria_exact" else case
    case = replace(case, quats=case.quats / np.linalg.norm(case.quats, axis=1, keepdims=True))  # type: ignore[operator]
    scene = ReferenceScene(case)
    frame = scene.forward()
    stable = frame.stacked("stable")
    upstream = frame.masked(upstream_of(case))
    result = run(gaussian_engine, case, outputs=("color", "alpha", "depth"), upstream=upstream)
    assert_image(result.outputs["color"][stable], frame.stacked("color")[stable], 1e-5)
    for name, gradient in scene.reference(upstream).gradients.items():
        assert_relative(name, result.gradients[name], gradient, 1e-4, 1e-6)


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 8, 9, 33, 65])
@pytest.mark.parametrize("kind", ["colors", "sh"])
def test_any_number_of_channels(channels: int, kind: str, gaussian_engine: Engine) -> None:
    degree = 1 if kind == "sh" else None
    three = build("channels", Cloud(degree=degree))
    wide = np.ascontiguousarray(np.tile(getattr(three, kind), 22)[..., :channels])
    upstream = np.zeros((1, 40, 48, channels), np.float32)
    single = np.zeros((1, 40, 48, 3), np.float32)
    single[..., (channels - 1) % 3] = upstream[..., -1] = upstream_of(three)["color"][..., 0]
    many = run(gaussian_engine, replace(three, **{kind: wide}), upstream={"color": upstream})
    few = run(gaussian_engine, three, upstream={"color": single})
    for channel in range(channels):
        assert_image(many.outputs["color"][..., channel], few.outputs["color"][..., channel % 3], 1e-6)
    last = few.gradients.pop(kind)[..., (channels - 1) % 3]
    assert_relative(kind, many.gradients.pop(kind)[..., -1], last, 1e-5)
    for name in ("means", "quats", "scales", "opacities", "camera_pose", "means2d", "means2d_abs"):
        assert_relative(name, many.gradients[name], few.gradients[name], 1e-4)


ODD: dict[str, dict[str, object]] = {
    "no rotation": {"quats": [[0.0, 0.0, 0.0, 0.0]]},
    "tiny quaternion": {"quats": [[1e-15, 0.0, 1e-15, 0.0]]},
    "huge quaternion": {"quats": [[1e15, 0.0, -1e15, 3e14]]},
    "no size": {"scales": [[0.0, 0.0, 0.0]]},
    "flat": {"scales": [[1e-7, 0.5, 0.5]]},
    "needle": {"scales": [[1e-7, 1e-7, 2.0]]},
    "minute": {"scales": [[1e-7] * 3]},
    "huge": {"scales": [[1e4] * 3]},
    "huge and flat": {"scales": [[1e4, 1e-7, 1e4]]},
    "at the camera": {"means": [[0.0, 0.0, 0.0]]},
    "beside the camera": {"means": [[1.0, 0.0, 0.0]]},
    "just before the camera": {"means": [[1e-6, 0.0, 0.0101]]},
    "far away": {"means": [[0.0, 0.0, 1e9]]},
    "far aside": {"means": [[1e8, -1e8, 1.0]]},
    "transparent": {"opacities": [0.0]},
    "opaque": {"opacities": [1.0]},
    "no covariance": {"quats": None, "scales": None, "covariances": [[0.0] * 6]},
    "singular covariance": {"quats": None, "scales": None, "covariances": [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]},
    "indefinite covariance": {"quats": None, "scales": None, "covariances": [[1.0, 5.0, 0.0, 1.0, 0.0, 1.0]]},
}
VIEWS = {
    "pinhole": LEVEL,
    "orthographic": replace(LEVEL, model="orthographic"),
    "fisheye": replace(LEVEL, model="fisheye"),
    "distorted": replace(LEVEL, distortion=(-0.1, 0.02, 0.001, 0.002)),
}


@pytest.mark.parametrize("view", [*VIEWS, "inria"])
@pytest.mark.parametrize("odd", ODD)
def test_odd_gaussians_leave_finite_results(odd: str, view: str, gaussian_engine: Engine) -> None:
    # The odd Gaussian is in front of an ordinary one, which it must not spoil.
    case = build(f"odd {odd}", Cloud(count=1, degree=1), means=[[0.1, 0.0, 2.0]], **SMALL)
    case = replace(case, **{name: None if value is None else np.float32(value) for name, value in ODD[odd].items()})
    if case.covariances is None:
        plain = build("behind the odd one", Cloud(count=1, degree=1, z=(3, 4)), means=[[0.0, 0.0, 3.5]], **SMALL)
        case = replace(
            case, **{name: np.concatenate([case.tensors[name], value]) for name, value in plain.tensors.items()}
        )
    case = as_inria(case) if view == "inria" else replace(case, cameras=(VIEWS[view],))
    for antialiased in (False, True):
        upstream = upstream_of(case, IMAGES)
        result = run(gaussian_engine, case, outputs=OUTPUTS, upstream=upstream, antialiased=antialiased)
        for name, values in {**result.outputs, **result.gradients}.items():
            assert np.isfinite(values).all(), name


@pytest.mark.parametrize("odd", ["flat", "needle", "minute", "no size", "huge", "opaque", "huge quaternion"])
def test_odd_gaussians_look_as_they_should(odd: str, gaussian_engine: Engine) -> None:
    case = build(f"odd {odd}", Cloud(count=1), means=[[0.1, 0.0, 2.0]], **SMALL)
    case = replace(case, **{name: np.float32(value) for name, value in ODD[odd].items()})
    frame = ReferenceScene(case).forward()
    stable = frame.stacked("stable")
    assert stable.mean() > 0.9
    assert frame.stacked("alpha").max() > 0.01
    outputs = run(gaussian_engine, case, outputs=("color", "alpha")).outputs
    for name in outputs:
        assert_image(outputs[name][stable], frame.stacked(name)[stable], 1e-5)


@pytest.mark.parametrize(
    ("depth", "semantics", "seen"), [(0.5, "exact", True), (0.5, "inria_exact", False), (8.0, "exact", True)]
)
def test_limits_of_depth_belong_to_what_is_seen_but_for_inrias(
    depth: float, semantics: str, seen: bool, gaussian_engine: Engine
) -> None:
    case = build(
        "near", Cloud(count=1), means=[[0.0, 0.0, depth]], scales=[[0.1 * depth] * 3], near=0.5, far=8.0, **SMALL
    )
    if semantics == "inria_exact":
        level = replace(inria(9, 7), view=np.eye(4), projection=np.diag([2.0, 2.0, 1.0, 0.0]), position=np.zeros(3))
        level.projection[2, 3] = 1
        options = replace(case.options, semantics=semantics, pixel_center=0.0)
        case = replace(case, cameras=(level,), options=options, quats=np.float32([[1, 0, 0, 0]]))
    radii = run(gaussian_engine, case, outputs=("radii",)).outputs["radii"]
    assert (radii > 0).all() == seen
    beyond = np.nextafter(np.float32(depth), np.float32(np.inf if depth > 1 else 0))
    outside = replace(case, means=np.float32([[0.0, 0.0, beyond]]))
    assert not run(gaussian_engine, outside, outputs=("radii",)).outputs["radii"].any()


@functools.cache
def deep() -> tuple[GaussianCase, dict[str, Doubles], Reference]:
    """Returns thousands of Gaussians in a tile, upstream gradients, and the reference's frames and gradients."""
    cloud = Cloud(count=5000, slope=0.4, scales=(0.02, 0.6), opacities=(0.005, 0.05), degree=0)
    case = build("deep", cloud, width=21, height=18)
    scene = ReferenceScene(case)
    upstream = scene.forward().masked(upstream_of(case))
    return case, upstream, scene.reference(upstream)


def test_more_gaussians_than_a_tile_takes_at_once(gaussian_engine: Engine) -> None:
    case, upstream, reference = deep()
    stable = reference.stacked("stable")
    assert reference.stacked("contributors").max() > 300
    result = run(gaussian_engine, case, outputs=("color", "alpha", "depth"), upstream=upstream)
    assert_image(result.outputs["color"][stable], reference.stacked("color")[stable], 1e-5)
    for name, gradient in reference.gradients.items():
        assert_relative(name, result.gradients[name], gradient, 1e-4)


def test_outputs_do_not_depend_on_what_else_is_asked_for(gaussian_engine: Engine) -> None:
    everything = run(gaussian_engine, CROWD, outputs=OUTPUTS).outputs
    for name in OUTPUTS:
        alone = run(gaussian_engine, CROWD, outputs=(name,)).outputs
        assert set(alone) == {name}
        assert_same_bits(everything, alone)


def test_gradients_do_not_depend_on_what_else_is_wanted(gaussian_engine: Engine) -> None:
    upstream = upstream_of(CROWD)
    outputs = ("color", "alpha", "depth")
    everything = run(gaussian_engine, CROWD, outputs=outputs, upstream=upstream)
    for name in wanted_of(CROWD):
        alone = run(gaussian_engine, CROWD, outputs=outputs, upstream=upstream, wanted=(name,))
        assert set(alone.gradients) == {key for key in everything.gradients if key == name or f"{key[:6]}s" == name}
        for key, gradient in alone.gradients.items():
            assert_relative(key, gradient, everything.gradients[key], 0 if gaussian_engine.repeatable else 1e-5)
        np.testing.assert_array_equal(alone.touched, everything.touched)  # type: ignore[arg-type]


def test_shapes_and_types_are_those_of_the_contract(gaussian_engine: Engine) -> None:
    case = replace(CROWD, cameras=CROWD.cameras * 2)
    outputs = run(gaussian_engine, case, outputs=OUTPUTS).outputs
    shapes = {name: (value.shape, value.dtype.name) for name, value in outputs.items()}
    image, each = (2, 40, 48), (2, 300)
    assert shapes == {
        **{name: (image, "float32") for name in IMAGES},
        "color": ((*image, 3), "float32"),
        "contributors": (image, "int32"),
        "ids": (image, "int32"),
        "radii": ((*each, 2), "int32"),
        "means2d": ((*each, 2), "float32"),
        "depths": (each, "float32"),
        "conics": ((*each, 3), "float32"),
        "projected_opacities": (each, "float32"),
    }
