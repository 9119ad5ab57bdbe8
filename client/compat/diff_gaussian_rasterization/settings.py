"""The rasterizer's settings, and checks of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.gaussians import INPUTS
from lumigrad.client.torch.remote import on_host


class GaussianRasterizationSettings(NamedTuple):
    """The camera and the rendering options.

    Attributes:
        image_height: pixels.
        image_width: pixels.
        tanfovx: tangent of half the horizontal field of view.
        tanfovy: tangent of half the vertical field of view.
        bg: [3] background, or one number for all channels.
        scale_modifier: factor on all scales.
        viewmatrix: [4, 4] world to camera, for row vectors. Leading axes of 1 are allowed, also in projmatrix and
            campos.
        projmatrix: [4, 4] world to normalised device coordinates, for row vectors; float64 is kept.
        sh_degree: degree of the spherical harmonics in use.
        campos: [3] the eye, world frame, scene units.
        prefiltered: accepted, without effect; in the original it skips a test of visibility, with the same pictures.
        debug: accepted, without effect; errors are explained in any case.
        antialiasing: reduce opacities as much as the blur enlarges each Gaussian. The original has this setting since
            October 2024, and then returns the inverse depth; None: as in the version with depth.
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
    antialiasing: bool | None = None


_ARGUMENTS = {
    "means": "means3D",
    "quats": "rotations",
    "scales": "scales",
    "covariances": "cov3D_precomp",
    "opacities": "opacities",
    "sh": "shs",
    "colors": "colors_precomp",
    "sh_degree": "raster_settings.sh_degree",
    "background": "raster_settings.bg",
    "scale_modifier": "raster_settings.scale_modifier",
    "view_matrix": "raster_settings.viewmatrix",
    "full_projection": "raster_settings.projmatrix",
    "position": "raster_settings.campos",
    "tan_fov_x": "raster_settings.tanfovx",
    "tan_fov_y": "raster_settings.tanfovy",
    "width": "raster_settings.image_width",
    "height": "raster_settings.image_height",
}


def inria_refusals() -> AbstractContextManager[None]:
    """Raises InvalidArgument with the original's names where the client or the worker refuses an argument."""
    return renamed(InvalidArgument, _ARGUMENTS)


def inria_inputs(
    settings: GaussianRasterizationSettings, camera_gradients: bool, scene: Mapping[str, torch.Tensor | None]
) -> dict[str, torch.Tensor | None]:
    """Returns tensors by the names of `INPUTS`, on the CPU.

    Args:
        settings: the camera and the background; a single number is the background of all channels.
        camera_gradients: whether the camera gets gradients, which it does not in the original.
        scene: all of the scene's tensors by those names. Axes of length 1 of opacities are removed, and harmonics are
            cut to the degree in use.
    """
    _check_alternatives(scene)
    inputs: dict[str, torch.Tensor | None] = dict.fromkeys(INPUTS)
    given = {**scene, "sh": _active(scene["sh"], settings.sh_degree)}
    inputs |= {name: None if value is None else on_host(_ARGUMENTS[name], value) for name, value in given.items()}
    opacities, channels = inputs["opacities"], inputs["sh"] if inputs["colors"] is None else inputs["colors"]
    assert opacities is not None and channels is not None
    inputs["opacities"] = _row(opacities)
    inputs["background"] = _background(settings.bg, channels.shape[-1] if channels.ndim else 0)
    for name, field in (("view", "viewmatrix"), ("projection", "projmatrix"), ("position", "campos")):
        # Many programs pass [1, 4, 4] and [1, 3]; the original does not look at shapes.
        tensor = on_host(f"raster_settings.{field}", getattr(settings, field), torch.float64).squeeze()
        inputs[name] = tensor if camera_gradients else tensor.detach()
    return inputs


def centres_of(
    means2D: torch.Tensor | None, count: int, settings: GaussianRasterizationSettings
) -> torch.Tensor | None:
    """Returns [1, N, 2], `means2D` scaled to pixels, so that it gets gradients in normalised device coordinates."""
    if means2D is None:
        return None
    tensor = on_host("means2D", means2D)
    if tensor.ndim != 2 or len(tensor) != count or tensor.shape[1] < 2:
        raise InvalidArgument.of("means2D", f"expected shape [{count}, 3], got {list(tensor.shape)}")
    # A picture spans two units of normalised device coordinates.
    pixels = tensor.new_tensor([0.5 * settings.image_width, 0.5 * settings.image_height])
    return (tensor[:, :2] * pixels)[None]


def _check_alternatives(scene: Mapping[str, Any]) -> None:
    has = {name: value is not None for name, value in scene.items()}
    if has["sh"] == has["colors"]:
        given = "both" if has["sh"] else "neither"
        raise InvalidArgument.of("shs", f"expected either shs or colors_precomp, got {given}")
    if has["scales"] != has["quats"]:
        missing = "rotations" if has["scales"] else "scales"
        raise InvalidArgument.of(missing, "expected scales and rotations together, got one of them")
    if has["scales"] == has["covariances"]:
        given = "both" if has["scales"] else "neither"
        raise InvalidArgument.of("cov3D_precomp", f"expected either scales and rotations or cov3D_precomp, got {given}")


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor as a vector if all axes but one have length 1, and other tensors unchanged."""
    return tensor.reshape(-1) if tensor.numel() in tensor.shape else tensor


def _background(bg: Any, channels: int) -> torch.Tensor:
    tensor = on_host("raster_settings.bg", bg)
    if tensor.ndim:
        return _row(tensor)
    # gsplat's wrapper of the original passes only the first number of a camera's colour, for backgrounds [C, 3].
    whole = bg._base if isinstance(bg, torch.Tensor) else None
    if whole is not None and not (whole == bg).all():
        raise InvalidArgument.of(
            "raster_settings.bg",
            f"expected shape [{channels}], got one number out of a tensor {list(whole.shape)} of several; "
            "give gsplat's rasterization_inria_wrapper backgrounds of shape [1, C, 3]",
        )
    return tensor.expand(channels)


def _active(shs: torch.Tensor | None, degree: int) -> torch.Tensor | None:
    """Returns the coefficients in use; the others are not sent."""
    return shs if shs is None or shs.ndim != 3 else shs[:, : (degree + 1) ** 2]
