"""Exact gradients against finite differences of the engine itself: no reference in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from support.backends.gaussian_engines import Engine
from support.gaussians.case import Doubles, GaussianCase, InriaView, OpenCVView, Slice
from support.gaussians.cases import ROTATION, TRANSLATION, Cloud, build, inria, opencv, random_of
from support.gaussians.rotation import turned
from support.gaussians.runs import run

# Gaussians so large that every pixel sees all of them, far from every limit: the picture is smooth.
CLOUD = Cloud(count=5, scales=(1.6, 3.2), opacities=(0.3, 0.7), degree=2)
# Points in the camera's frame, with depths so different that the order stays the same when they are moved.
POINTS = [[0.1, -0.2, 4.2], [-0.3, 0.1, 3.0], [0.2, 0.3, 5.6], [-0.1, -0.3, 3.6], [0.3, 0.0, 4.9]]
MEANS = (np.array(POINTS) - TRANSLATION) @ ROTATION
SIZE = {"width": 19, "height": 23}
VIEWS: dict[str, OpenCVView] = {
    "pinhole": opencv(19, 23, focal=1.5),
    "orthographic": opencv(19, 23, model="orthographic", focal=0.4),
    "fisheye": opencv(19, 23, model="fisheye", focal=1.5),
    "distorted": opencv(19, 23, focal=1.5, distortion=(-0.12, 0.05, 0.004, -0.003, 0.01)),
}
OUTPUTS = ("color", "alpha", "depth", "expected_depth", "inverse_depth")
# Steps relative to the size of a tensor: long enough for float32, short enough for a straight line.
STEPS = {"camera_rotation": 0.01, "camera_intrinsics": 0.02, "camera_translation": 0.02, "sh": 0.1, "background": 0.3}


def smooth(name: str, **changes: object) -> GaussianCase:
    """A case without branches, in front of a coloured background; no colour comes near black."""
    case = build(name, CLOUD, background=(0.3, 0.8, 0.1), **{**SIZE, "means": MEANS, **changes})
    if case.sh is not None:
        case.sh[:, 0] += 2
    return case


def upstream_of(case: GaussianCase, outputs: tuple[str, ...] = OUTPUTS) -> dict[str, Doubles]:
    """Returns upstream gradients of one sign, so that the loss does not cancel."""
    y, x = np.mgrid[: case.height, : case.width]
    waves = {name: 1 + 0.5 * np.sin(0.3 * (k + 1) * x + 0.2 * y) for k, name in enumerate(OUTPUTS)}
    waves["color"] = np.stack([waves["color"], waves["alpha"], waves["depth"]], -1)
    count = len(case.cameras)
    return {name: np.broadcast_to(waves[name], (count, *waves[name].shape)) / x.size for name in outputs}


def loss_of(engine: Engine, case: GaussianCase, upstream: dict[str, Doubles]) -> float:
    outputs = run(engine, case, outputs=OUTPUTS).outputs
    return float(sum((outputs[name].astype(np.float64) * weights).sum() for name, weights in upstream.items()))


def assert_slope(name: str, gradient: Doubles, step: Doubles, loss: Callable[[float], float]) -> None:
    """Compares the derivative along a direction with central differences, with Richardson's correction."""
    slopes = [(loss(width) - loss(-width)) / (2 * width) for width in (1.0, 2.0)]
    measured = (4 * slopes[0] - slopes[1]) / 3
    expected = float((gradient.astype(np.float64) * step).sum())
    size = float(np.linalg.norm(gradient) * np.linalg.norm(step))
    assert size > 0, name
    assert abs(measured - expected) < 2e-3 * size + 1e-6, f"{name}: {expected}, differences {measured}, size {size}"


def changed(case: GaussianCase, name: str, by: Doubles) -> GaussianCase:
    """The case with one of its tensors or all of its cameras moved."""
    if not name.startswith("camera_"):
        return replace(case, **{name: (getattr(case, name) + by).astype(np.float32)})
    field = name.removeprefix("camera_")
    pairs = zip(case.cameras, by, strict=True)
    return replace(case, cameras=tuple(replace(view, **{field: getattr(view, field) + step}) for view, step in pairs))


def check(
    engine: Engine,
    case: GaussianCase,
    wanted: tuple[str, ...],
    names: tuple[str, ...],
    outputs: tuple[str, ...] = OUTPUTS,
) -> None:
    upstream = upstream_of(case, outputs)
    gradients = run(engine, case, outputs=OUTPUTS, upstream=upstream, wanted=wanted).gradients
    for name in names:
        gradient, random = gradients[name], random_of(f"{case.name} {name}")
        value = np.stack([getattr(v, name[7:]) for v in case.cameras]) if name[:7] == "camera_" else getattr(case, name)
        for _ in range(2):
            direction = random.standard_normal(gradient.shape)
            size = STEPS.get(name, 0.02) * float(np.linalg.norm(value)) / float(np.linalg.norm(direction))
            step = direction * size
            assert_slope(
                f"{case.name} {name}",
                gradient,
                step,
                lambda width, name=name, step=step: loss_of(engine, changed(case, name, width * step), upstream),  # type: ignore[misc]
            )


@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_the_scene(view: str, gaussian_engine: Engine) -> None:
    case = smooth(f"smooth {view}", cameras=(VIEWS[view],))
    wanted = ("means", "quats", "scales", "opacities", "sh", "background")
    check(gaussian_engine, case, wanted, wanted)


@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_cameras(view: str, gaussian_engine: Engine) -> None:
    other = replace(VIEWS[view], translation=np.array([-0.1, 0.2, 0.8]))
    case = smooth(f"smooth {view}", cameras=(VIEWS[view], other))
    names = ("camera_rotation", "camera_translation", "camera_intrinsics")
    check(gaussian_engine, case, ("cameras",), names)


def test_gradients_of_covariances(gaussian_engine: Engine) -> None:
    turn = np.linalg.qr(random_of("covariances").standard_normal((5, 3, 3)))[0]
    matrices = turn * random_of("spread").uniform(2, 9, (5, 1, 3)) @ turn.transpose(0, 2, 1)
    rows, columns = np.triu_indices(3)
    shapes = {"quats": None, "scales": None, "covariances": matrices[:, rows, columns]}
    check(gaussian_engine, smooth("smooth covariances", **shapes), ("covariances",), ("covariances",))


@pytest.mark.parametrize("per_view", [False, True])
def test_gradients_of_colors(per_view: bool, gaussian_engine: Engine) -> None:
    views = (VIEWS["pinhole"], VIEWS["fisheye"])
    shape = (2, 5, 3) if per_view else (5, 3)
    case = smooth("smooth colors", cameras=views, sh=None, colors=random_of("colors").random(shape))
    check(gaussian_engine, case, ("colors",), ("colors",))


def test_gradients_where_opacities_shrink(gaussian_engine: Engine) -> None:
    # The Gaussians are small compared with the coarse pixels; the expected depth would be cut off where they end.
    case = smooth("smooth antialiased", cameras=(opencv(19, 23, focal=0.05),), antialiased=True, alpha_min=1e-6)
    names = ("means", "quats", "scales", "opacities")
    check(gaussian_engine, case, names, names, ("color", "alpha", "depth", "inverse_depth"))


def test_gradients_of_transforms(gaussian_engine: Engine) -> None:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = turned(0.1, -0.2, 0.15), [0.1, 0.05, -0.1]
    case = smooth("smooth slices", slices=(Slice(1, 3, matrix), Slice(3, 5, np.linalg.inv(matrix))))
    upstream = upstream_of(case)
    gradient = run(gaussian_engine, case, outputs=OUTPUTS, upstream=upstream, wanted=("transforms",)).gradients
    generators = np.cross(np.eye(3)[:, None, :], np.eye(3)[None, :, :]).transpose(0, 2, 1)
    for index, piece in enumerate(case.slices):
        for axis in range(6):

            def moved(width: float, axis: int = axis, piece: Slice = piece, index: int = index) -> float:
                matrix, angle = piece.matrix.copy(), 0.02 * width
                if axis < 3:
                    matrix[axis, 3] += angle
                else:
                    g = generators[axis - 3]
                    matrix[:3] = (np.eye(3) + np.sin(angle) * g + (1 - np.cos(angle)) * g @ g) @ matrix[:3]
                slices = tuple(replace(p, matrix=matrix) if i == index else p for i, p in enumerate(case.slices))
                return loss_of(gaussian_engine, replace(case, slices=slices), upstream)

            step = np.zeros((2, 4, 4))
            if axis < 3:
                step[index, axis, 3] = 0.02
            else:
                step[index, :3] = 0.02 * generators[axis - 3] @ piece.matrix[:3]
            assert_slope(f"transform {index} axis {axis}", gradient["transforms"], step, moved)


def test_gradients_of_inria_cameras(gaussian_engine: Engine) -> None:
    settings = {"semantics": "inria_exact", "near": 0.2, "pixel_center": 0.0}
    unit = random_of("unit").standard_normal((5, 4))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    view: InriaView = inria(19, 23, slope=0.35)
    case = smooth("smooth inria", quats=unit, cameras=(view,), **settings)
    names = ("means", "quats", "scales", "opacities", "sh", "background")
    check(gaussian_engine, case, names, names)
    upstream = upstream_of(case)
    gradients = run(gaussian_engine, case, outputs=OUTPUTS, upstream=upstream, wanted=("cameras",)).gradients
    # The last column of the view and the third of the projection do not affect the picture.
    masks = {"view": np.array([[1, 1, 1, 0]] * 4), "projection": np.array([[1, 1, 0, 1]] * 4), "position": np.ones(3)}
    for field, mask in masks.items():
        value = getattr(view, field)
        step = random_of(field).standard_normal(value.shape) * mask * 0.005 * np.abs(value).max()

        def moved(width: float, field: str = field, step: Doubles = step) -> float:
            changed_view = replace(view, **{field: getattr(view, field) + width * step})
            return loss_of(gaussian_engine, replace(case, cameras=(changed_view,)), upstream)

        assert_slope(f"camera_{field}", gradients[f"camera_{field}"], step[None], moved)
        assert not gradients[f"camera_{field}"][0][mask == 0].any()
