"""Which of gsplat's options there are here; the others are refused by name, with what to do instead.

Workers have gsplat's first pipeline: Gaussians are projected by the camera's Jacobian and evaluated in the picture.
What is refused is not a part of it:

- `with_ut`, `ut_params`, coefficients of lenses, `ftheta`, `lidar`, rolling shutters, `global_z_order=False`:
  projection by sigma points, through which gsplat itself has no gradient.
- `with_eval3d`, `rays`, `return_normals`, hit distances: Gaussians evaluated along rays in space, another image with
  other gradients.
- `distributed`: Gaussians split over the ranks of a trainer; a worker holds all of a scene.
- `extra_signals`: a second set of channels with weights of the first; more channels of `colors` are the same sums.
- `renderer_config`: a choice among gsplat's own renderers; the default one may be named.

Ignoring such an option would return a picture and gradients that look right and are not what was asked for, so each
raises NotImplementedError: the option exists in gsplat, and the argument is not wrong. Values that gsplat does not know
either are a GsplatArgumentError.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from lumigrad.client.base.arguments import one_of
from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument

# What a part of a path in the request, or the client's own argument, is called here.
_ARGUMENTS = {
    **{name: name for name in ("means", "quats", "scales", "covars", "opacities", "colors", "sh_degree")},
    **{name: name for name in ("backgrounds", "viewmats", "Ks", "width", "height", "radius_clip", "eps2d")},
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


RENDER_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")
_HIT_DISTANCES = ("d", "Ed", "RGB-d", "RGB-Ed")
_CAMERA_MODELS = ("pinhole", "ortho", "fisheye")
_RASTERIZE_MODES = ("classic", "antialiased")

# The defaults of gsplat, which need not be installed here: RollingShutterType.GLOBAL, and a class.
_GLOBAL_SHUTTER = 4
_DEFAULT_RENDERER = "RendererConfig_MixedBatch"

_UNDISTORT = (
    "undistort the pictures, or render pinholes with lumigrad.client.torch.render_gaussians(..., distortion=...)"
)
_ON_PLANE = "leave it out: Gaussians are projected by the Jacobian of the camera and evaluated in the picture"
_ONE_SHUTTER = "render each pose that matters as a camera of its own"
_AS_CHANNELS = "append the signals to colors as more channels; beside harmonics, render them as colors of a second call"


_ADVICE = {
    "distributed": "leave it out: give each process its own worker (target=…), or all of them the same one",
    "with_ut": _ON_PLANE,
    "with_eval3d": _ON_PLANE,
    "return_normals": "leave it out: normals need with_eval3d",
    "global_z_order": "leave it out: Gaussians are sorted by camera-space Z",
    "rays": "leave it out: rays need with_eval3d",
    "radial_coeffs": _UNDISTORT,
    "tangential_coeffs": _UNDISTORT,
    "thin_prism_coeffs": _UNDISTORT,
    "ftheta_coeffs": 'use camera_model="fisheye"',
    "lidar_coeffs": "render a camera",
    "external_distortion_coeffs": _UNDISTORT,
    "rolling_shutter": _ONE_SHUTTER,
    "viewmats_rs": _ONE_SHUTTER,
    "ut_params": _ON_PLANE,
    "extra_signals": _AS_CHANNELS,
    "extra_signals_sh_degree": _AS_CHANNELS,
    "renderer_config": f"leave it out, or pass {_DEFAULT_RENDERER}(): there is one renderer",
}


def refuse_unsupported(options: Mapping[str, Any]) -> None:
    """Raises NotImplementedError for the first option, of those that there are not here, that was changed."""
    for name, advice in _ADVICE.items():
        value = options[name]
        if not _is_default(name, value):
            shown = f"={value}" if isinstance(value, bool) else ""
            raise NotImplementedError(f"{name}{shown} is not supported here; {advice}")


def _is_default(name: str, value: Any) -> bool:
    if name == "global_z_order":
        return bool(value)
    if name == "rolling_shutter" and value is not None:
        return getattr(value, "name", "") == "GLOBAL" or bool(value == _GLOBAL_SHUTTER)
    if name == "renderer_config" and type(value).__name__ == _DEFAULT_RENDERER:
        return True
    return value is None or value is False


def check_modes(render_mode: str, camera_model: str, rasterize_mode: str) -> None:
    """Refuses modes that there are not, here or at all."""
    # Where a ray comes closest to a Gaussian is known only to a pipeline that evaluates Gaussians along rays.
    if render_mode in _HIT_DISTANCES:
        raise NotImplementedError(
            f'render_mode="{render_mode}" is not supported here; use one of {", ".join(RENDER_MODES)}, whose depth is '
            "camera-space Z"
        )
    # Gsplat has these for projection by sigma points only: neither has the Jacobian that the first pipeline needs.
    if camera_model in ("ftheta", "lidar"):
        raise NotImplementedError(
            f'camera_model="{camera_model}" is not supported here; use one of {", ".join(_CAMERA_MODELS)}'
        )
    with gsplat_refusals():
        one_of("render_mode", render_mode, RENDER_MODES)
        one_of("camera_model", camera_model, _CAMERA_MODELS)
        one_of("rasterize_mode", rasterize_mode, _RASTERIZE_MODES)
