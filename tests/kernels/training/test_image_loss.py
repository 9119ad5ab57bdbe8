"""Losses of images and their gradients are those of torch in float64, on every machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels import _native
from lumigrad.kernels.training import ImageLoss, image_loss, image_loss_values
from support.backends.training_engines import Engine, cpu
from support.closeness import assert_image, assert_relative
from support.gaussians.cases import random_of
from support.training.losses import LossCase, pair, reference

SSIM_ALONE = {"l1": 0.0, "dssim": 1.0}
VALID = {"padding": "valid"}


def case(name: str, *shape: int, mask: str = "", **options: object) -> LossCase:
    """A case with images of shape [C, H, W, K]; the mask holds "floats", "bytes" or "bools"."""
    image, target = pair(name, shape)  # type: ignore[arg-type]
    weights = torch.from_numpy(random_of(f"mask {name}").random(shape[:3]).astype(np.float32))
    masks = {"floats": weights, "bytes": (weights > 0.6).to(torch.uint8) * 255, "bools": weights > 0.3, "": None}
    if "bytes" in name:
        target = (target * 255).round().to(torch.uint8)
    return LossCase(name, image, target, masks[mask], options)


CASES = [
    case("a pixel", 1, 1, 1, 3),
    case("smaller than the window", 1, 10, 7, 3),
    case("the window", 2, 11, 11, 1),
    case("the window alone", 2, 11, 11, 3, **VALID),
    case("a row", 1, 1, 40, 3),
    case("a column", 2, 40, 1, 2),
    case("odd", 2, 45, 53, 3),
    case("odd, valid", 2, 45, 53, 3, **VALID),
    case("bytes", 1, 30, 34, 3),
    case("bytes of one channel, valid", 1, 33, 16, 1, **VALID),
    case("many channels", 1, 13, 18, 37),
    case("many views", 19, 12, 14, 2, reduction="sum"),
    case("several strips", 1, 14, 600, 3),
    case("several bands", 1, 203, 12, 3),
    case("several bands, valid", 1, 203, 12, 3, **VALID, mask="bools"),
    case("similarity alone", 1, 31, 29, 3, **SSIM_ALONE),
    case("squares", 3, 9, 11, 3, l1=0.0, l2=1.0, dssim=0.0),
    case("everything", 1, 20, 26, 4, l1=0.3, l2=2.0, dssim=0.5),
    case("weights", 2, 24, 31, 3, mask="floats"),
    case("weights, valid", 2, 24, 31, 3, mask="floats", **VALID, reduction="sum"),
    case("chosen, bytes", 2, 24, 31, 3, mask="bytes"),
    case("chosen, differences only", 2, 24, 31, 3, mask="bools", dssim=0.0),
    case("nothing", 1, 5, 5, 3, l1=0.0, dssim=0.0),
]
every_case = pytest.mark.parametrize("of", CASES, ids=lambda of: of.name)


def run(engine: Engine, of: LossCase) -> ImageLoss:
    return engine.run(image_loss, of.image, of.target, of.mask, **of.options)  # type: ignore[no-any-return]


@every_case
def test_values_and_gradients_are_those_of_float64(of: LossCase, training_engine: Engine) -> None:
    result = run(training_engine, of)
    values, gradient = reference(of)
    for actual, expected in zip(result.views(), values, strict=True):
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            # Variances of a single window are differences of float32 numbers near 1, to which SSIM adds just 9e-4.
            tolerance = 3e-5 if name in ("total", "ssim") else 1e-6
            assert actual[name] == pytest.approx(value, rel=1e-6, abs=tolerance), name
    assert_relative("gradient", result.gradient.cpu(), gradient, 3e-5)
    scale = float(gradient.abs().max())
    assert_image(result.gradient.cpu(), gradient, 1e-4 * scale)
    assert result.times.milliseconds()["image_loss"] > 0


@pytest.mark.parametrize(("noise", "better"), [(0.05, 1.0), (0.003, 5.0)])
def test_rounding_hurts_less_than_torchs_the_more_so_the_nearer(
    noise: float, better: float, training_engine: Engine
) -> None:
    of = case("rounding", 1, 30, 60, 3, **SSIM_ALONE)
    random = random_of("rounding noise").standard_normal(of.target.shape).astype(np.float32)
    of = LossCase("rounding", of.target + noise * torch.from_numpy(random), of.target, None, of.options)
    _, exact = reference(of)
    _, torchs = reference(of, torch.float32)
    mine = run(training_engine, of).gradient.cpu()
    assert better * (mine - exact).norm() <= (torchs - exact).norm()


# |d| has kinks, which a finite-difference step would cross.
SMOOTH = {"l1": 0.0, "l2": 0.5, "dssim": 0.5}


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("mask", ["", "floats"])
def test_the_gradient_is_the_slope_of_the_values(padding: str, mask: str, training_engine: Engine) -> None:
    of = case("slope", 2, 23, 27, 3, mask=mask, padding=padding, **SMOOTH)
    gradient = run(training_engine, of).gradient.cpu()
    direction, step = gradient.sign(), 1e-3

    def total(image: Tensor) -> float:
        return run(training_engine, LossCase(of.name, image, of.target, of.mask, of.options)).values()["total"]

    slope = (total(of.image + step * direction) - total(of.image - step * direction)) / (2 * step)
    assert float((gradient.double() * direction).sum()) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("options", [{}, VALID, {"dssim": 0.0, "l2": 1.0}])
def test_views_do_not_see_each_other(options: dict[str, object], training_engine: Engine) -> None:
    of = case("together", 3, 21, 34, 3, mask="floats", reduction="sum", **options)
    together = run(training_engine, of)
    for view in range(3):
        part = slice(view, view + 1)
        alone = run(training_engine, LossCase("alone", of.image[part], of.target[part], of.mask[part], of.options))
        np.testing.assert_array_equal(together.gradient[part].cpu(), alone.gradient.cpu())
        assert together.views()[view] == alone.views()[0]
    mean = run(training_engine, LossCase("mean", of.image, of.target, of.mask, {**of.options, "reduction": "mean"}))
    assert_relative("mean", 3 * mean.gradient.cpu(), together.gradient.cpu(), 3e-6)
    assert 3 * mean.values()["total"] == pytest.approx(together.values()["total"])
    assert together.values()["total"] == pytest.approx(sum(view["total"] for view in together.views()))
    assert together.values()["psnr"] == pytest.approx(sum(view["psnr"] for view in together.views()) / 3)


@pytest.mark.parametrize("options", [{}, VALID])
def test_a_mask_that_lets_everything_through_is_none(options: dict[str, object], training_engine: Engine) -> None:
    of = case("through", 2, 17, 23, 3, **options)
    expected = run(training_engine, of)
    for mask in (torch.ones(2, 17, 23), torch.full((2, 17, 23), 7, dtype=torch.uint8)):
        actual = run(training_engine, LossCase("through", of.image, of.target, mask, of.options))
        np.testing.assert_array_equal(actual.gradient.cpu(), expected.gradient.cpu())
        assert actual.values() == expected.values()


@pytest.mark.parametrize("options", [{}, VALID])
def test_where_nothing_counts_there_is_no_loss(options: dict[str, object], training_engine: Engine) -> None:
    of = case("dark", 2, 12, 13, 3, **options)
    mask = torch.zeros(2, 12, 13)
    mask[1] = 1
    result = run(training_engine, LossCase("dark", of.image, of.target, mask, of.options))
    assert not result.gradient[0].any()
    assert result.views()[0] == {"total": 0.0, "l1": 0.0, "l2": 0.0, "psnr": np.inf, "ssim": 1.0}
    assert result.views()[1]["total"] > 0.01


def test_an_image_that_is_its_target_has_no_loss(training_engine: Engine) -> None:
    of = case("same", 1, 30, 33, 3)
    result = run(training_engine, LossCase("same", of.image, of.image, None, {}))
    values = result.values()
    assert (values["l1"], values["l2"], values["psnr"]) == (0.0, 0.0, np.inf)
    assert values["ssim"] == pytest.approx(1.0, abs=1e-6)
    assert float(result.gradient.abs().max()) < 1e-6


def test_images_may_lie_anyhow_and_want_gradients(training_engine: Engine) -> None:
    of = case("strided", 1, 12, 15, 3, mask="floats")
    planes = of.image.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1).requires_grad_()
    turned = of.mask.transpose(1, 2).contiguous().transpose(1, 2)
    target = of.target.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    actual = run(training_engine, LossCase("strided", planes, target, turned, of.options))
    np.testing.assert_array_equal(actual.gradient.cpu(), run(training_engine, of).gradient.cpu())
    assert not actual.gradient.requires_grad


def test_the_number_of_threads_does_not_matter(keep_threads: None) -> None:
    of = case("threads", 2, 210, 300, 3, mask="floats")
    found = []
    for count in (1, 2, 5):
        _native.set_thread_count(count)
        found.append(run(cpu(), of))
    for other in found[1:]:
        np.testing.assert_array_equal(other.gradient, found[0].gradient)
        assert other.views() == found[0].views()


def test_means_of_views_may_be_infinite() -> None:
    weights = {"l1": 0.8, "l2": 0.0, "dssim": 0.0}
    values = image_loss_values([[1, 0.0, math.inf, 0], [0, 0, 0, 0]], weights)
    assert math.isnan(values["psnr"]) and values["l2"] == math.inf
