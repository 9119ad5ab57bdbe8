"""The gradient with respect to motions of cameras."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lumigrad.server.content import Tensors
from lumigrad.v1 import camera_pb2


def pose_gradients(gradients: Tensors, cameras: Sequence[camera_pb2.Camera]) -> torch.Tensor:
    """[C, 6], of exp(xi) on the left of world-to-camera matrices, xi = (translation, rotation).

    With x' = x + w: the gradient of t gives that of the translation; of the rotation w, t x g_t and the sum over the
    columns r of R of r x g_r.
    """
    if "camera_pose" in gradients:
        return gradients["camera_pose"]
    of_rotation, of_translation = gradients["camera_rotation"].double(), gradients["camera_translation"].double()
    device = of_rotation.device
    rotation = torch.tensor([list(c.opencv.rotation) for c in cameras], dtype=torch.float64, device=device)
    translation = torch.tensor([list(c.opencv.translation) for c in cameras], dtype=torch.float64, device=device)
    columns = rotation.reshape(-1, 3, 3)
    turning = torch.linalg.cross(columns, of_rotation, dim=1).sum(dim=2)
    turning = turning + torch.linalg.cross(translation, of_translation)
    return torch.cat([of_translation, turning], dim=1).float()
