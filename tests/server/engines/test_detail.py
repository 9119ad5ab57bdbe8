"""Boxes of Gaussians that may be in a picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from lumigrad.server.engines.detail import reached
from lumigrad.v1 import gaussians_pb2

SIZE = 8


@pytest.mark.parametrize(("eps2d", "beside_px"), [(None, 1.2), (9.0, 8.0), (0.0, 0.4)])
def test_the_blur_of_small_pictures_reaches_beyond_their_edges(eps2d: float | None, beside_px: float) -> None:
    camera = Camera.opencv(SIZE, SIZE, SIZE / 2, SIZE / 2, np.eye(3), (0, 0, 0), SIZE, SIZE)
    x = (SIZE / 2 + beside_px) / SIZE
    one = Gaussians(
        means=torch.tensor([[x, 0.0, 1.0]]),
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
        scales=torch.full((1, 3), 1e-4),
        opacities=torch.tensor([0.99]),
        colors=torch.ones(1, 3),
    )
    settings = {} if eps2d is None else {"eps2d": eps2d}
    is_drawn = bool(gaussians.forward(one, [camera], Settings(**settings), outputs=("alpha",)).outputs["alpha"].any())
    box = np.float32([[[x, 0, 1], [x, 0, 1]]])
    may_be = reached(box, [camera], gaussians_pb2.GaussianSettings(**settings))
    assert may_be[0] or not is_drawn
    assert is_drawn == bool(eps2d is None or eps2d)
    far = box + np.float32([SIZE, 0, 0])
    assert not reached(far, [camera], gaussians_pb2.GaussianSettings(**settings))[0]
