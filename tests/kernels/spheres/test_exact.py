"""Exact semantics against float64 autograd: images, every output and every gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.backends.engines import Engine
from support.closeness import assert_image, assert_relative
from support.spheres.case import Floats, SphereCase
from support.spheres.cases import ORTHOGONAL_POSE, POSE, Cloud, build, compat_cases
from support.spheres.exact_reference import ROUNDING, Exact
from support.spheres.exact_runs import ExactScene, Reference
from support.spheres.runs import run

# Cases that the original lacks: principal points between pixels, and spheres on either side of every limit.
OWN = [
    build("principal_between_pixels", camera=(*POSE, 3.4, -2.7)),
    build("orthogonal_between_pixels", camera=(*ORTHOGONAL_POSE, -1.3, 2.6), orthogonal=True),
    build("near_plane", Cloud(count=40, half_width=1.5, z=(4.0, 7.0), radii=(0.1, 1.0)), camera=POSE),
    build("far_plane", Cloud(count=40, z=(14.0, 20.0), radii=(0.4, 1.5)), camera=POSE, max_depth=16.5, gamma=0.02),
    build("quarter_turn", Cloud(half_width=3.0), camera=(13.0, 0.3, 13.0, 0.0, -1.5708, 0.0, 4.0, 2.0)),
    build("two_tracked", Cloud(count=80, half_width=1.2), camera=POSE, gamma=0.3, n_track=2),
    build(
        "nearly_equal_depths",
        Cloud(count=4),
        positions=[[0.0, 0.1, 13.0], [0.0007, 0.1, 13.0004], [0.0, 0.1005, 13.0012], [-0.0003, 0.1, 12.9995]],
        radii=[2.5, 2.5003, 2.4999, 2.5001],
        opacities=[0.99999, 1.0, 0.99998, 1.0],
        gamma=1e-4,
    ),
    build("distant", Cloud(z=(400.0, 600.0), radii=(5.0, 20.0), half_width=80.0), max_depth=900.0),
    build(
        "minute",
        Cloud(z=(0.011, 0.016), radii=(2e-4, 7e-4), half_width=2.2e-3),
        max_depth=0.022,
        camera=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4e-3, 2e-3),
    ),
]
TOO_LARGE = {"many"}
CASES = {case.name: case for case in [*compat_cases(), *OWN] if not case.hits_only and case.name not in TOO_LARGE}
UPSTREAM = ("color", "alpha", "depth")
OUTPUTS = (*UPSTREAM, "hits", "sphere_ids", "weights", "info")


def upstream_of(case: SphereCase, count: int = 1) -> dict[str, Floats]:
    random = np.random.default_rng(11)
    shape = (count, case.height, case.width)
    return {
        "color": random.standard_normal((*shape, case.channels)).astype(np.float32),
        "alpha": random.standard_normal(shape).astype(np.float32),
        "depth": (0.1 * random.standard_normal(shape)).astype(np.float32),
    }


def masked(gradients: dict[str, Floats], mask: NDArray[np.bool_]) -> dict[str, Floats]:
    """Sets gradients to 0 where the mask is false, so that pixels on the brink of a silhouette do not count."""
    return {name: np.where(mask.reshape(mask.shape + (1,) * (g.ndim - 3)), g, 0) for name, g in gradients.items()}


@cache
def scene_of(name: str) -> ExactScene:
    return ExactScene(CASES[name])


@cache
def forward_reference(name: str) -> Reference:
    return scene_of(name).reference()


def largest_gamma_error(case: SphereCase) -> float:
    """Returns the error of an image: exponents reach 1 / gamma, of which float32 keeps seven digits."""
    return 1e-5 if case.gamma >= 1e-3 else 1e-3


@pytest.mark.parametrize("name", CASES)
def test_image_alpha_and_depth_are_the_references(name: str, engine: Engine) -> None:
    case, reference = CASES[name], forward_reference(name)
    outputs = run(engine, case, "exact", outputs=OUTPUTS).outputs
    frame = reference.frames[0]
    rounding = frame.rounding
    color = reference.stacked("color")[0]
    assert_image(outputs["color"][0], color, 1e-5 + rounding.color.numpy()[..., None])
    # Most pixels agree without an allowance for rounding.
    error = np.abs(outputs["color"][0] - color).max(-1)
    assert (error < largest_gamma_error(case)).mean() > 0.99
    assert_image(outputs["alpha"][0], reference.stacked("alpha")[0], 1e-5 + rounding.alpha.numpy())
    decided = ~rounding.undecided.numpy()
    assert decided.mean() > 0.95
    np.testing.assert_array_equal(outputs["hits"][0][decided], reference.stacked("hits")[0][decided])
    tolerance = 1e-6 * case.max_depth + rounding.depth.numpy()
    assert_image(outputs["depth"][0][decided], reference.stacked("depth")[0][decided], tolerance[decided])
    assert_tracked({key: outputs[key][0] for key in ("sphere_ids", "weights", "info")}, frame, case)


def assert_tracked(outputs: dict[str, NDArray[Any]], frame: Exact, case: SphereCase) -> None:
    """Tracked spheres are the closest, with their shares."""
    ids, depths, shares = (value.detach().numpy() for value in frame.tracked(case.n_track + 1))
    gaps = np.where(ids[..., 1:] >= 0, np.diff(depths, axis=-1), np.inf)
    limit = 3 * frame.rounding.depth.numpy()[..., None] + 1e-6 * case.max_depth
    clear = ~frame.rounding.undecided.numpy() & (gaps > limit).all(-1)
    ids, shares = ids[..., :-1], shares[..., :-1]
    np.testing.assert_array_equal(outputs["sphere_ids"][clear], ids[clear])
    alpha_error = frame.rounding.alpha.numpy()[..., None]
    assert_image(outputs["weights"][clear], shares[clear], np.broadcast_to(1e-5 + alpha_error, shares.shape)[clear])
    info = outputs["info"]
    np.testing.assert_array_equal(info.view(np.int32)[..., 3::2][clear], ids[clear])
    near = info[..., 2][clear]
    assert_image(near, frame.farthest.detach().numpy()[clear], 2e-6 * case.max_depth)
    together = info[..., 0] + np.log(info[..., 1])
    expected = (frame.maximum + frame.total.detach().log()).numpy()
    tolerance = 1e-5 + 2 * alpha_error[..., 0] + 1e-6 * np.abs(expected)
    assert_image(together[clear], expected[clear], tolerance[clear])


def nudged(case: SphereCase) -> SphereCase:
    """The case with its geometry moved by one rounding."""
    random = np.random.default_rng(7)
    moved = {
        name: values * (1 + random.choice([-1, 1], values.shape) * 2.0**-24)
        for name, values in (("positions", case.positions), ("radii", case.radii), ("camera", case.camera))
    }
    return replace(case, **moved)  # type: ignore[arg-type]


def rounding_noise(name: str, case: SphereCase, upstream: dict[str, Floats]) -> float:
    """Returns the error of float32 where one sphere has all the weight, so that the true gradient is almost 0.

    A colour's difference to the pixel's is lost to rounding, and the exponent's derivative magnifies what is left.
    """
    per_depth = 1 / (case.gamma * (case.max_depth - max(case.min_depth, 4.0)))
    magnified = {
        "positions": per_depth,
        "radii": per_depth,
        "cameras": per_depth * case.max_depth,
        "opacities": 1 / case.gamma,
        "gamma": 1 / case.gamma**2,
    }
    size = float(np.sqrt(sum((values.astype(np.float64) ** 2).sum() for values in upstream.values())))
    return 4 * ROUNDING * size * magnified.get(name, 1.0)


# Either of two equally close spheres may move the depth, so only the colour has a unique derivative there.
GRADIENTS = [(name, UPSTREAM) for name in CASES if name != "equal_depths"]
GRADIENTS += [(name, ("color",)) for name in ("equal_depths", "quarter_turn", "two_tracked", "far_plane")]


@dataclass(frozen=True)
class Gradients:
    """The gradients of one case.

    Attributes:
        upstream: The gradients of the outputs, zero where a pixel is on the brink of a silhouette.
        wanted: The names that a call asks for.
        expected: The reference's gradients.
        unsure: The reference's gradients of the case moved by one rounding.
    """

    upstream: dict[str, Floats]
    wanted: Sequence[str]
    expected: dict[str, Floats]
    unsure: dict[str, Floats]


@cache
def gradient_references(name: str, outputs: tuple[str, ...]) -> Gradients:
    case = CASES[name]
    depth_limit = 2e-4 if "depth" in outputs else np.inf
    calm = forward_reference(name).calm(largest_gamma_error(case), depth_limit * case.max_depth)
    assert calm.mean() > (0.7 if case.gamma > 1e-3 else 0.5)
    upstream = masked({key: value for key, value in upstream_of(case).items() if key in outputs}, calm)
    reference, unsure = scene_of(name).reference(upstream), ExactScene(nudged(case)).reference(upstream)
    return Gradients(upstream, reference.wanted, reference.gradients, unsure.gradients)


@pytest.mark.parametrize(("name", "outputs"), GRADIENTS)
def test_gradients_are_the_references(name: str, outputs: tuple[str, ...], engine: Engine) -> None:
    case, reference = CASES[name], gradient_references(name, outputs)
    result = run(engine, case, "exact", outputs=outputs, wanted=reference.wanted, output_gradients=reference.upstream)
    for key, gradient in reference.expected.items():
        # One rounding of the scene changes a gradient by more than a ten-thousandth where contributions cancel.
        change = np.linalg.norm(reference.unsure[key] - gradient) / max(float(np.linalg.norm(gradient)), 1e-12)
        noise = rounding_noise(key, case, reference.upstream)
        assert_relative(key, result.gradients[key], gradient, max(1e-4, min(4 * change, 5e-3)), noise)


# The CPU counts in other memory where opacities have gradients. Spheres lie in many tiles, and some cross the bands of
# threads.
@pytest.mark.parametrize("wanted", [("colors",), ("colors", "opacities")])
def test_touched_counts_the_pixels_that_a_sphere_hits(wanted: tuple[str, ...], engine: Engine) -> None:
    case = build("touched", Cloud(count=40), opacities=None, camera=POSE, width=70, height=90, n_track=40)
    result = run(engine, case, "exact", outputs=("sphere_ids",), wanted=wanted)
    ids = result.outputs["sphere_ids"]
    np.testing.assert_array_equal(result.touched, np.bincount(ids[ids >= 0], minlength=len(case.radii)))
    assert result.touched.max() > 100
