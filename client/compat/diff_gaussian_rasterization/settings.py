"""The settings of a rendering, with the original's names and order."""

from __future__ import annotations

from typing import NamedTuple

import torch


class GaussianRasterizationSettings(NamedTuple):
    """The camera and how to draw.

    Attributes:
        image_height: pixels.
        image_width: pixels.
        tanfovx: tangent of half the horizontal field of view.
        tanfovy: tangent of half the vertical one.
        bg: [3] background, or one number for all channels.
        scale_modifier: factor on all scales.
        viewmatrix: [4, 4] world to camera, for row vectors.
        projmatrix: [4, 4] world to normalised device coordinates, for row vectors; float64 is kept.
        sh_degree: degree of the spherical harmonics in use.
        campos: [3] the eye, world frame, scene units.
        prefiltered: accepted; the original skips a test of visibility if it is set, with the same pictures.
        debug: accepted; errors are explained in any case.
        antialiasing: scale opacities by what the blur took from the area of each Gaussian; of newer originals.
    """

    image_height: int
    image_width: int
    tanfovx: float
    tanfovy: float
    bg: torch.Tensor
    scale_modifier: float
    viewmatrix: torch.Tensor
    projmatrix: torch.Tensor
    sh_degree: int
    campos: torch.Tensor
    prefiltered: bool = False
    debug: bool = False
    antialiasing: bool = False
