"""Losses of images in float64 with torch's own operations, gradients by autograd; and images to compare."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from support.gaussians.cases import random_of


def window(sigma: float = 1.5, radius: int = 5) -> Tensor:
    """[2 radius + 1, 2 radius + 1], adds up to 1."""
    x = torch.arange(-radius, radius + 1, dtype=torch.float64)
    line = torch.exp(-(x**2) / (2 * sigma**2))
    line /= line.sum()
    return line[:, None] * line[None, :]


def similarity(x: Tensor, y: Tensor, padding: str, radius: int = 5) -> Tensor:
    """[C, H', W', K] structural similarities of images [C, H, W, K]; the map is smaller for valid padding."""
    views, height, width, channels = x.shape
    kernel = window(radius=radius).to(x.dtype)[None, None]

    def mean(values: Tensor) -> Tensor:
        planes = values.permute(0, 3, 1, 2).reshape(-1, 1, height, width)
        return torch.nn.functional.conv2d(planes, kernel, padding=radius if padding == "same" else 0)

    mx, my = mean(x), mean(y)
    xx, yy, xy = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    values = (2 * mx * my + c1) * (2 * xy + c2) / ((mx * mx + my * my + c1) * (xx + yy + c2))
    return values.view(views, channels, *values.shape[2:]).permute(0, 2, 3, 1)


@dataclass(frozen=True)
class LossCase:
    """The images, weights and settings of a loss."""

    name: str
    image: Tensor
    target: Tensor
    mask: Tensor | None = None
    options: dict[str, object] = field(default_factory=dict)

    def weights(self) -> tuple[float, float, float]:
        l1, l2, dssim = (
            self.options.get(name, default) for name, default in (("l1", 0.8), ("l2", 0.0), ("dssim", 0.2))
        )
        return float(l1), float(l2), float(dssim)  # type: ignore[arg-type]

    @property
    def padding(self) -> str:
        return str(self.options.get("padding", "same"))


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """The mean of a view [H, W, K] with weights [H, W]."""
    total = weights.sum() * values.shape[-1]
    return (values * weights[..., None]).sum() / total if total > 0 else (values * 0).sum()


def reference(case: LossCase, dtype: torch.dtype = torch.float64) -> tuple[list[dict[str, float]], Tensor]:
    """Values of each view, and the gradient of the whole loss."""
    image = case.image.to(dtype).requires_grad_()
    target = case.target.to(dtype) / 255 if case.target.dtype == torch.uint8 else case.target.to(dtype)
    mask = torch.ones(image.shape[:3], dtype=dtype) if case.mask is None else case.mask.to(dtype)
    if case.mask is not None and case.mask.dtype == torch.uint8:
        mask = (case.mask != 0).to(dtype)
    inner = mask[:, 5:-5, 5:-5] if case.padding == "valid" else mask
    l1, l2, dssim = case.weights()
    similarities = similarity(image, target, case.padding) if dssim else None
    totals, values = [], []
    for view in range(len(image)):
        d = image[view] - target[view]
        means = {"l1": _mean(d.abs(), mask[view]), "l2": _mean(d * d, mask[view])}
        total = l1 * means["l1"] + l2 * means["l2"]
        if similarities is not None:
            means["ssim"] = 1 - _mean(1 - similarities[view], inner[view])
            total = total + dssim * (1 - means["ssim"])
        totals.append(total)
        squares = float(means["l2"].detach())
        told = {name: float(value.detach()) for name, value in {"total": total, **means}.items()}
        values.append({**told, "psnr": -10 * np.log10(squares) if squares > 0 else np.inf})
    loss = torch.stack(totals)
    loss = loss.sum() if case.options.get("reduction") == "sum" else loss.mean()
    (gradient,) = torch.autograd.grad(loss, image)
    return values, gradient


def pair(name: str, shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """A noisy image with edges, texture and flat areas, and the image without noise, clipped to [0, 1]."""
    random = random_of(f"pair {name} {shape}")
    views, height, width, channels = shape
    y, x = np.mgrid[:height, :width] / 9.0
    phase = random.uniform(0, 6, (views, 1, 1, channels))
    waves = 0.5 + 0.3 * np.sin(x[None, ..., None] + phase) * np.cos(0.7 * y[None, ..., None])
    flat = np.where((x + y)[None, ..., None] % 4 > 2.5, random.uniform(0, 1, (views, 1, 1, channels)), waves)
    image = flat + 0.05 * random.standard_normal(shape)
    return torch.from_numpy(image.astype(np.float32)), torch.from_numpy(np.clip(flat, 0, 1).astype(np.float32))
