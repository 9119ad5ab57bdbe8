"""The rotation matrix of a quaternion by the textbook's formula, for references and oracles."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def rotations(quats: Tensor) -> Tensor:
    """[.., 3, 3] of quaternions [.., 4] (w, x, y, z) of any length; differentiable, of their type."""
    w, x, y, z = (quats / quats.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return torch.stack(rows, -1).reshape(*quats.shape[:-1], 3, 3)


def rotation(quat: np.ndarray) -> np.ndarray:
    """[3, 3] float64 of a quaternion [4] of any length."""
    return rotations(torch.from_numpy(np.array(quat, np.float64))).numpy()
