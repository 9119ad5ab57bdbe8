"""`GaussianRasterizer`: the module that users of diff-gaussian-rasterization have, with the rendering on a worker."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.compat.diff_gaussian_rasterization.settings import (
    GaussianRasterizationSettings,
    centres_of,
    inria_inputs,
    inria_refusals,
)
from lumigrad.client.default import default_client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.gaussians import GaussianCall, InriaMatrices
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.torch.gaussian_nodes import Layout, Rendering, draw
from lumigrad.client.torch.remote import full_precision, outside_graphs, run

# The original draws nothing that is closer than this, scene units.
_NEAR = 0.2
Semantics = Literal["inria_depth", "inria_exact"]
Results = tuple[torch.Tensor, ...]


class GaussianRasterizer(torch.nn.Module):
    """Draws Gaussians as the original does, or its versions with depth, on a worker; gradients included."""

    def __init__(
        self,
        raster_settings: GaussianRasterizationSettings,
        target: str | None = None,
        *,
        semantics: Semantics = "inria_depth",
        depth: bool = True,
        alpha: bool = False,
    ) -> None:
        """Stores the settings; only `forward` calls the worker.

        Args:
            raster_settings: the camera and the rendering options.
            target: the worker's address; None: LUMIGRAD_TARGET, else localhost:50051.
            semantics: "inria_depth" for the gradients of the original's version with depth, its errors included;
                "inria_exact" for true derivatives, also of the camera's matrices and position.
            depth: False leaves the third result out, for callers of the first versions, which had two.
            alpha: return depth and alpha, [1, H, W] each, as the forks with four results do.
        """
        super().__init__()
        one_of("semantics", semantics, get_args(Semantics), '"')
        self.raster_settings = raster_settings
        self._target = target
        self._semantics: Semantics = semantics
        if alpha and not depth:
            raise InvalidArgument.of("alpha", "expected False with depth=False, got True; leave depth out")
        self._alpha = alpha
        self._depths: tuple[str, ...] = ()
        if depth:
            has_planes = alpha or raster_settings.antialiasing is None
            self._depths = ("depth", "transmittance") if has_planes else ("inverse_depth",)

    @full_precision
    def markVisible(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns bool [N], which of the positions [N, 3] are beyond the near plane."""
        if positions.ndim != 2 or positions.shape[1] != 3:
            raise InvalidArgument.of("positions", f"expected shape [N, 3], got {list(positions.shape)}")
        with torch.no_grad():
            view = self.raster_settings.viewmatrix.squeeze().to(positions.device, positions.dtype)
            return positions @ view[:3, 2] + view[3, 2] > _NEAR

    @outside_graphs
    def forward(
        self,
        means3D: torch.Tensor,
        means2D: torch.Tensor | None,
        opacities: torch.Tensor,
        shs: torch.Tensor | None = None,
        colors_precomp: torch.Tensor | None = None,
        scales: torch.Tensor | None = None,
        rotations: torch.Tensor | None = None,
        cov3D_precomp: torch.Tensor | None = None,
    ) -> Results:
        """Draws one picture.

        Args:
            means3D: [N, 3] centres, world frame, scene units.
            means2D: [N, 3] or None; its values have no effect, but it gets the gradient of the projected centres, in
                normalised device coordinates, z 0.
            opacities: [N, 1] or [N] in [0, 1], with any axes of 1.
            shs: [N, K, 3] coefficients of spherical harmonics.
            colors_precomp: [N, 3] instead of shs.
            scales: [N, 3] standard deviations, scene units.
            rotations: [N, 4] quaternions (w, x, y, z), which the caller has to normalise.
            cov3D_precomp: [N, 6] xx xy xz yy yz zz, instead of scales and rotations.

        Returns:
            The picture [3, H, W]; int32 [N] radii, pixels, 0 for what was not drawn; and, unless `depth` is False,
            [2, H, W]: the accumulated depth (camera-space Z, weighted and summed, not divided by anything) and the
            final transmittance (the share of the background: 1 - alpha). If the settings have `antialiasing`, the third
            result is [1, H, W], the inverse depth (1 / Z, weighted and summed). With `alpha` there are a third and a
            fourth, [1, H, W] each: the accumulated depth and alpha.
        """
        settings = self.raster_settings
        with inria_refusals():
            scene = {"means": means3D, "opacities": opacities, "sh": shs, "colors": colors_precomp, "scales": scales}
            scene |= {"quats": rotations, "covariances": cov3D_precomp}
            inputs = inria_inputs(settings, self._semantics == "inria_exact", scene)
            centres = centres_of(means2D, len(means3D), settings)
            call = GaussianCall(
                client=default_client(self._target),
                settings=GaussianSettings(
                    semantics=self._semantics,
                    sh_degree=None if shs is None else settings.sh_degree,
                    antialiased=bool(settings.antialiasing),
                    near=_NEAR,
                    pixel_center=0.0,
                    scale_modifier=settings.scale_modifier,
                ),
                cameras=InriaMatrices(settings.image_width, settings.image_height, settings.tanfovx, settings.tanfovy),
                outputs=("color", *self._depths, "radii"),
            )
            frame = run(call, {**inputs, "means2d": centres})
        device = means3D.device
        layout = Layout((1, len(means3D)), None, torch.device("cpu"))
        images = draw(Rendering(call, frame, layout), centres, None, inputs)
        color = images["color"][0].permute(2, 0, 1).contiguous()
        radii = torch.from_numpy(frame.radii)[0, :, 0].contiguous()
        rest = [images[name] for name in self._depths]
        if self._alpha:
            rest = [rest[0], 1.0 - rest[1]]
        elif rest:
            rest = [torch.cat(rest)]
        return color.to(device), radii.to(device), *(image.to(device) for image in rest)
