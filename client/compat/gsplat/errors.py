"""The error of a refused argument, an AssertionError as most of the original's."""

from __future__ import annotations

from contextlib import AbstractContextManager

from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument

_ARGUMENTS = {
    "means": "means",
    "quats": "quats",
    "scales": "scales",
    "covariances": "covars",
    "covars": "covars",
    "opacities": "opacities",
    "colors": "colors",
    "sh": "colors",
    "sh_degree": "sh_degree",
    "background": "backgrounds",
    "backgrounds": "backgrounds",
    "cameras": "viewmats",
    "rotation": "viewmats",
    "translation": "viewmats",
    "viewmats": "viewmats",
    "Ks": "Ks",
    "fx": "Ks",
    "fy": "Ks",
    "cx": "Ks",
    "cy": "Ks",
    "width": "width",
    "height": "height",
    "near": "near_plane",
    "far": "far_plane",
    "radius_clip": "radius_clip",
    "eps2d": "eps2d",
}


class GsplatArgumentError(InvalidArgument, AssertionError):
    """An argument of `rasterization` that was refused, by its name there."""


def gsplat_refusals() -> AbstractContextManager[None]:
    """Raises GsplatArgumentError where the client or the worker refuses an argument."""
    return renamed(GsplatArgumentError, _ARGUMENTS)
