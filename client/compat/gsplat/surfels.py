"""gsplat's `rasterization_2dgs`, which renders flat Gaussians on a worker."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.compat.gsplat.harmonics import colors_per_camera, has_harmonics_per_camera
from lumigrad.client.compat.gsplat.meta import Meta
from lumigrad.client.compat.gsplat.options import (
    RENDER_MODES,
    GsplatArgumentError,
    gsplat_refusals,
)
from lumigrad.client.compat.gsplat.projection import rotations
from lumigrad.client.compat.gsplat.rasterization import (
    LEAST_NEAR,
    no_colors,
    picture,
)
from lumigrad.client.compat.gsplat.tiles import Intersections, Projected, intersect
from lumigrad.client.default import default_client
from lumigrad.client.operators.gaussians import GaussianCall, ViewMatrices
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.torch.gaussian_inputs import Prepared, prepared
from lumigrad.client.torch.gaussian_nodes import Layout, Rendering, draw, project
from lumigrad.client.torch.gaussians import with_derived
from lumigrad.client.torch.remote import outside_graphs, run
from lumigrad.client.torch.surfels import surface_normals, three_scales

_DEPTH_MODES = ("expected", "median")
_PER_SURFEL = ("radii", "means2d", "depths")


@outside_graphs
def rasterization_2dgs(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
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
    packed: bool = False,
    tile_size: int = 16,
    backgrounds: torch.Tensor | None = None,
    render_mode: str = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    distloss: bool = False,
    depth_mode: str = "expected",
    *,
    target: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Renders flat Gaussians on a worker like gsplat's function of this name, gradients included.

    The arguments are those of `rasterization`, but `scales` may be [.., N, 2], since the third is not used; `eps2d` has
    no effect, as in gsplat; `tile_size` is 4, 8 or 16 pixels, and surfels are cut at the tiles that their boxes meet,
    as in gsplat; `absgrad` is that of `meta["gradient_2dgs"]`. With `distloss` the distortion is computed, which needs
    a mode with depths; without it, it is 0. `depth_mode` is the depth of the surface whose normals are returned:
    "expected", the depth in the picture, or "median".

    Returns:
        Colours [.., C, H, W, X], alphas [.., C, H, W, 1], blended normals [.., C, H, W, 3] (world frame), normals of
        the surface that the depth describes [.., C, H, W, 3] (None without colours and depth; as in gsplat a first axis
        of length 1 is missing), distortion and median depth [.., C, H, W, 1], and a dictionary of intermediate results.
        After backward `meta["gradient_2dgs"].grad` has what gsplat's density control takes.

    Raises:
        GsplatArgumentError: an argument is invalid.
    """
    del eps2d
    _check_modes(render_mode, depth_mode, distloss)
    # Scales may be negative, as for volumes, if optimisers step them without an activation.
    scales = three_scales(scales.abs()) if isinstance(scales, torch.Tensor) else scales
    if "RGB" not in render_mode:
        colors, sh_degree, backgrounds = no_colors(means), None, None
    if sh_degree is not None and has_harmonics_per_camera(colors, means):
        colors, sh_degree = colors_per_camera(colors, sh_degree, means, viewmats), None
    with gsplat_refusals():
        one_of("tile_size", tile_size, (4, 8, 16))
        tensors = prepared(
            means=means, quats=quats, scales=scales, opacities=opacities, colors=colors, viewmats=viewmats, Ks=Ks,
            sh_degree=sh_degree, background=backgrounds,
        )  # fmt: skip
        call = GaussianCall(
            client=default_client(target),
            settings=GaussianSettings(
                semantics="gsplat",
                primitive="surfel",
                sh_degree=sh_degree,
                near=near_plane or LEAST_NEAR,
                far=far_plane,
                radius_clip=radius_clip,
                tile_size=tile_size,
            ),
            cameras=ViewMatrices(width, height),
            batch=tensors.batch,
            outputs=(
                *_images(render_mode), "median_depth", "normals", *(("distortion",) if distloss else ()), *_PER_SURFEL
            ),
            sparse=packed and sparse_grad,
        )  # fmt: skip
        frame = run(call, tensors.inputs)
    coordinate = ("means", "quats", "scales") if packed and sparse_grad else ()
    rendering = Rendering(call, frame, _layout(frame, tensors, packed), absgrad, coordinate)
    centres, _ = project(rendering, rendering.layout.arrange(frame.means2d), tensors.inputs)
    # A leaf, whose gradient follows from the images alone.
    densify = torch.zeros_like(centres, requires_grad=True)
    images = with_derived(draw(rendering, densify, None, tensors.inputs))
    shown = {name: tensors.placed(image) for name, image in images.items()}
    median = shown["median_depth"][..., None]
    distortion = shown["distortion"][..., None] if distloss else torch.zeros_like(median)
    colors_and_depth = picture(shown, render_mode)
    surface = None
    if render_mode in ("RGB+D", "RGB+ED"):
        depth = median[..., 0] if depth_mode == "median" else colors_and_depth[..., -1]
        surface = surface_normals(depth, tensors).squeeze(0)
    meta = _meta(rendering, centres, tensors, tile_size)
    meta.update(render_distort=distortion, gradient_2dgs=densify)
    return colors_and_depth, shown["alpha"][..., None], shown["normals"], surface, distortion, median, meta


def fully_fused_projection_2dgs(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    packed: bool = False,
    sparse_grad: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Projects surfels on a worker, which draws them for that; the arguments are those of `rasterization_2dgs`.

    Returns:
        radii int32 [.., C, N, 2], pixels; means2d [.., C, N, 2], pixels; depths [.., C, N]; ray_transforms
        [.., C, N, 3, 3], from (u, v, 1) to homogeneous pixels; normals [.., C, N, 3] in the camera's frame. With
        `packed` [nnz, ...], and before these batch_ids, camera_ids, gaussian_ids and indptr int32 [B C + 1].

    Raises:
        GsplatArgumentError: an argument is invalid.
    """
    if sparse_grad and not packed:
        raise GsplatArgumentError.of("sparse_grad", "expected False without packed=True, got True")
    *_, meta = rasterization_2dgs(
        means, quats, scales, torch.ones_like(means[..., 0]), None, viewmats, Ks, width, height, near_plane, far_plane,
        radius_clip, eps2d, packed=packed, sparse_grad=sparse_grad, render_mode="D",
    )  # fmt: skip
    found = tuple(meta[name] for name in ("radii", "means2d", "depths", "ray_transforms", "normals"))
    if not packed:
        return found
    ids = tuple(meta[name] for name in ("batch_ids", "camera_ids", "gaussian_ids"))
    views = ids[0] * meta["n_cameras"] + ids[1]
    ends = torch.bincount(views, minlength=meta["n_batches"] * meta["n_cameras"]).cumsum(0).int()
    return *ids, torch.nn.functional.pad(ends, (1, 0)), *found


def _images(render_mode: str) -> tuple[str, ...]:
    parts = {"color": "RGB", "depth": "D"}
    return (*(name for name, sign in parts.items() if sign in render_mode), "transmittance")


def _layout(frame: Frame, tensors: Prepared, packed: bool) -> Layout:
    """Return the positions of the values of each surfel; packed: of visible ones alone."""
    visible = None
    if packed:
        visible = (torch.from_numpy(frame.radii) > 0).all(dim=-1).reshape(-1).nonzero().flatten()
    return Layout((*tensors.views, tensors.count), visible, tensors.device)


def _ids(layout: Layout, tensors: Prepared) -> dict[str, torch.Tensor | None]:
    """The scene, camera and surfel of each packed row, or None for each if results are not packed."""
    names = ("batch_ids", "camera_ids", "gaussian_ids")
    if layout.visible is None:
        return dict.fromkeys(names)
    view = layout.visible // tensors.count
    ids = (view // tensors.cameras, view % tensors.cameras, layout.visible % tensors.count)
    return {name: values.to(layout.device) for name, values in zip(names, ids, strict=True)}


def _check_modes(render_mode: str, depth_mode: str, distloss: bool) -> None:
    with gsplat_refusals():
        one_of("render_mode", render_mode, RENDER_MODES)
        one_of("depth_mode", depth_mode, _DEPTH_MODES)
    if distloss and render_mode == "RGB":
        text = "expected False with render_mode='RGB', got True; pass a mode with depths, as 'RGB+ED'"
        raise GsplatArgumentError.of("distloss", text)


def _meta(rendering: Rendering, centres: torch.Tensor, tensors: Prepared, tile_size: int) -> Meta:
    """The dictionary of intermediate results; some are computed when they are read."""
    frame, layout = rendering.frame, rendering.layout
    camera = frame.request.cameras[0]
    tile_width, tile_height = math.ceil(camera.width / tile_size), math.ceil(camera.height / tile_size)
    radii = layout.arrange(frame.radii)
    geometry = cache(lambda: _geometry(tensors, frame.radii))
    lists = cache(
        lambda: _tiles(centres, radii, layout.arrange(frame.depths), layout, tile_size, tile_width, tile_height)
    )
    later: dict[str, Callable[[], Any]] = {
        **{name: partial(lambda one: layout.arrange(geometry()[one]), name) for name in _GEOMETRY},
        "tiles_per_gauss": lambda: lists().tiles_per_gauss.reshape(radii.shape[:-1]),
        "isect_ids": lambda: lists().isect_ids,
        "flatten_ids": lambda: lists().flatten_ids,
        "isect_offsets": lambda: lists().offsets.reshape(*tensors.views, tile_height, tile_width),
    }
    values = {
        **_ids(layout, tensors),
        "radii": radii,
        "means2d": centres,
        **dict.fromkeys(later),
        "tile_width": tile_width,
        "tile_height": tile_height,
        "width": camera.width,
        "height": camera.height,
        "tile_size": tile_size,
        "n_batches": math.prod(tensors.batch),
        "n_cameras": tensors.cameras,
    }
    return Meta(values, later)


_GEOMETRY = ("depths", "ray_transforms", "opacities", "normals")


def _geometry(tensors: Prepared, radii: Any) -> dict[str, torch.Tensor]:
    """Values per surfel [V, N, ...], in the graph of the inputs; 0 for surfels that are not visible.

    "ray_transforms" [3, 3] map (u, v, 1) to homogeneous pixels; "normals" [3] are in the camera's frame, turned to it.
    """
    found = tensors.inputs
    means, quats, scales, opacities = (found[name] for name in ("means", "quats", "scales", "opacities"))
    view, k = found["view"], found["projection"]
    assert means is not None and quats is not None and scales is not None and opacities is not None
    assert view is not None and k is not None
    rotation = view[..., :3, :3].float()
    axes = rotation[..., None, :, :] @ rotations(quats)[..., None, :, :, :]
    centres = (rotation[..., None, :, :] @ means[..., None, :, :, None])[..., 0] + view[..., None, :3, 3].float()
    scaled = axes[..., :2] * scales[..., None, :, None, :2]
    transforms = k[..., None, :, :].float() @ torch.cat([scaled, centres[..., None]], dim=-1)
    normals = axes[..., 2]
    away = (normals * centres).sum(dim=-1, keepdim=True) >= 0
    every = {
        "depths": centres[..., 2],
        "ray_transforms": transforms,
        "opacities": opacities[..., None, :].expand(centres.shape[:-1]),
        "normals": torch.where(away, -normals, normals),
    }
    seen = (torch.as_tensor(radii) > 0).all(dim=-1)
    shaped = {name: values.reshape(*seen.shape, *values.shape[centres.ndim - 1 :]) for name, values in every.items()}
    return {
        name: torch.where(seen.reshape(*seen.shape, *(1,) * (values.ndim - 2)), values, 0.0)
        for name, values in shaped.items()
    }


def _tiles(
    centres: torch.Tensor,
    radii: torch.Tensor,
    depths: torch.Tensor,
    layout: Layout,
    tile_size: int,
    tile_width: int,
    tile_height: int,
) -> Intersections:
    """The tiles that the box of each surfel meets."""
    axes = 1 if layout.visible is not None else len(layout.shape)
    flat = [values.detach().flatten(0, axes - 1) for values in (centres, radii, depths)]
    rows = torch.arange(len(flat[0])) if layout.visible is None else layout.visible
    images = (rows // layout.shape[-1]).to(layout.device)
    # Boxes depend on neither conics nor opacities.
    nothing = flat[0].new_zeros(0)
    projected = Projected(images, flat[0], flat[1], nothing, nothing, flat[2])
    count = math.prod(layout.shape[:-1])
    return intersect(projected, count, tile_size, tile_width, tile_height, boxes=True)
