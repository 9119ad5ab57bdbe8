"""gsplat's losses of images and parameters (`gsplat.losses`) in plain torch: no worker is called."""

from __future__ import annotations

import torch

# SSIM: Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004.
_SSIM_SIGMA, _SSIM_1, _SSIM_2 = 1.5, 0.01**2, 0.03**2


def l1_loss(pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Returns absolute differences in the shape of both, not averaged."""
    return (pred - target).abs()


def mse_loss(pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Returns squared differences in the shape of both, not averaged."""
    return (pred - target).square()


def ssim_loss(img1: torch.Tensor, img2: torch.Tensor, window_size: int = 11) -> torch.Tensor:
    """Returns 1 - SSIM, the mean over two batches of images [B, C, H, W] in [0, 1], padded with zeros."""
    offsets = torch.arange(window_size, dtype=img1.dtype, device=img1.device) - window_size // 2
    weights = torch.exp(offsets.square() / (-2 * _SSIM_SIGMA**2))
    weights = (weights / weights.sum()).expand(img1.shape[1], 1, 1, -1)

    def blurred(image: torch.Tensor) -> torch.Tensor:
        across = torch.nn.functional.conv2d(image, weights, padding=(0, window_size // 2), groups=len(weights))
        down = weights.transpose(2, 3)
        return torch.nn.functional.conv2d(across, down, padding=(window_size // 2, 0), groups=len(weights))

    # One convolution of all five: many short operations are slower.
    means = blurred(torch.cat([img1, img2, img1 * img1, img2 * img2, img1 * img2])).chunk(5)
    one, other, squares, other_squares, products = means
    same = (2 * one * other + _SSIM_1) * (2 * (products - one * other) + _SSIM_2)
    spread = (one.square() + other.square() + _SSIM_1) * (
        squares - one.square() + other_squares - other.square() + _SSIM_2
    )
    return 1 - (same / spread).mean()


def depth_l1_loss(pred_depth: torch.Tensor, gt_depth: torch.Tensor, scene_scale: float = 1.0) -> torch.Tensor:
    """Returns the mean absolute difference of inverse depths, times `scene_scale`; where a depth is 0 they are 0."""
    return (_inverse(pred_depth) - _inverse(gt_depth)).abs().mean() * scene_scale


def _inverse(depth: torch.Tensor) -> torch.Tensor:
    """Returns 1 / depth; 0 with the gradient 0 where the depth is not above 0."""
    has_depth = depth > 0
    return torch.where(has_depth, 1 / torch.where(has_depth, depth, 1), 0)


def opacity_reg_loss(opacities: torch.Tensor) -> torch.Tensor:
    """Returns the mean opacity of logits."""
    return opacities.sigmoid().mean()


def scale_reg_loss(log_scales: torch.Tensor) -> torch.Tensor:
    """Returns the mean scale of logarithms."""
    return log_scales.exp().mean()


def total_variation_loss(x: torch.Tensor) -> torch.Tensor:
    """Returns the mean squared differences of neighbours along each axis of [B, C, ...] but the first two, summed."""
    steps = [x.diff(dim=axis).square() for axis in range(2, x.ndim)]
    # An axis of length 1 has no neighbours.
    return sum((step.mean() for step in steps if step.numel()), x.new_zeros(()))
