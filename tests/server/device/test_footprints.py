"""Predictions of the device memory that calls take are about right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lumigrad.kernels import _native
from support.backends.footprint import CPU, CUDA, pass_of

PASSES = ("forward", "retained", "backward")
# Count, width, height, views, semantics (of spheres 1 is exact and 2 compat).
SPHERES = [(1_000, 256, 256, 1, 1), (100_000, 512, 512, 1, 1), (100_000, 512, 512, 1, 2), (100_000, 512, 512, 4, 1)]
GAUSSIANS = [
    (10_000, 512, 512, 1, 1),
    (100_000, 512, 512, 1, 1),
    (100_000, 1920, 1080, 1, 1),
    (100_000, 512, 512, 4, 1),
]
# The fifth number says whether the camera moves, with more outputs then; the sixth, how many slices move.
RAYS = [(10_000, 512, 512, 1, 0), (30_000, 256, 256, 4, 1)]
MOVING = [(2_000, 16, 4_000, 1, 1, 2_000), (20_000, 64, 64, 2, 1, 500)]
# The last number says whether there are more outputs.
SURFELS = [(10_000, 512, 512, 1, 0), (30_000, 256, 256, 4, 1)]
# Trajectories, time steps, spheres, whether swept, whether costs. Their backward pass is torch's, whose memory on the
# CPU is not counted.
MESHES = [(100_000, 1, 1, 0, 0), (32, 32, 61, 0, 1), (32, 32, 61, 1, 1)]
ON_CPU = [
    *(("spheres", what, *sizes) for sizes in SPHERES for what in PASSES),
    *(("gaussians", what, *sizes) for sizes in GAUSSIANS for what in PASSES),
    *(("rays", what, *sizes) for sizes in RAYS for what in PASSES),
    *(("rays", "backward", *sizes) for sizes in MOVING),
    *(("surfels", what, *sizes) for sizes in SURFELS for what in PASSES),
    *(("meshes", what, *sizes) for sizes in MESHES for what in PASSES[:2]),
]
ON_CUDA = [
    *(("spheres", what, 4_000, 64, 64, views, kind) for views in (1, 4) for kind in (1, 2) for what in PASSES),
    *(("gaussians", what, 4_000, 64, 64, views, 1) for views in (1, 4) for what in ("forward", "backward")),
    *(("rays", what, 4_000, 64, 64, views, views // 4) for views in (1, 4) for what in PASSES),
    ("rays", "retained", 200, 320, 240, 1, 0),
    ("rays", "backward", 1_000, 32, 32, 1, 1, 100),
]


def named(case: tuple[Any, ...]) -> str:
    return "-".join(map(str, case))


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    """Each thread takes some memory of its own, which the predictions leave out: they are of a few processors."""
    before = _native.thread_count()
    _native.set_thread_count(2)
    yield
    _native.set_thread_count(before)


@pytest.mark.parametrize("case", ON_CPU, ids=named)
def test_predictions_are_within_a_factor_of_two(case: tuple[Any, ...]) -> None:
    one = pass_of(*case)
    predicted, measured = one.predicted(CPU), one.measured()
    assert measured / 2 < predicted < 2 * measured, f"{predicted / measured:.2f}"


@pytest.mark.parametrize("case", ON_CUDA, ids=named)
def test_predictions_for_a_gpu_are_within_a_factor_of_two(case: tuple[Any, ...]) -> None:
    one = pass_of(*case)
    predicted, measured = one.predicted(CUDA), one.measured_on_cuda()
    assert measured / 2 < predicted < 2 * measured, f"{predicted / measured:.2f}"


@pytest.mark.parametrize("views", [1, 3])
def test_a_backward_pass_takes_no_more_for_each_gaussian_than_is_predicted(views: int) -> None:
    # The image has one row of tiles, since sums of several threads for one Gaussian depend on the machine.
    few, many = (pass_of("gaussians", "backward", count, 16, 16, views, 1) for count in (50_000, 150_000))
    measured, predicted = many.measured() - few.measured(), many.predicted(CPU) - few.predicted(CPU)
    assert measured < 1.03 * predicted, f"{measured / predicted:.3f}"
