"""Images, projected Gaussians and every gradient, against autograd through the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians.case import Doubles, GaussianCase
from support.gaussians.cases import gsplat_cases, inria_cases, random_of, upstream_of
from support.gaussians.reference_runs import IMAGES, Reference, ReferenceScene
from support.gaussians.runs import OUTPUTS, run

CASES = {case.name: case for case in [*gsplat_cases(), *inria_cases()]}
LOSSES = {"color": ("color",), "usual": ("color", "alpha", "depth"), "all": IMAGES}
PROJECTED = ("radii", "means2d", "depths", "conics", "projected_opacities")
COMPARED = (*IMAGES, "contributors", *PROJECTED)


def along_the_group(case: GaussianCase, gradients: Doubles) -> Doubles:
    """Projects gradients [T, 4, 4] onto rigid motions: [T, 6], shifts and turns; the rest of them has no meaning."""
    generators = np.cross(np.eye(3)[:, None, :], np.eye(3)[None, :, :]).transpose(0, 2, 1)
    found = []
    for piece, gradient in zip(case.slices, np.asarray(gradients, np.float64), strict=True):
        turn, shift = piece.matrix[:3, :3], piece.matrix[:3, 3]
        along = [(gradient[:3, :3] * (g @ turn)).sum() + (gradient[:3, 3] * (g @ shift)).sum() for g in generators]
        found.append([*gradient[:3, 3], *along])
    return np.array(found)


def assert_gradients(case: GaussianCase, actual: dict[str, Doubles], reference: Reference) -> None:
    expected = reference.gradients
    assert set(actual) == set(expected)
    for name, gradient in expected.items():
        found, known = actual[name], gradient
        if name == "transforms":
            assert not found[:, 3].any()
            found, known = along_the_group(case, found), along_the_group(case, known)
        # Some gradients are pure rounding: those of round Gaussians' rotations, and of what is not seen at all.
        noise = 1e-6 * float(np.linalg.norm(expected["means2d_abs"])) if name == "quats" else 1e-7
        assert_relative(f"{case.name} {name}", found, known, 1e-4, noise)


@dataclass(frozen=True)
class Known:
    """A reference's outputs by name; by loss, upstream gradients, 0 at doubtful pixels, and the expected gradients."""

    outputs: dict[str, Doubles]
    losses: dict[str, tuple[dict[str, Doubles], Reference]]


@cache
def references_of(name: str, *losses: str) -> Known:
    scene, found = ReferenceScene(CASES[name]), {}
    forward = scene.forward()
    for loss in losses:
        upstream = forward.masked(upstream_of(CASES[name], LOSSES[loss]))
        found[loss] = upstream, Reference([], scene.reference(upstream).gradients)
    return Known({output: forward.stacked(output) for output in ("stable", "sure", *COMPARED)}, found)


def assert_images(outputs: dict[str, Doubles], known: dict[str, Doubles]) -> None:
    stable, scales = known["stable"], dict.fromkeys(("depth", "expected_depth"), farthest(known))
    assert stable.mean() > 0.98
    for output in IMAGES:
        assert outputs[output].shape == known[output].shape
        assert_image(outputs[output][stable], known[output][stable], 1e-5 * scales.get(output, 1.0))
    np.testing.assert_array_equal(outputs["contributors"][stable], known["contributors"][stable])


def farthest(known: dict[str, Doubles]) -> float:
    """Returns the largest visible depth, the scale of errors of depths."""
    return max(1.0, float(known["depths"].max(initial=0)))


def assert_projected(case: GaussianCase, outputs: dict[str, Doubles], known: dict[str, Doubles]) -> None:
    """Checks that each Gaussian is where the reference sees it."""
    sure, visible = known["sure"], (known["radii"] > 0).all(-1)
    # Gaussians of the faint cases lie about the limit of visibility on purpose.
    assert sure.mean() > (0.8 if case.name in ("faint", "antialiased_tiny") else 0.97)
    np.testing.assert_array_equal(outputs["radii"][sure], known["radii"][sure])
    seen = sure & visible
    found, expected = ({name: values[name][seen] for name in PROJECTED} for values in (outputs, known))
    size = max(case.width, case.height)
    assert_image(found["means2d"], expected["means2d"], 1e-6 * (size + np.abs(expected["means2d"])))
    assert_image(found["depths"], expected["depths"], 1e-6 * farthest(known))
    largest = np.abs(expected["conics"]).max(-1, initial=0, keepdims=True)
    assert_image(found["conics"], expected["conics"], np.broadcast_to(1e-5 * largest, expected["conics"].shape))
    assert_image(found["projected_opacities"], expected["projected_opacities"], 2e-6)
    for output in PROJECTED:
        assert not outputs[output][sure & ~visible].any(), f"{output} of what was culled is not 0"


@pytest.mark.parametrize("loss", ["color", "all"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_references(name: str, loss: str, gaussian_engine: Engine) -> None:
    case, known = CASES[name], references_of(name, "color", "all")
    upstream, reference = known.losses[loss]
    result = run(gaussian_engine, case, outputs=OUTPUTS if loss == "all" else LOSSES[loss], upstream=upstream)
    assert_gradients(case, result.gradients, reference)
    if loss == "all":
        assert_images(result.outputs, known.outputs)
        assert_projected(case, result.outputs, known.outputs)


@pytest.mark.parametrize("name", ["rgb", "three_cameras", "fisheye", "inria_degree_3"])
def test_projected_means_may_have_gradients_of_their_own(name: str, gaussian_engine: Engine) -> None:
    case = CASES[name]
    scene = ReferenceScene(case)
    frames = scene.forward()
    upstream = frames.masked(upstream_of(case))
    extra = random_of(name).standard_normal(frames.stacked("means2d").shape).astype(np.float32)
    result = run(gaussian_engine, case, outputs=LOSSES["usual"], upstream={**upstream, "means2d": extra})
    reference = scene.reference(upstream, extra)
    # The gradient of a projected mean is everything that arrives there, which includes the given gradient.
    visible = (frames.stacked("radii") > 0).all(-1)
    reference.gradients["means2d"] += np.where(visible[..., None], extra, 0)
    assert_gradients(case, result.gradients, reference)


@pytest.mark.parametrize("name", ["rgb", "fisheye", "distorted", "three_cameras", "antialiased"])
def test_gsplat_has_the_same_gradients_but_for_its_convention(name: str, gaussian_engine: Engine) -> None:
    upstream, reference = references_of(name, "usual").losses["usual"]
    result = run(gaussian_engine, CASES[name], outputs=LOSSES["usual"], upstream=upstream, semantics="gsplat")
    assert_gradients(CASES[name], result.gradients, reference)


@pytest.mark.parametrize("name", ["rgb", "degree_3", "twenty_channels", "off_screen", "batch", "inria_tiles"])
def test_touched_gaussians_are_those_that_a_pixel_blended(name: str, gaussian_engine: Engine) -> None:
    case = CASES[name]
    scene = ReferenceScene(case)
    assert scene.forward().stacked("stable").mean() > 0.999
    ones = {"alpha": np.ones((len(case.cameras), case.height, case.width))}
    result = run(gaussian_engine, case, outputs=("alpha",), upstream=ones)
    moved = np.abs(scene.reference(ones).gradients["opacities"]) > 0
    assert result.touched.shape == case.opacities.shape
    np.testing.assert_array_equal(result.touched != 0, moved)
    assert set(np.unique(result.touched)) <= {0, 1}
    for key, gradient in result.gradients.items():
        if key in case.tensors and key != "colors":
            assert not gradient[result.touched == 0].any(), key
