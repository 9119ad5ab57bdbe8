"""gsplat's `rasterization_2dgs`, which renders flat Gaussians on a worker."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.compat.gsplat.harmonics import colors_per_camera, has_harmonics_per_camera
from lumigrad.client.compat.gsplat.meta import Intermediates, meta_of
from lumigrad.client.compat.gsplat.options import RENDER_MODES, GsplatArgumentError, gsplat_refusals
from lumigrad.client.compat.gsplat.projection import rotations
from lumigrad.client.compat.gsplat.rasterization import LEAST_NEAR, no_colors, picture
from lumigrad.client.default import default_client
from lumigrad.client.operators.gaussians import GaussianCall, ViewMatrices, with_derived
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.torch.gaussian_inputs import Prepared, prepared
from lumigrad.client.torch.gaussian_nodes import Rendering, SparseRows, draw, project
from lumigrad.client.torch.remote import full_precision, outside_graphs, run
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
    rows = SparseRows()
    if packed and sparse_grad:
        means, quats, scales = map(rows.of, (means, quats, scales))
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
    values = Intermediates(
        _Geometry(tensors, frame), (*tensors.views, tensors.count), tensors.device, packed, names=_NAMES
    )
    rows.seen = (values.compute("radii") > 0).all(dim=-1).any(dim=-2)
    rendering = Rendering(call, frame, values.layout, absgrad)
    centres, _ = project(rendering, values["means2d"], tensors.inputs)
    values.centres, values.is_read = centres, True
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
    meta = meta_of(values, tensors, (width, height), tile_size, boxes=True, tiles=True)
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
    """Projects surfels on a worker, which also draws them; the arguments are those of `rasterization_2dgs`.

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


def _check_modes(render_mode: str, depth_mode: str, distloss: bool) -> None:
    with gsplat_refusals():
        one_of("render_mode", render_mode, RENDER_MODES)
        one_of("depth_mode", depth_mode, _DEPTH_MODES)
    if distloss and render_mode == "RGB":
        text = "expected False with render_mode='RGB', got True; pass a mode with depths, as 'RGB+ED'"
        raise GsplatArgumentError.of("distloss", text)


# Values of `meta` for each surfel; depths are computed here, so that they have a gradient.
_NAMES = ("radii", "means2d", "depths", "ray_transforms", "opacities", "normals")


class _Geometry:
    """Computes the values of `_NAMES` [.., C, N, ...], 0 for surfels that are not visible."""

    def __init__(self, tensors: Prepared, frame: Frame) -> None:
        self._tensors = tensors
        self._seen = {name: tensors.placed(torch.from_numpy(frame[name])) for name in ("radii", "means2d")}

    def __call__(self, name: str) -> torch.Tensor:
        return self._seen[name] if name in self._seen else self._found[name]

    @cached_property
    @full_precision
    def _found(self) -> dict[str, torch.Tensor]:
        """Values that are part of the graph of the inputs.

        "ray_transforms" [3, 3] map (u, v, 1) to homogeneous pixels; "normals" [3] are in the camera's frame, turned
        towards the camera.
        """
        found = self._tensors.inputs
        means, quats, scales, opacities = (found[name] for name in ("means", "quats", "scales", "opacities"))
        view, k = found["view"], found["projection"]
        assert means is not None and quats is not None and scales is not None and opacities is not None
        assert view is not None and k is not None
        rotation = view[..., :3, :3].float()
        axes = rotation[..., None, :, :] @ rotations(quats)[..., None, :, :, :]
        centres = (rotation[..., None, :, :] @ means[..., None, :, :, None])[..., 0] + view[..., None, :3, 3].float()
        scaled = axes[..., :2] * scales[..., None, :, None, :2]
        normals = axes[..., 2]
        away = (normals * centres).sum(dim=-1, keepdim=True) >= 0
        every = {
            "depths": centres[..., 2],
            "ray_transforms": k[..., None, :, :].float() @ torch.cat([scaled, centres[..., None]], dim=-1),
            "opacities": opacities[..., None, :].expand(centres.shape[:-1]),
            "normals": torch.where(away, -normals, normals),
        }
        seen = (self._seen["radii"] > 0).all(dim=-1).to(means.device)
        return {
            name: torch.where(seen.reshape(*seen.shape, *(1,) * (values.ndim - seen.ndim)), values, 0.0)
            for name, values in every.items()
        }
