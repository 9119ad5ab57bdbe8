"""Checks the options of gsplat's `rasterization`, and refuses those that the worker does not support.

An option that workers do not have raises NotImplementedError, since the option exists in gsplat and the argument is
valid there; if it were ignored, the call would return another image and other gradients than those requested. A value
that gsplat does not accept either raises GsplatArgumentError.

The error's text and docs/porting_gsplat.md have the same reason and alternative; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument

# The argument's name here, by parts of the path in the request or by the name of the client's own argument.
_ARGUMENTS = {
    **{name: name for name in ("means", "quats", "scales", "covars", "opacities", "colors", "sh_degree")},
    **{name: name for name in ("backgrounds", "viewmats", "Ks", "width", "height", "radius_clip", "eps2d")},
    **dict.fromkeys(("cameras", "rotation", "translation"), "viewmats"),
    **dict.fromkeys(("fx", "fy", "cx", "cy"), "Ks"),
    "covariances": "covars",
    "sh": "colors",
    "background": "backgrounds",
    **dict.fromkeys(("radial", "distortion"), "radial_coeffs"),
    "tangential": "tangential_coeffs",
    "thin_prism": "thin_prism_coeffs",
    **dict.fromkeys(("ftheta", "angle_to_pixel_distance", "pixel_distance_to_angle"), "ftheta_coeffs"),
    **dict.fromkeys(("linear", "max_angle"), "ftheta_coeffs"),
    **dict.fromkeys(("horizontal", "vertical", "windshield"), "external_distortion_coeffs"),
    **dict.fromkeys(("horizontal_inverse", "vertical_inverse"), "external_distortion_coeffs"),
    "lidar": "lidar_coeffs",
    **{name: f"lidar_coeffs.{name}_rad" for name in ("row_elevations", "column_azimuths", "row_azimuth_offsets")},
    **dict.fromkeys(("end", "end.rotation", "end.translation", "end_rotation", "end_translation"), "viewmats_rs"),
    **{name: name for name in ("rays", "tile_size", "extra_signals", "extra_signals_sh_degree")},
    "response": "with_eval3d",
    "unscented": "ut_params",
    "near": "near_plane",
    "far": "far_plane",
}


class GsplatArgumentError(InvalidArgument, AssertionError, RuntimeError):
    """An argument of `rasterization` is invalid; the text has its name there.

    It is an AssertionError, as in gsplat 1.5, and a RuntimeError or a ValueError, as in 1.6.
    """


class GsplatTypeError(GsplatArgumentError, TypeError):
    """An argument of `rasterization` is of a type for which gsplat raises TypeError."""


def gsplat_refusals() -> AbstractContextManager[None]:
    """Raises GsplatArgumentError where the client or the worker refuses an argument."""
    return renamed(GsplatArgumentError, _ARGUMENTS)


# gsplat's names of the values that some arguments have.
RenderMode = Literal["RGB", "d", "Ed", "D", "ED", "RGB-d", "RGB-Ed", "RGB+D", "RGB+ED"]
RasterizeMode = Literal["classic", "antialiased"]
CameraModel = Literal["pinhole", "ortho", "fisheye", "ftheta", "lidar"]
RENDER_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")
HIT_DISTANCES = ("d", "Ed", "RGB-d", "RGB-Ed")

# Classes of gsplat, which need not be installed here: the default, and one for rays only. They draw the same pictures.
_RENDERER, _RENDERERS = "RendererConfig", ("RendererConfig_MixedBatch", "RendererConfig_ParallelBatch")


# Why several ranks are refused, and what the caller can do.
WHY = (
    "gsplat exchanges the Gaussians that each rank holds with the other ranks of a process group; here a call draws "
    "the Gaussians that it sends, on one worker behind a socket"
)
INSTEAD = (
    "gather the Gaussians of all ranks by torch.distributed.nn.functional.all_gather, which gives the same images and "
    "gradients, or divide cameras among workers by lumigrad.client.torch.render_gaussians(spread=True)"
)


def refuse_ranks(distributed: bool) -> None:
    """Raises NotImplementedError for `distributed` with several ranks; a single rank holds all Gaussians."""
    group = torch.distributed
    if distributed and group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        given = f"expected False with {group.get_world_size()} ranks, got {_shown(distributed)}"
        raise NotImplementedError(f"distributed is not supported here: {given}; {WHY}; {INSTEAD}")


def check_sensors(options: Mapping[str, Any]) -> None:
    """Raises for options that gsplat, or the worker, does not have with `with_ut` or `with_eval3d`."""
    switch = "with_ut" if options["with_ut"] else "with_eval3d"
    for name, expected in (("packed", False), ("sparse_grad", False), ("rasterize_mode", "classic"), ("covars", None)):
        if options[name] != expected if name != "covars" else options[name] is not None:
            text = f"expected {expected} with {switch}=True, got {_shown(options[name])}"
            raise GsplatArgumentError.of(name, text)
    sizes = (8, 16) if options["with_eval3d"] else (4, 16)
    if options["tile_size"] not in (None, *sizes):
        switches = f"with_ut={options['with_ut']}, with_eval3d={options['with_eval3d']}"
        text = f"expected None, {sizes[0]} or {sizes[1]} with {switches}, "
        raise GsplatArgumentError.of("tile_size", f"{text}got {_shown(options['tile_size'])}")


def check_renderer(value: Any, with_eval3d: bool) -> None:
    """Raises as gsplat does unless `renderer_config` is None or one of its two classes, the second along rays only."""
    name, given = type(value).__name__, f"got {_shown(value)}"
    if value is None or name in (_RENDERERS if with_eval3d else _RENDERERS[:1]):
        return
    if name in _RENDERERS:
        text = f"expected {_RENDERERS[0]}() with with_eval3d=False, {given}; pass with_eval3d=True, or leave it out"
        raise GsplatArgumentError.of("renderer_config", text)
    text = f"expected an instance of {' or '.join(_RENDERERS)}, {given}; leave it out"
    if any(kind.__name__ == _RENDERER for kind in type(value).__mro__):
        raise NotImplementedError(f"renderer_config: {text}")
    raise GsplatTypeError.of("renderer_config", text)


def check_rays(options: Mapping[str, Any]) -> None:
    """Raises GsplatArgumentError for options that need `with_eval3d`, which is False."""
    hits = options["render_mode"] if options["render_mode"] in HIT_DISTANCES else None
    for name, given in (
        ("render_mode", hits),
        ("return_normals", options["return_normals"]),
        ("rays", options["rays"]),
    ):
        if given is not None and given is not False:
            raise GsplatArgumentError.of(name, f"{_shown(given)} needs with_eval3d=True; pass with_eval3d=True")


def check_modes(render_mode: str, camera_model: str, rasterize_mode: str) -> None:
    """Raises GsplatArgumentError for unknown modes."""
    with gsplat_refusals():
        one_of("render_mode", render_mode, (*RENDER_MODES, *HIT_DISTANCES))
        one_of("camera_model", camera_model, get_args(CameraModel))
        one_of("rasterize_mode", rasterize_mode, get_args(RasterizeMode))


def _shown(value: Any) -> str:
    """Returns a tensor's shape, the name of an enum's value, the repr of a number or string, else the type's name."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
