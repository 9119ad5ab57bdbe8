"""Checks the options of gsplat's `rasterization`, and refuses those that the worker does not support.

Workers have gsplat's first pipeline: Gaussians are projected by the camera's Jacobian and evaluated in the image. An
option of another pipeline raises NotImplementedError, since the option exists in gsplat and the argument is valid
there; if it were ignored, the call would return another image and other gradients than those requested. A value that
gsplat does not accept either raises GsplatArgumentError.

Error texts and docs/porting_gsplat.md have the same reasons and alternatives; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument

# The argument's name here, by a part of the path in the request or by the name of the client's own argument.
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


class GsplatArgumentError(InvalidArgument, AssertionError, RuntimeError):
    """An argument of `rasterization` is invalid; the text has its name there.

    It is an AssertionError, as in gsplat 1.5, and a RuntimeError or a ValueError, as in 1.6.
    """


def gsplat_refusals() -> AbstractContextManager[None]:
    """Raises GsplatArgumentError where the client or the worker refuses an argument."""
    return renamed(GsplatArgumentError, _ARGUMENTS)


RENDER_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")
HIT_DISTANCES = ("d", "Ed", "RGB-d", "RGB-Ed")
_CAMERA_MODELS = ("pinhole", "ortho", "fisheye")
_RASTERIZE_MODES = ("classic", "antialiased")

# The defaults of gsplat, which need not be installed here: RollingShutterType.GLOBAL, and a class.
_GLOBAL_SHUTTER = 4
_DEFAULT_RENDERER = "RendererConfig_MixedBatch"


@dataclass(frozen=True)
class Refusal:
    """Why an option of gsplat is not supported.

    Attributes:
        why: the reason.
        instead: what the caller can do.
        expected: the values that are accepted.
    """

    why: str
    instead: str
    expected: str = "None"

    def text(self, value: Any) -> str:
        """The description of the error for a value of the option."""
        return f"expected {self.expected}, got {_shown(value)}; {self.why}; {self.instead}"

    def error(self, name: str, value: Any) -> NotImplementedError:
        """The error for a value of the option `name`."""
        return NotImplementedError(f"{name} is not supported here: {self.text(value)}")


_SIGMA_POINTS = Refusal(
    "the worker projects Gaussians by the camera's Jacobian; projection by sigma points gives another image, and in "
    "gsplat it has no gradient",
    "leave it out",
)
_IN_SPACE = Refusal(
    "the worker evaluates Gaussians in the image; evaluated along rays in space they give another image and other "
    "gradients",
    "leave it out",
    "False",
)
_DISTORTION = Refusal(
    "gsplat takes coefficients of distortion only with with_ut=True",
    "undistort the images, or call lumigrad.client.torch.render_gaussians(distortion=...), which takes k1 k2 p1 p2 k3 "
    "k4 k5 k6 of pinholes",
)
_FTHETA = Refusal(
    "gsplat has this camera model only with with_ut=True, and the worker does not have its Jacobian",
    'use camera_model="fisheye", which is equidistant, and resample the images to it',
)
_LIDAR = Refusal(
    "gsplat has lidars only with with_ut=True, and the worker does not have their Jacobian",
    'render pinholes that cover the scan with render_mode="ED", and read their depths at its angles',
)
_MOVING_CAMERA = Refusal(
    "gsplat moves the camera during an image only with with_ut=True; the worker has one pose for each image",
    "render several poses of the exposure as cameras, and take from each image the rows exposed at its pose",
)

# By option, in the order in which they are checked.
REFUSALS = {
    "distributed": Refusal(
        "gsplat exchanges the Gaussians of all ranks within a process group; the worker is at the other end of a "
        "socket and belongs to none",
        "pass all Gaussians in one call; give each process a worker of its own by target, or divide cameras among "
        "workers by lumigrad.client.torch.render_gaussians(spread=True)",
        "False",
    ),
    "with_ut": replace(_SIGMA_POINTS, expected="False"),
    "with_eval3d": _IN_SPACE,
    "return_normals": Refusal(
        "gsplat computes normals only with with_eval3d=True, and they have no gradient",
        "render the normal of each Gaussian as three channels of colors [.., C, N, 3]",
        "False",
    ),
    "global_z_order": Refusal(
        "gsplat sorts by distance only with with_ut=True; the worker sorts by camera-space Z", "leave it out", "True"
    ),
    "rays": Refusal(
        "gsplat takes rays only with with_eval3d=True", "describe the camera by viewmats, Ks and camera_model"
    ),
    "radial_coeffs": _DISTORTION,
    "tangential_coeffs": _DISTORTION,
    "thin_prism_coeffs": _DISTORTION,
    "ftheta_coeffs": _FTHETA,
    "lidar_coeffs": _LIDAR,
    "external_distortion_coeffs": _DISTORTION,
    "rolling_shutter": replace(_MOVING_CAMERA, expected="GLOBAL"),
    "viewmats_rs": _MOVING_CAMERA,
    "ut_params": _SIGMA_POINTS,
    "extra_signals": Refusal(
        "a call blends one array, of channels or of harmonics, and they have the same weights",
        "append them to colors and split the image; beside harmonics, render them as colors of a second call",
    ),
    "extra_signals_sh_degree": Refusal(
        "the worker clamps the values of harmonics at 0, which gsplat does not for extra signals",
        "evaluate the harmonics for each camera, and render the values as colors [.., C, N, E] of a second call",
    ),
    "renderer_config": Refusal(
        "it selects one of gsplat's implementations of with_eval3d=True",
        "leave it out",
        f"None or {_DEFAULT_RENDERER}()",
    ),
}
CAMERA_MODELS = {
    name: replace(refusal, expected=f"one of {', '.join(_CAMERA_MODELS)}")
    for name, refusal in (("ftheta", _FTHETA), ("lidar", _LIDAR))
}
HARMONICS_PER_CAMERA = Refusal(
    "cameras share one set of coefficients, as in gsplat 1.6",
    "render each camera by a call of its own, or evaluate the harmonics for each camera and pass colors [.., C, N, D]",
    "coefficients [N, K, D], or [.., N, K, D] for each scene",
)
NO_GRADIENT = Refusal(
    'the worker takes gradients of images and of meta["means2d"] only, and without this error the loss would leave the '
    "scene unchanged",
    'detach it, and compute the loss from the tensors that were passed, the image or meta["means2d"]',
)
HIT_DISTANCE = Refusal(
    "gsplat computes distances along rays only with with_eval3d=True",
    "use D or ED, whose depth is camera-space Z, and multiply it by the length of ((x - cx) / fx, (y - cy) / fy, 1)",
    f"one of {', '.join(RENDER_MODES)}",
)


def refuse_unsupported(options: Mapping[str, Any]) -> None:
    """Raises NotImplementedError for the first unsupported option that differs from gsplat's default."""
    for name, refusal in REFUSALS.items():
        if not _is_default(name, options[name]):
            raise refusal.error(name, options[name])


def _is_default(name: str, value: Any) -> bool:
    if name == "global_z_order":
        return bool(value)
    if name == "rolling_shutter" and value is not None:
        return getattr(value, "name", "") == "GLOBAL" or bool(value == _GLOBAL_SHUTTER)
    if name == "renderer_config" and type(value).__name__ == _DEFAULT_RENDERER:
        return True
    return value is None or value is False


def check_modes(render_mode: str, camera_model: str, rasterize_mode: str) -> None:
    """Raises NotImplementedError for modes that only gsplat has, GsplatArgumentError for unknown ones."""
    if render_mode in HIT_DISTANCES:
        raise HIT_DISTANCE.error("render_mode", render_mode)
    if camera_model in tuple(CAMERA_MODELS):
        raise CAMERA_MODELS[camera_model].error("camera_model", camera_model)
    with gsplat_refusals():
        one_of("render_mode", render_mode, RENDER_MODES)
        one_of("camera_model", camera_model, _CAMERA_MODELS)
        one_of("rasterize_mode", rasterize_mode, _RASTERIZE_MODES)


def _shown(value: Any) -> str:
    """A tensor's shape, the name of an enum's value, the repr of a number or string, else the type's name."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
