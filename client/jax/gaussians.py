"""`render_gaussians`: Gaussians as a differentiable JAX function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from lumigrad.client.base.arguments import one_of
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.jax.remote import Inputs, JaxCall, compute, optional, shaped
from lumigrad.client.operators.call import chosen
from lumigrad.client.operators.gaussians import (
    COLUMNS,
    LEAST_ALPHA,
    OUTPUTS,
    ROWS,
    GaussianCall,
    ViewMatrices,
    distortion_rows,
    projection_of,
    travelling,
    used_coefficients,
)
from lumigrad.client.rendering.request import WireFormat
from lumigrad.client.settings.engines import GaussianSemantics, GaussianSettings


@dataclass(frozen=True)
class JaxGaussianCall(GaussianCall, JaxCall):
    """See `JaxCall`."""

    cameras: ViewMatrices

    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """The shape [C, H, W] of each output, and [C, H, W, D] of the colour."""
        colors = inputs["colors"] if inputs["sh"] is None else inputs["sh"]
        views = (len(inputs["view"]), self.cameras.height, self.cameras.width)
        return {name: (*views, colors.shape[-1]) if name == "color" else views for name in self.outputs}


MORE_OUTPUTS = ("inverse_depth",)


class RenderedGaussians(NamedTuple):
    """Images. Outputs that were not requested are None.

    Attributes:
        color: [C, H, W, D].
        alpha: [C, H, W] 1 - transmittance.
        depth: [C, H, W] sum of camera-space Z times blending weight, scene units.
        expected_depth: [C, H, W] depth / alpha; 0 where alpha is 0.
        transmittance: [C, H, W] weight of the background.
        inverse_depth: [C, H, W] sum of 1 / Z times blending weight.
    """

    color: jax.Array
    alpha: jax.Array | None = None
    depth: jax.Array | None = None
    expected_depth: jax.Array | None = None
    transmittance: jax.Array | None = None
    inverse_depth: jax.Array | None = None


def render_gaussians(
    means: Any,
    quats: Any,
    scales: Any,
    opacities: Any,
    colors: Any,
    viewmats: Any,
    Ks: Any,
    *,
    width: int,
    height: int,
    sh_degree: int | None = None,
    backgrounds: Any = None,
    covars: Any = None,
    transforms: Sequence[tuple[int, int, Any]] = (),
    camera_model: Literal["pinhole", "orthographic", "ortho", "fisheye"] = "pinhole",
    distortion: Any = None,
    semantics: GaussianSemantics = "exact",
    antialiased: bool = False,
    eps2d: float | None = None,
    near: float | None = None,
    far: float | None = None,
    radius_clip: float | None = None,
    alpha_min: float | None = None,
    alpha_max: float | None = None,
    transmittance_min: float | None = None,
    pixel_center: float | None = None,
    scale_modifier: float | None = None,
    deterministic: bool = False,
    gradient_dtype: WireFormat = "float32",
    outputs: Sequence[str] = OUTPUTS,
    client: Client | str | None = None,
) -> RenderedGaussians:
    """Renders Gaussians on a worker, differentiably.

    The JAX version of `lumigrad.client.torch.render_gaussians`, which describes the arguments: means [N, 3], quats
    [N, 4] (w, x, y, z) and scales [N, 3], or covars [N, 3, 3]; opacities [N]; colors [N, D] or [C, N, D], with
    sh_degree coefficients [N, K, D]; viewmats [C, 4, 4] world to camera; Ks [C, 3, 3], pixels; backgrounds [C, D] or
    [D]; transforms of (begin, end, matrix [4, 4]). Lengths are in scene units. Use `jax.vmap` for several scenes.

    Gradients flow to every array that is passed. All other arguments, and the distortion, are static when a function is
    compiled; the settings are those of `lumigrad.client.GaussianSettings`. `outputs` beside the colour are chosen from
    `OUTPUTS` and `MORE_OUTPUTS`; leave out those that you do not use.
    """
    arguments = locals()
    wanted = chosen(outputs, (*OUTPUTS, *MORE_OUTPUTS), always=("color",))
    one_of("gradient_dtype", gradient_dtype, get_args(WireFormat))
    settings = GaussianSettings.of(arguments, transforms=())
    inputs = _inputs(arguments)
    matrices = [shaped(f"transforms[{k}]", entry[2], (4, 4)) for k, entry in enumerate(transforms)]
    rows = distortion_rows(distortion, len(inputs["view"]))
    call = JaxGaussianCall(
        client=client_of(client),
        settings=settings,
        cameras=ViewMatrices(width, height, projection_of(camera_model), rows, is_checked=True),
        outputs=travelling(wanted),
        slices=tuple((begin, end) for begin, end, _ in transforms),
        wire_format=gradient_dtype,
    )
    images = compute(call, {**inputs, "transforms": jnp.stack(matrices) if matrices else None})
    if "transmittance" in images:
        images["alpha"] = 1.0 - images["transmittance"]
    if "expected_depth" in wanted:
        images["expected_depth"] = images["depth"] / jnp.maximum(images["alpha"], LEAST_ALPHA)
    return RenderedGaussians(**{name: images[name] for name in wanted})


def _inputs(given: Mapping[str, Any]) -> Inputs:
    """Checks the arrays of `render_gaussians` and names them as in the protocol."""
    means = shaped("means", given["means"], ("N", 3))
    viewmats = shaped("viewmats", given["viewmats"], ("C", 4, 4))
    colors, covars, backgrounds, sh_degree = (given[k] for k in ("colors", "covars", "backgrounds", "sh_degree"))
    count, cameras = len(means), len(viewmats)
    if covars is None:
        quats, scales = shaped("quats", given["quats"], (count, 4)), shaped("scales", given["scales"], (count, 3))
    else:
        whole = shaped("covars", covars, (count, 3, 3))
        # The mean of both triangles, so that the gradient is symmetric.
        symmetric = (whole + jnp.swapaxes(whole, -1, -2)) / 2
        quats, scales, covars = None, None, symmetric[:, np.array(ROWS), np.array(COLUMNS)]
    sh = None
    if sh_degree is not None:
        array = shaped("colors", colors, (count, "K", "D"))
        colors, sh = None, array[:, : used_coefficients(sh_degree, array.shape[1])]
    elif jnp.ndim(colors) == 3:
        colors = shaped("colors", colors, (cameras, count, "D"))
    else:
        colors = shaped("colors", colors, (count, "D"))
    channels = (colors if sh is None else sh).shape[-1]
    shared = jnp.ndim(backgrounds) == 1 if backgrounds is not None else False
    return {
        "means": means,
        "quats": quats,
        "scales": scales,
        "covariances": covars,
        "opacities": shaped("opacities", given["opacities"], (count,)),
        "sh": sh,
        "colors": colors,
        "background": optional("backgrounds", backgrounds, (channels,) if shared else (cameras, channels)),
        "view": viewmats,
        "projection": shaped("Ks", given["Ks"], (cameras, 3, 3)),
    }
