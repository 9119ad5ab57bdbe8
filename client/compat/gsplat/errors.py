"""The error of a refused argument, an AssertionError as most of the original's."""

from __future__ import annotations

from contextlib import AbstractContextManager

from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument

_ARGUMENTS = {
    **{
        name: name for name in ("means", "quats", "scales", "covars", "opacities", "colors", "sh_degree", "backgrounds")
    },
    **{name: name for name in ("viewmats", "Ks", "width", "height", "radius_clip", "eps2d")},
    **dict.fromkeys(("cameras", "rotation", "translation"), "viewmats"),
    **dict.fromkeys(("fx", "fy", "cx", "cy"), "Ks"),
    "covariances": "covars",
    "sh": "colors",
    "background": "backgrounds",
    "near": "near_plane",
    "far": "far_plane",
}


class GsplatArgumentError(InvalidArgument, AssertionError):
    """An argument of `rasterization` that was refused, by its name there."""


def gsplat_refusals() -> AbstractContextManager[None]:
    """Raises GsplatArgumentError where the client or the worker refuses an argument."""
    return renamed(GsplatArgumentError, _ARGUMENTS)
