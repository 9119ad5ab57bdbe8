"""How alike two pictures are: PSNR and SSIM."""

from __future__ import annotations

import torch

# Of the Gaussian window of SSIM, pixels.
_WINDOW, _SIGMA = 11, 1.5
# Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity" (2004), for values 0 to 1.
_C1, _C2 = 0.01**2, 0.03**2


def psnr(picture: torch.Tensor, target: torch.Tensor) -> float:
    """Decibels; the pictures [H, W, D] have values from 0 to 1."""
    return float(-10 * (picture - target).square().mean().clamp_min(1e-12).log10())


def ssim(picture: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean structural similarity [], at most 1, of pictures [H, W, D] with values from 0 to 1; zeros surround them."""
    x, y = picture.movedim(-1, 0), target.movedim(-1, 0)
    # The variances are needed only as their sum: four maps instead of five.
    maps = torch.cat([x, y, x * x + y * y, x * y])
    window = _window(maps).expand(len(maps), 1, _WINDOW, _WINDOW)
    # One picture of many channels: a batch of pictures goes a slower way on the CPU.
    blurred = torch.nn.functional.conv2d(maps[None], window, padding=_WINDOW // 2, groups=len(maps))
    mean_x, mean_y, squares, product = blurred[0].chunk(4)
    means, both = mean_x.square() + mean_y.square(), mean_x * mean_y
    numerator = (2 * both + _C1) * (2 * (product - both) + _C2)
    return torch.mean(numerator / ((means + _C1) * (squares - means + _C2)))


def _window(like: torch.Tensor) -> torch.Tensor:
    """[11, 11] weights that sum to 1."""
    offsets = torch.arange(_WINDOW, dtype=like.dtype, device=like.device) - _WINDOW // 2
    row = torch.exp(offsets.square() / (-2 * _SIGMA**2))
    row = row / row.sum()
    return row[:, None] * row
