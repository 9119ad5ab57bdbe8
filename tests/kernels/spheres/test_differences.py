"""Exact gradients against finite differences of the engine itself: no reference in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lumigrad.kernels.spheres import Camera
from support.backends.engines import Engine
from support.gaussians.rotation import turned
from support.spheres.case import SphereCase
from support.spheres.cases import Cloud, build
from support.spheres.runs import camera_of, settings_of

Doubles = NDArray[np.float64]
# Spheres whose outlines and centres (closeness has a cusp there) are off the film: the image is smooth.
SMOOTH = build(
    "smooth", Cloud(count=3), positions=[[2.2, 1.4, 16.0], [-2.1, -1.5, 14.5], [1.9, -2.0, 13.5]],
    radii=[5.8, 5.4, 5.2], opacities=[0.9, 0.8, 0.7], background=(0.3, 0.8, 0.1), background_depth=0.05, gamma=0.3,
    max_depth=25.0, min_depth=3.5, width=19, height=23,
)  # fmt: skip
PERSPECTIVE = (0.05, 0.1, 0.2, 0.99, 0.1, 0.02, -0.12, 1.02, -0.01, 3.0, 0.3, 0.5, -1.0)
ORTHOGONAL = (0.05, 0.1, 0.2, 0.01, -0.02, 0.3, 0.0, 1.3, 0.5, -1.0)
AXIS_ANGLE = (0.05, 0.1, 0.2, 0.01, -0.02, 0.3, 3.0, 0.3)
INTRINSICS = (180.0, 165.0, 9.3, 11.6)
ROTATION = turned(0.02, -0.01, 0.2)


@dataclass(frozen=True)
class Difference:
    """The input that is moved, and the step: long enough for float32, short enough for a straight line."""

    name: str
    step: float


def rendered(engine: Engine, case: SphereCase, cameras: list[Camera], *, retain: bool = False) -> tuple[Tensor, Any]:
    """Returns the colours, and the state if it is retained."""
    outputs, state = engine.forward(
        torch.from_numpy(case.positions), torch.from_numpy(case.colors), torch.from_numpy(case.radii), cameras,
        settings_of(case, "exact"), opacities=None if case.opacities is None else torch.from_numpy(case.opacities),
        background=torch.from_numpy(case.background), retain=retain,
    )  # fmt: skip
    return outputs["color"], state


def loss_of(engine: Engine, case: SphereCase, cameras: list[Camera], upstream: Doubles) -> float:
    return float((rendered(engine, case, cameras)[0].numpy().astype(np.float64) * upstream).sum())


def gradients_of(
    engine: Engine, case: SphereCase, cameras: list[Camera], upstream: Doubles, wanted: tuple[str, ...]
) -> dict[str, Doubles]:
    _, state = rendered(engine, case, cameras, retain=True)
    found, _ = engine.backward(state, {"color": torch.from_numpy(upstream.astype(np.float32))}, wanted)
    return {name: value.numpy().astype(np.float64) for name, value in found.items()}


def smooth_upstream(case: SphereCase, count: int = 1) -> Doubles:
    """Returns upstream gradients of one sign in each channel, so that the loss does not cancel."""
    y, x = np.mgrid[: case.height, : case.width]
    waves = [1 + 0.5 * np.sin(0.3 * (channel + 1) * x + 0.2 * y) for channel in range(3)]
    return np.broadcast_to(np.stack(waves, -1), (count, case.height, case.width, 3)).astype(np.float64) / x.size


def assert_differences(analytic: Doubles, values: Doubles, step: float, loss: Callable[[Doubles], float]) -> None:
    """Compares gradients with central differences of each element, with Richardson's correction."""
    measured = np.zeros(values.shape)
    for at in np.ndindex(values.shape):
        slopes = []
        for width in (step, 2 * step):
            sides = []
            for sign in (1, -1):
                moved = values.copy()
                moved[at] += sign * width
                sides.append(loss(moved))
            slopes.append((sides[0] - sides[1]) / (2 * width))
        measured[at] = (4 * slopes[0] - slopes[1]) / 3
    scale = np.abs(measured).max()
    assert scale > 0
    worst = np.abs(analytic - measured).max() / scale
    assert worst < 2e-3, f"gradient {analytic}, differences {measured}"


@pytest.mark.parametrize(
    "moved",
    [
        Difference("positions", 0.05),
        Difference("colors", 0.2),
        Difference("radii", 0.05),
        Difference("opacities", 0.03),
        Difference("background", 0.2),
    ],
    ids=lambda moved: moved.name,
)
@pytest.mark.parametrize("projection", ["perspective", "orthogonal"])
def test_gradients_of_the_scene(moved: Difference, projection: str, engine: Engine) -> None:
    orthogonal = projection == "orthogonal"
    camera = np.float32(ORTHOGONAL if orthogonal else PERSPECTIVE)
    case = replace(SMOOTH, camera=camera, orthogonal=orthogonal)
    cameras, upstream = [camera_of(case)], smooth_upstream(case)
    analytic = gradients_of(engine, case, cameras, upstream, (moved.name,))[moved.name]

    def loss(values: Doubles) -> float:
        return loss_of(engine, replace(case, **{moved.name: values.astype(np.float32)}), cameras, upstream)

    assert_differences(analytic, getattr(case, moved.name).astype(np.float64), moved.step, loss)


@pytest.mark.parametrize("semitransparent", [True, False])
def test_gradient_of_gamma(semitransparent: bool, engine: Engine) -> None:
    case = replace(SMOOTH, camera=np.float32(PERSPECTIVE), opacities=SMOOTH.opacities if semitransparent else None)
    cameras, upstream = [camera_of(case)], smooth_upstream(case)
    analytic = gradients_of(engine, case, cameras, upstream, ("gamma",))["gamma"]

    def loss(values: Doubles) -> float:
        return loss_of(engine, replace(case, gamma=float(values)), cameras, upstream)

    assert analytic.shape == ()
    assert_differences(analytic, np.asarray(case.gamma), 0.01, loss)


@pytest.mark.parametrize("nearest", [0.0, 3.5], ids=["automatic_near_limit", "fixed_near_limit"])
@pytest.mark.parametrize("parameters", [AXIS_ANGLE, PERSPECTIVE, ORTHOGONAL], ids=["8", "13", "orthogonal"])
def test_gradients_of_pulsar_parameters(parameters: tuple[float, ...], nearest: float, engine: Engine) -> None:
    orthogonal = parameters is ORTHOGONAL
    case = replace(SMOOTH, camera=np.float32(parameters), orthogonal=orthogonal, min_depth=nearest)
    upstream = smooth_upstream(case)
    analytic = gradients_of(engine, case, [camera_of(case)], upstream, ("cameras",))["cameras"][0]
    focal_at = 6 if len(parameters) in (8, 10) else 9
    for index in range(len(parameters)):
        if orthogonal and index == focal_at:
            continue

        def loss(values: Doubles, index: int = index) -> float:
            camera = case.camera.copy()
            camera[index] = np.float32(values)
            return loss_of(engine, case, [camera_of(replace(case, camera=camera))], upstream)

        shift = index > focal_at + 1
        step = 0.5 if shift else 0.01 if index > focal_at else 0.02
        scale = np.abs(analytic).max()
        value = np.asarray(np.float64(case.camera[index]))
        slopes = [(loss(value + width) - loss(value - width)) / (2 * width) for width in (step, 2 * step)]
        measured = (4 * slopes[0] - slopes[1]) / 3
        allowed = 2e-3 * max(abs(measured), 0.02 * float(scale))
        assert abs(analytic[index] - measured) < allowed, f"parameter {index}: {analytic[index]} against {measured}"


@pytest.mark.parametrize("name", ["camera_rotation", "camera_translation", "camera_intrinsics"])
def test_gradients_of_opencv_cameras(name: str, engine: Engine) -> None:
    case, upstream = SMOOTH, smooth_upstream(SMOOTH)
    values = {
        "camera_rotation": ROTATION,
        "camera_translation": np.array([0.2, -0.1, 0.3]),
        "camera_intrinsics": np.array(INTRINSICS),
    }

    def cameras(changed: Doubles) -> list[Camera]:
        now = {**values, name: changed}
        fx, fy, cx, cy = now["camera_intrinsics"].tolist()
        rotation, translation = now["camera_rotation"].tolist(), now["camera_translation"].tolist()
        return [Camera.opencv(fx, fy, cx, cy, rotation, translation, case.width, case.height)]

    analytic = gradients_of(engine, case, cameras(values[name]), upstream, ("cameras",))[name][0]
    if name == "camera_rotation":
        # The entries of a rotation cannot be moved freely: turn it about each axis.
        generators = [np.cross(np.eye(3)[axis], np.eye(3)) for axis in range(3)]
        along = np.array([(analytic * (generator @ values[name])).sum() for generator in generators])

        def turn(angles: Doubles) -> float:
            matrix = values[name]
            for generator, angle in zip(generators, angles, strict=True):
                step = np.eye(3) + np.sin(angle) * generator + (1 - np.cos(angle)) * generator @ generator
                matrix = step @ matrix
            return loss_of(engine, case, cameras(matrix), upstream)

        assert_differences(along, np.zeros(3), 0.01, turn)
        return
    steps = {"camera_translation": 0.05, "camera_intrinsics": 0.5}
    assert_differences(
        analytic, values[name], steps[name], lambda changed: loss_of(engine, case, cameras(changed), upstream)
    )
