"""The name of `gsplat.cuda._torch_impl` that gsplat's trainers import for `--app_opt`."""

from __future__ import annotations

import math

import torch

from lumigrad.client.values.quaternions import harmonics


def _eval_sh_bases_fast(basis_dim: int, dirs: torch.Tensor) -> torch.Tensor:
    """Returns the first `basis_dim` (1, 4, 9, 16 or 25) spherical harmonics [.., basis_dim] of unit vectors [.., 3]."""
    return torch.stack(harmonics(math.isqrt(basis_dim) - 1, *dirs.unbind(-1)), -1)
