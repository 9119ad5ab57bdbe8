"""`render_gaussians_2d`: flat Gaussians (surfels) as a differentiable torch operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lumigrad.client.base.arrays import summary
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.call import chosen, is_number
from lumigrad.client.operators.cameras import sensor_inputs, views_of
from lumigrad.client.operators.gaussians import GaussianCall, moving_slices, travelling
from lumigrad.client.settings.fields import GaussianFields
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.torch.gaussian_inputs import TENSORS, Prepared, check_cameras, of_cameras, prepared
from lumigrad.client.torch.gaussians import rendered
from lumigrad.client.torch.remote import on_host, outside_graphs, refuse_gradients
from lumigrad.client.values.camera import Camera

if TYPE_CHECKING:
    from typing_extensions import Unpack

SURFEL_OUTPUTS = (
    *("color", "alpha", "depth", "expected_depth", "median_depth", "normals", "surface_normals", "distortion"),
)
# Outputs on request, of which transmittance and means2d have gradients.
MORE_SURFEL_OUTPUTS = ("transmittance", "means2d", "contributors", "ids", "radii", "depths")
# Square of the smallest length by which normals are divided.
_LEAST_SQUARE = 1e-24


class RenderedSurfels(NamedTuple):
    """Images, on the device of the means. Outputs that were not requested are None.

    Batched inputs add leading sizes before C.

    Attributes:
        color: [C, H, W, D].
        alpha: [C, H, W] 1 - transmittance.
        depth: [C, H, W] sum of the centres' camera-space Z times blending weight, scene units.
        expected_depth: [C, H, W] depth / alpha; 0 where alpha is 0.
        median_depth: [C, H, W] Z of the last surfel blended while the transmittance is above 1/2; 0 where none is.
        normals: [C, H, W, 3] sum of normals, turned to the camera, times blending weight; world frame.
        surface_normals: [C, H, W, 3] unit normals of the surface that expected_depth describes, world frame; 0 on the
            border.
        distortion: [C, H, W] 2 times the sum, over pairs of surfels, of the product of their weights and the difference
            of their depths, scene units.
        transmittance: [C, H, W] weight of the background.
        means2d: [C, N, 2] centres of bounding boxes, pixels; 0 where culled. Part of the graph: `retain_grad` works.
        contributors: int32 [C, H, W] number of surfels blended.
        radii: int32 [C, N, 2] half extents, pixels; 0 where culled.
        depths: [C, N] camera-space Z of the centres.
        ids: int32 [C, H, W] index of the surfel with the largest blending weight; -1 where none was blended.
    """

    color: torch.Tensor
    alpha: torch.Tensor | None = None
    depth: torch.Tensor | None = None
    expected_depth: torch.Tensor | None = None
    median_depth: torch.Tensor | None = None
    normals: torch.Tensor | None = None
    surface_normals: torch.Tensor | None = None
    distortion: torch.Tensor | None = None
    transmittance: torch.Tensor | None = None
    means2d: torch.Tensor | None = None
    contributors: torch.Tensor | None = None
    radii: torch.Tensor | None = None
    depths: torch.Tensor | None = None
    ids: torch.Tensor | None = None

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._asdict())


@outside_graphs
def render_gaussians_2d(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor,
    colors: torch.Tensor,
    viewmats: torch.Tensor | None = None,
    Ks: torch.Tensor | None = None,
    *,
    camera: Camera | Sequence[Camera] | None = None,
    width: int | None = None,
    height: int | None = None,
    background: torch.Tensor | Sequence[float] | float | None = None,
    settings: GaussianSettings | None = None,
    outputs: Sequence[str] = SURFEL_OUTPUTS,
    client: Client | str | None = None,
    **fields: Unpack[GaussianFields],
) -> RenderedSurfels:
    """Renders flat Gaussians on a worker, differentiably (Huang et al. 2024, "2D Gaussian Splatting").

    Each is a disc in the plane of its first two axes, which is intersected with the rays of pixels. Gradients flow to
    every passed tensor, including cameras and background. Leading sizes on all tensors but the background describe a
    batch of scenes, each with its own cameras.

    Args:
        means: [N, 3] centres, world frame, scene units.
        quats: [N, 4] rotations (w, x, y, z), normalised here.
        scales: [N, 2] standard deviations along the two axes, scene units, >= 0; or [N, 3], where the third is unused.
        opacities: [N] in [0, 1].
        colors: [N, D] channels or [C, N, D] per camera; with the setting sh_degree, [N, K, D] coefficients.
        viewmats: [C, 4, 4] world to camera, for column vectors; x right, y down, z forward. Needed without `camera`,
            otherwise replaces the camera's own.
        Ks: [C, 3, 3] intrinsics, pixels; the centre of the first pixel is at 0.5. Needed without `camera`, otherwise
            replaces the camera's own.
        camera: one OpenCV pinhole without distortion, or C of one size.
        width: image width, pixels; not needed with `camera`.
        height: image height, pixels; not needed with `camera`.
        background: [C, D], [D] for all cameras, or one number; None: as in the settings, by default 0.
        settings: settings of the rendering; None: the defaults.
        outputs: outputs besides the colour, from `SURFEL_OUTPUTS` and `MORE_SURFEL_OUTPUTS`; omit unused ones.
        client: the client to use; a target such as "localhost:50051" means the shared client of that target, None the
            shared client of the default target.
        fields: fields of the settings by name, as for `Client.render`.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.

    Example:
        tensors = {name: torch.tensor(array) for name, array in gaussians.tensors.items()}  # with colors, not sh
        rendered = render_gaussians_2d(**tensors, camera=camera, client=client)
        rendered.normals  # [1, H, W, 3]
    """
    wanted = chosen(outputs, (*SURFEL_OUTPUTS, *MORE_SURFEL_OUTPUTS), always=("color",))
    refuse_gradients(**GaussianSettings.among(fields))
    chosen_settings = GaussianSettings.from_fields(settings, fields)
    if chosen_settings.primitive == "volume":
        raise InvalidArgument.of("primitive", 'expected "surfel" or none, got "volume"; render_gaussians draws those')
    chosen_settings = replace(chosen_settings, primitive="surfel")
    transforms = chosen_settings.transforms
    if is_number(background):
        chosen_settings, background = replace(chosen_settings, background=background), None
    views = views_of(camera, width=width, height=height, projection=None, distortion=None, viewmats=viewmats)
    own = of_cameras(views, means)
    scales = three_scales(None if scales is None else on_host("scales", scales))
    tensors = prepared(
        means=means, quats=quats, scales=scales, opacities=opacities, colors=colors,
        viewmats=own.get("view") if viewmats is None else viewmats, Ks=own.get("projection") if Ks is None else Ks,
        sh_degree=chosen_settings.sh_degree, background=background, transforms=transforms,
    )  # fmt: skip
    check_cameras(tensors.inputs)
    matrices, inputs = sensor_inputs(views, tensors.views, TENSORS, lens=None, viewmats_end=None, rays=None)
    tensors = replace(tensors, inputs={**tensors.inputs, **inputs})
    call = GaussianCall(
        client=client_of(client),
        settings=chosen_settings,
        cameras=matrices,
        batch=tensors.batch,
        slices=tuple((entry.begin, entry.end) for entry in transforms),
        moving=moving_slices(transforms),
        outputs=travelling(wanted),
    )
    if "surface_normals" not in wanted:
        return RenderedSurfels(**rendered(call, tensors, wanted))
    results = rendered(call, tensors, (*wanted, "expected_depth"))
    results["surface_normals"] = surface_normals(results["expected_depth"], tensors)
    return RenderedSurfels(**{name: results[name] for name in wanted})


def three_scales(scales: Any) -> Any:
    """Pads scales [.., N, 2] with 0 to [.., N, 3]; returns other values unchanged."""
    if isinstance(scales, torch.Tensor) and scales.ndim and scales.shape[-1] == 2:
        return torch.nn.functional.pad(scales, (0, 1))
    return scales


def surface_normals(depth: torch.Tensor, tensors: Prepared) -> torch.Tensor:
    """Returns unit normals [.., C, H, W, 3], world frame, of the surface at depths [.., C, H, W]; 0 on the border.

    A pixel's normal is the cross product of the differences between its neighbours' points, vertical times horizontal.
    The result is differentiable with respect to depths and the cameras in `tensors`.
    """
    view, k = (tensors.inputs[name] for name in ("view", "projection"))
    assert view is not None and k is not None
    if min(depth.shape[-2:]) < 3:
        return depth[..., None].expand(*depth.shape, 3) * 0.0
    view, k = view.to(depth.device), k.to(depth.device)
    height, width = depth.shape[-2:]
    x, y = (torch.arange(size, device=depth.device) + 0.5 for size in (width, height))
    across = ((x - k[..., 0, 2, None]) / k[..., 0, 0, None]).to(depth)[..., None, :].expand(depth.shape)
    down = ((y - k[..., 1, 2, None]) / k[..., 1, 1, None]).to(depth)[..., :, None].expand(depth.shape)
    points = torch.stack([depth * across, depth * down, depth], dim=-1)
    # The camera's centre drops out of the differences.
    points = points @ torch.linalg.inv(view)[..., None, :3, :3].mT.to(depth)
    vertical = points[..., 2:, 1:-1, :] - points[..., :-2, 1:-1, :]
    horizontal = points[..., 1:-1, 2:, :] - points[..., 1:-1, :-2, :]
    normals = torch.linalg.cross(vertical, horizontal)
    lengths = normals.square().sum(dim=-1, keepdim=True).clamp_min(_LEAST_SQUARE).sqrt()
    return torch.nn.functional.pad(normals / lengths, (0, 0, 1, 1, 1, 1))
