"""Losses between rendered images and target images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import MAX_EXTENT, check, is_number
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.training.engine import engine_for
from lumigrad.kernels.training.tensors import check_tensor, plane

PADDINGS = ("same", "valid")
REDUCTIONS = ("mean", "sum")
# Edge of the SSIM window, pixels.
WINDOW = 11


@dataclass(frozen=True, eq=False)
class ImageLoss:
    """A loss and its gradient.

    Attributes:
        gradient: f32 [C, H, W, K], d total / d image.
        sums: f64 [C, 4], on the device: for each view the sum of the pixels' weights, and the means of |d|, d^2 and
            1 - SSIM.
        weights: The weights of "l1", "l2" and "dssim" in the total.
        reduction: The reduction over the views.
        times: Time of the kernel.
    """

    gradient: torch.Tensor
    sums: torch.Tensor
    weights: Mapping[str, float]
    reduction: str
    times: Stages

    def views(self) -> list[dict[str, float]]:
        """For each view, "total", "l1", "l2", "psnr" (dB, for a peak of 1) and, if its weight is not 0, "ssim".

        On CUDA this waits for the device.
        """
        return _views(self.sums.tolist(), self.weights)

    def values(self) -> dict[str, float]:
        """The means of `views()` over all views; "total" is reduced over the views by `reduction`.

        On CUDA this waits for the device.
        """
        return image_loss_values(self.sums.tolist(), self.weights, self.reduction)


def image_loss_values(
    sums: Sequence[Sequence[float]], weights: Mapping[str, float], reduction: str = "mean"
) -> dict[str, float]:
    """`ImageLoss.values` from its sums on the host.

    Args:
        sums: [C, 4], see `ImageLoss.sums`.
        weights: See `ImageLoss.weights`.
        reduction: "mean" or "sum" of the views' totals.
    """
    views = _views(sums, weights)
    means = {name: _mean([view[name] for view in views]) for name in views[0]}
    if reduction == "sum":
        means["total"] *= len(views)
    return means


def _mean(values: Sequence[float]) -> float:
    # fsum raises on infinities of both signs, which PSNRs may have.
    return (math.fsum(values) if all(map(math.isfinite, values)) else sum(values)) / len(values)


def _views(sums: Sequence[Sequence[float]], weights: Mapping[str, float]) -> list[dict[str, float]]:
    return [_view(weights, *row) for row in sums]


def _view(weights: Mapping[str, float], _: float, l1: float, l2: float, dssim: float) -> dict[str, float]:
    total = weights["l1"] * l1 + weights["l2"] * l2
    values = {"l1": l1, "l2": l2, "psnr": -10.0 * math.log10(l2) if l2 > 0.0 else math.inf}
    if weights["dssim"] != 0.0:
        values["ssim"] = 1.0 - dssim
        total += weights["dssim"] * dssim
    return {"total": total, **values}


def image_loss(
    image: torch.Tensor,
    target: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    l1: float = 0.8,
    l2: float = 0.0,
    dssim: float = 0.2,
    padding: str = "same",
    reduction: str = "mean",
) -> ImageLoss:
    """A weighted sum of L1, L2 and 1 - SSIM, and its exact gradient with respect to the image.

    For each view, with d = image - target and the pixels' weights m (1 without a mask),

        L1 = sum(m |d|) / sum(m K),  L2 = sum(m d^2) / sum(m K),  SSIM = sum(m s) / sum(m K)
        total = l1 L1 + l2 L2 + dssim (1 - SSIM)

    summed over its pixels and K channels. s is the structural similarity of one channel in a window of 11x11 pixels
    around the pixel, weighted by a Gaussian of standard deviation 1.5 pixels, with the constants 0.01^2 and 0.03^2
    (Wang et al., "Image Quality Assessment", 2004); windows include pixels of weight 0. The image is padded with zeros
    ("same", as in Inria's and most trainers), or only windows inside the image count ("valid"). A view of total weight
    0 has L1 = L2 = 0 and SSIM = 1. Where d = 0 the derivative of |d| is 0.

    Args:
        image: f32 [C, H, W, K].
        target: f32, or u8 (divided by 255), shaped as `image`.
        mask: Weights of the pixels, [C, H, W]: f32, >= 0, or bool or u8 (nonzero: 1). None: all 1.
        l1: Weight of L1.
        l2: Weight of L2.
        dssim: Weight of 1 - SSIM; with 0 SSIM is not computed.
        padding: "same" or "valid".
        reduction: "mean" or "sum" of the views' totals.

    Returns:
        The values and the gradient.

    Raises:
        ArgumentError: An argument is invalid; the message names it.
    """
    _check_image(image)
    shape = tuple(image.shape)
    check_tensor("target", target, (torch.float32, torch.uint8), shape, image.device)
    if mask is not None:
        check_tensor("mask", mask, (torch.float32, torch.uint8, torch.bool), shape[:3], image.device)
    weights = {"l1": l1, "l2": l2, "dssim": dssim}
    for name, weight in weights.items():
        check(is_number(weight) and 0.0 <= weight < math.inf, name, "a finite number >= 0", weight)
    check(padding in PADDINGS, "padding", f"one of {PADDINGS}", padding)
    check(reduction in REDUCTIONS, "reduction", f"one of {REDUCTIONS}", reduction)
    if padding == "valid" and dssim != 0.0 and min(shape[1:3]) < WINDOW:
        raise ArgumentError("image", f"at least {WINDOW}x{WINDOW} pixels for valid padding", f"shape {list(shape)}")
    gradient = empty(shape, torch.float32, image.device)
    sums = torch.empty(shape[0], _native.LOSS_VALUES, dtype=torch.float64, device=image.device)
    arrays: dict[str, Any] = {
        "image": image.detach().contiguous(),
        **plane("target", target),
        **plane("mask", mask),
        "gradient": gradient,
        "values": sums,
        "valid": padding == "valid",
        "view_weight": 1.0 / shape[0] if reduction == "mean" else 1.0,
    }
    numbers = {name: float(weight) for name, weight in weights.items()}
    times = engine_for(image.device).run("image_loss", **arrays, **numbers)
    return ImageLoss(gradient, sums, numbers, reduction, Stages([times]))


def _check_image(image: Any) -> None:
    shaped = isinstance(image, torch.Tensor) and image.dim() == 4
    check_tensor("image", image, (torch.float32,), image.shape if shaped else (None,) * 4, None)
    if image.numel() == 0 or max(image.shape[1:3]) > MAX_EXTENT:
        expected = f"[C, H, W, K] with at least one view and channel, and 1 to {MAX_EXTENT} pixels each way"
        raise ArgumentError("image", expected, f"shape {list(image.shape)}")
