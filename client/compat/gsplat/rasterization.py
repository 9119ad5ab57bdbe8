"""gsplat's `rasterization`, which renders on a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from lumigrad.client.base.arguments import whole_number
from lumigrad.client.compat.gsplat.meta import intermediates
from lumigrad.client.compat.gsplat.options import (
    HARMONICS_PER_CAMERA,
    GsplatArgumentError,
    check_modes,
    check_rays,
    check_sigma_points,
    gsplat_refusals,
    refuse_unsupported,
)
from lumigrad.client.default import default_client
from lumigrad.client.operators.gaussians import GaussianCall, ViewMatrices, projection_of
from lumigrad.client.operators.sensors import SensorMatrices
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.engines import GaussianSettings
from lumigrad.client.torch.gaussian_inputs import Prepared, prepared
from lumigrad.client.torch.gaussian_nodes import Layout, Rendering, draw, project
from lumigrad.client.torch.gaussians import with_derived
from lumigrad.client.torch.remote import outside_graphs, run
from lumigrad.client.torch.sensors import check_without, intrinsics_of, sensor_settings, sensors

_TILE_SIZE = 16
_RAY_TILE_SIZE, _LARGE_PICTURE = 8, 1080
_PER_GAUSSIAN = ("radii", "means2d", "depths", "conics", "projected_opacities")
# Replaces a near plane of 0, with which gsplat divides by zero for Gaussians in the camera's plane.
_LEAST_NEAR = 1e-6


@outside_graphs
def rasterization(
    means: torch.Tensor,
    quats: torch.Tensor | None,
    scales: torch.Tensor | None,
    opacities: torch.Tensor,
    colors: torch.Tensor | None,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int | None = None,
    backgrounds: torch.Tensor | None = None,
    render_mode: str = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: str = "classic",
    channel_chunk: int = 32,
    distributed: bool = False,
    camera_model: str = "pinhole",
    segmented: bool = False,
    covars: torch.Tensor | None = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    return_normals: bool = False,
    global_z_order: bool = True,
    rays: torch.Tensor | None = None,
    radial_coeffs: torch.Tensor | None = None,
    tangential_coeffs: torch.Tensor | None = None,
    thin_prism_coeffs: torch.Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: torch.Tensor | None = None,
    ut_params: Any = None,
    extra_signals: torch.Tensor | None = None,
    extra_signals_sh_degree: int | None = None,
    renderer_config: Any = None,
    *,
    target: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Renders Gaussians on a worker like gsplat's function of this name, gradients included.

    Args:
        means: [.., N, 3] centres, scene units.
        quats: [.., N, 4] rotations (w, x, y, z), of any length.
        scales: [.., N, 3] standard deviations, scene units; the absolute values of negative ones are used.
        opacities: [.., N] in [0, 1].
        colors: [.., N, D] or [.., C, N, D] channels; with sh_degree [N, K, D] or [.., N, K, D] coefficients. May be
            None if only the depth is rendered.
        viewmats: [.., C, 4, 4] world to camera.
        Ks: [.., C, 3, 3] intrinsics, pixels. Unlike the original's they get a gradient, if they require one.
        width: picture width, pixels.
        height: picture height, pixels.
        near_plane: least depth shown, scene units.
        far_plane: largest depth shown, scene units.
        radius_clip: Gaussians with radii of at most this many pixels are not shown.
        eps2d: blur in the picture, pixels squared.
        sh_degree: degree in use; None: colors are channels, not coefficients.
        packed: intermediate results hold visible Gaussians only, [nnz, ...].
        tile_size: edge of the tiles in the third result, pixels; None: 16, along rays of small pictures 8. Pictures
            depend on it only with `with_ut`.
        backgrounds: [.., C, D]; None: 0.
        render_mode: "RGB", "D" (accumulated depth), "ED" (expected depth), "RGB+D" or "RGB+ED"; with `with_eval3d` also
            "d", "Ed", "RGB-d" and "RGB-Ed", with distances along rays.
        sparse_grad: with `packed`: gradients of means, quats and scales are COO tensors.
        absgrad: after backward `meta["means2d"].absgrad` has the sums of absolute gradients.
        rasterize_mode: "classic" or "antialiased".
        channel_chunk: accepted, without effect; any number of channels is rendered at once.
        distributed: must be False.
        camera_model: "pinhole", "ortho", "fisheye" or, with `with_ut`, "ftheta" or "lidar".
        segmented: accepted, without effect.
        covars: [.., N, 3, 3] covariances, instead of quats and scales.
        with_ut: project by sigma points, through real lenses and shutters. Like gsplat's, these pictures have no
            gradients through the projection; `lumigrad.client.torch.render_gaussians` has them.
        with_eval3d: with `with_ut`: evaluate Gaussians along the rays of pixels; gradients then reach means, quats and
            scales, and given rays.
        return_normals: with `with_eval3d`: `meta["normals"]` has the third axes [.., C, H, W, 3], turned against the
            rays and blended.
        global_z_order: with `with_ut`: sort by, and measure depth along, z; False: as distance from the camera.
        rays: with `with_eval3d`: [.., C, H, W, 6] origin and direction for each pixel, world frame.
        radial_coeffs: with `with_ut`, as all up to ut_params: [.., C, 1 to 6] of a pinhole, [.., C, 4] of a fisheye.
        tangential_coeffs: [.., C, 2] of a pinhole.
        thin_prism_coeffs: [.., C, 4] of a pinhole.
        ftheta_coeffs: FThetaCameraDistortionParameters.
        lidar_coeffs: with `with_eval3d`: RowOffsetStructuredSpinningLidarModelParameters; the picture has the size of
            its tables.
        external_distortion_coeffs: BivariateWindshieldModelParameters.
        rolling_shutter: RollingShutterType, also gsplat's own; None: GLOBAL.
        viewmats_rs: [.., C, 4, 4] poses at the end of the exposure, with a rolling shutter.
        ut_params: UnscentedTransformParameters; None: the defaults.
        extra_signals: must be None.
        extra_signals_sh_degree: must be None.
        renderer_config: must be None, or gsplat's default; with `with_eval3d` either of gsplat's two.
        target: the worker's address; None: LUMIGRAD_TARGET, else localhost:50051.

    Returns:
        Colours [.., C, H, W, X], alphas [.., C, H, W, 1] and a dictionary of intermediate results, on the device of the
        means. X is D, 1 for a depth alone, D + 1 for both.

    Raises:
        NotImplementedError: an option of gsplat is not supported; the text names it, the reason, and what to do.
        GsplatArgumentError: an argument is invalid.
    """
    given = locals()
    refuse_unsupported(given)
    check_modes(render_mode, camera_model, rasterize_mode)
    if with_ut:
        check_sigma_points(given)
    if not with_eval3d:
        check_rays(given)
    # gsplat uses only squares of scales, and optimisers that step them without an activation may make them negative.
    scales = scales.abs() if isinstance(scales, torch.Tensor) else scales
    if "RGB" not in render_mode:
        colors, sh_degree, backgrounds = _no_colors(means), None, None
    if sh_degree is not None and _per_camera(colors, means):
        raise GsplatArgumentError.of("colors", HARMONICS_PER_CAMERA.text(colors))
    with gsplat_refusals():
        # gsplat has the smaller tiles along rays, but for large pictures.
        default = _RAY_TILE_SIZE if with_eval3d and min(width, height) < _LARGE_PICTURE else _TILE_SIZE
        tile_size = whole_number("tile_size", default if tile_size is None else tile_size, 1, 1 << 15)
        tensors = prepared(
            means=means, quats=quats, scales=scales, opacities=opacities, colors=colors, viewmats=viewmats,
            Ks=intrinsics_of(given), sh_degree=sh_degree, backgrounds=backgrounds, covars=covars,
        )  # fmt: skip
        tensors, cameras, settings = _cameras(given, tensors)
        call = GaussianCall(
            client=default_client(target),
            settings=GaussianSettings(
                semantics="gsplat",
                sh_degree=sh_degree,
                antialiased=rasterize_mode == "antialiased",
                eps2d=eps2d,
                near=near_plane or _LEAST_NEAR,
                far=far_plane,
                radius_clip=radius_clip,
                **settings,
            ),
            cameras=cameras,
            batch=tensors.batch,
            outputs=(*_images(render_mode), *(("normals",) if return_normals else ()), *_PER_GAUSSIAN),
            sparse=packed and sparse_grad,
        )
        frame = run(call, tensors.inputs)
    coordinate = ("means", "quats", "scales") if packed and sparse_grad else ()
    rendering = Rendering(call, frame, _layout(frame, tensors, packed), absgrad, coordinate)
    if with_eval3d:
        # As in gsplat, the projected centres have no gradient.
        centres = rendering.layout.arrange(frame.means2d)
        images = with_derived(draw(replace(rendering, absgrad=False), None, None, tensors.inputs))
    else:
        centres, echo = project(rendering, tensors.inputs)
        images = with_derived(draw(rendering, centres, echo, tensors.inputs))
    meta = intermediates(rendering, centres, tensors, tile_size, boxes=with_ut)
    if return_normals:
        meta["normals"] = tensors.placed(images["normals"])
    return tensors.placed(_picture(images, render_mode)), tensors.placed(images["alpha"][..., None]), meta


def _cameras(
    given: Mapping[str, Any], tensors: Prepared
) -> tuple[Prepared, ViewMatrices | SensorMatrices, dict[str, Any]]:
    """The inputs with those of lenses, the cameras, and the settings that sensors have, by gsplat's conventions."""
    if not given["with_ut"]:
        check_without(given)
        return tensors, ViewMatrices(given["width"], given["height"], projection_of(given["camera_model"])), {}
    cameras, inputs = sensors(given, tensors, "staircase", "gsplat")
    tensors = replace(tensors, inputs={**tensors.inputs, **inputs})
    return tensors, cameras, sensor_settings(given, "gsplat")


def _images(render_mode: str) -> tuple[str, ...]:
    parts = {"color": "RGB", "depth": "D", "hit_distance": "d"}
    return (*(name for name, sign in parts.items() if sign in render_mode), "transmittance")


def _no_colors(means: torch.Tensor) -> torch.Tensor:
    """Placeholder colours, for outputs that do not depend on colours."""
    if not isinstance(means, torch.Tensor):
        raise GsplatArgumentError.of("means", f"expected a tensor, got {type(means).__name__}")
    return torch.zeros(*means.shape[:-1], 1)


def _per_camera(harmonics: Any, means: Any) -> bool:
    both = isinstance(harmonics, torch.Tensor) and isinstance(means, torch.Tensor)
    return both and harmonics.ndim == means.ndim + 2


def _layout(frame: Frame, tensors: Prepared, packed: bool) -> Layout:
    visible = None
    if packed:
        visible = (torch.from_numpy(frame.radii) > 0).all(dim=-1).reshape(-1).nonzero().flatten()
    return Layout((*tensors.views, tensors.count), visible, tensors.device)


def _picture(images: dict[str, torch.Tensor], render_mode: str) -> torch.Tensor:
    parts = [images["color"]] if "RGB" in render_mode else []
    if render_mode != "RGB":
        name = "hit_distance" if "d" in render_mode else "depth"
        parts.append(images[f"expected_{name}" if "E" in render_mode else name][..., None])
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
