"""Arguments of the sensor operator as a caller gives them: tensors that want gradients, and gsplat's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lumigrad.client.compat import gsplat


def leaf(values: Any, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=kind).requires_grad_()


def lidar_parameters(tables: Mapping[str, Any], **changes: Any) -> Any:
    """gsplat's class, clockwise."""
    return gsplat.RowOffsetStructuredSpinningLidarModelParameters(
        **{
            "row_elevations_rad": tables["lidar_elevations"],
            "column_azimuths_rad": tables["lidar_azimuths"],
            "row_azimuth_offsets_rad": tables["lidar_offsets"],
            "spinning_frequency_hz": 10.0,
            "spinning_direction": gsplat.SpinningDirection.CLOCKWISE,
            **changes,
        }
    )


def pose6(views: Any, gradients: Any) -> Any:
    """Gradients of xi, which moves views to exp(xi) V, from those of the matrices."""
    rotation, translation = gradients[:, :3, :3], gradients[:, :3, 3]
    turning = np.cross(views[:, :3, :3], rotation, axis=1).sum(-1) + np.cross(views[:, :3, 3], translation)
    return np.concatenate([translation, turning], -1)
