"""The function of `gsplat._helper` that gsplat's viewers import."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

# The range of the scales that Gaussians of the test scene get, scene units.
_SCALES = 1e-4, 0.02


def load_test_data(
    data_path: str | PathLike[str] | None = None,
    device: Any = "cuda",
    scene_crop: Sequence[float] = (-2, -2, -2, 2, 2, 2),
    scene_grid: int = 1,
) -> tuple[Any, ...]:
    """Reads the test scene of gsplat's repository, and makes a Gaussian of random shape of each point.

    Args:
        data_path: the file; None: assets/test_garden.npz beside the folder of the program that runs.
        device: where tensors go.
        scene_crop: least and largest x, y and z of the points that are used.
        scene_grid: how often the scene is repeated along x and along y, an odd number.

    Returns:
        means [N, 3], quats [N, 4], scales [N, 3], opacities [N], colours [N, 3], viewmats [C, 4, 4], Ks [C, 3, 3],
        width and height.
    """
    path = (
        Path(sys.argv[0]).resolve().parents[1] / "assets" / "test_garden.npz" if data_path is None else Path(data_path)
    )
    if not path.exists():
        raise FileNotFoundError(f"{path}: gsplat's repository has this file; pass a scene by --ckpt or --ply instead")
    with np.load(path) as data:
        tensors = [torch.from_numpy(data[name]).float() for name in ("means3d", "colors", "viewmats", "Ks")]
        width, height = int(data["width"]), int(data["height"])
    means, colors, viewmats, intrinsics = (tensor.to(device) for tensor in tensors)
    low, high = means.new_tensor(scene_crop).reshape(2, 3)
    inside = ((means >= low) & (means <= high)).all(dim=-1)
    steps = torch.arange(scene_grid, device=device) - scene_grid // 2
    offsets = torch.cartesian_prod(steps, steps, torch.zeros_like(steps[:1])) * (high - low)
    means = (means[inside] + offsets[:, None]).reshape(-1, 3)
    count = len(means)
    return (
        means,
        torch.nn.functional.normalize(torch.randn(count, 4, device=device), dim=-1),
        torch.empty(count, 3, device=device).uniform_(*_SCALES),
        torch.rand(count, device=device),
        colors[inside].repeat(len(offsets), 1) / 255,
        viewmats,
        intrinsics,
        width,
        height,
    )
