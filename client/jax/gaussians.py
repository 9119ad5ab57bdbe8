"""`render_gaussians`: Gaussians as a differentiable JAX function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import Array
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.jax.arrays import optional, real, shaped, stored_channels
from lumigrad.client.jax.remote import Inputs, JaxCall, compute
from lumigrad.client.operators.call import check_stored, chosen, one_background
from lumigrad.client.operators.gaussians import (
    CAMERA_INPUTS,
    COLUMNS,
    LEAST_ALPHA,
    OUTPUTS,
    ROWS,
    TRANSFORM_INPUTS,
    GaussianCall,
    ViewMatrices,
    check_matrices,
    distortion_rows,
    moving_slices,
    projection_of,
    travelling,
    used_coefficients,
)
from lumigrad.client.operators.sensor_arguments import Arrays, are_sensors, check_outputs, sensor_settings, sensors
from lumigrad.client.operators.sensors import LENS_INPUTS, RAYS, SensorMatrices
from lumigrad.client.rendering.request import RenderRequest, WireFormat
from lumigrad.client.settings.gaussians import GaussianSemantics, GaussianSettings, TileBounds
from lumigrad.client.values.camera_models import RowTime
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.lenses import LensDomain


@dataclass(frozen=True)
class JaxGaussianCall(GaussianCall, JaxCall):
    """See `JaxCall`."""

    cameras: ViewMatrices | SensorMatrices

    def request(self, inputs: Mapping[str, Array | None]) -> RenderRequest:
        """The request of the rendering; the cameras' matrices have no values to check before."""
        view, projection = inputs["view"], inputs["projection"]
        assert view is not None and projection is not None
        check_matrices(view, projection)
        return super().request(inputs)

    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """The shape [C, H, W] of each output, and [C, H, W, D] of the colour."""
        colors = inputs["colors"] if inputs["sh"] is None else inputs["sh"]
        channels = stored_channels(self.scene) if colors is None else colors.shape[-1]
        views = (len(inputs["view"]), self.cameras.height, self.cameras.width)
        last = {"color": (channels,), "normals": (3,)}
        return {name: (*views, *last.get(name, ())) for name in self.outputs}


MORE_OUTPUTS = ("inverse_depth", "hit_distance", "expected_hit_distance", "normals")
_ARRAYS = Arrays(real=real, single=real, repeated=lambda array, count: jnp.broadcast_to(array, (count, array.shape[0])))


class RenderedGaussians(NamedTuple):
    """Images. Outputs that were not requested are None.

    Attributes:
        color: [C, H, W, D].
        alpha: [C, H, W] 1 - transmittance.
        depth: [C, H, W] sum of camera-space Z times blending weight, scene units.
        expected_depth: [C, H, W] depth / alpha; 0 where alpha is 0.
        transmittance: [C, H, W] weight of the background.
        inverse_depth: [C, H, W] sum of 1 / Z times blending weight.
        hit_distance: [C, H, W] with `with_eval3d`, as the next two: sum of distances from the ray's origin to the
            largest response times blending weight, scene units.
        expected_hit_distance: [C, H, W] hit_distance / alpha; 0 where alpha is 0.
        normals: [C, H, W, 3] sum of the third axes, turned against the ray, times blending weight; world frame.
    """

    color: jax.Array
    alpha: jax.Array | None = None
    depth: jax.Array | None = None
    expected_depth: jax.Array | None = None
    transmittance: jax.Array | None = None
    inverse_depth: jax.Array | None = None
    hit_distance: jax.Array | None = None
    expected_hit_distance: jax.Array | None = None
    normals: jax.Array | None = None


def render_gaussians(
    means: Any = None,
    quats: Any = None,
    scales: Any = None,
    opacities: Any = None,
    colors: Any = None,
    viewmats: Any = None,
    Ks: Any = None,
    *,
    width: int,
    height: int,
    scene: SceneHandle | None = None,
    sh_degree: int | None = None,
    backgrounds: Any = None,
    background: Any = None,
    covars: Any = None,
    transforms: Sequence[tuple[int, int, Any] | tuple[int, int, Any, Any]] = (),
    camera_model: Literal["pinhole", "orthographic", "ortho", "fisheye", "ftheta", "lidar"] = "pinhole",
    distortion: Any = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    global_z_order: bool | None = None,
    tile_size: int | None = None,
    rays: Any = None,
    radial_coeffs: Any = None,
    tangential_coeffs: Any = None,
    thin_prism_coeffs: Any = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Any = None,
    row_time: RowTime = "continuous",
    lens_domain: LensDomain = "monotone",
    tile_bounds: TileBounds = "conservative",
    ut_params: Any = None,
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
    gradient_format: WireFormat = "float32",
    outputs: Sequence[str] = OUTPUTS,
    client: Client | str | None = None,
) -> RenderedGaussians:
    """Renders Gaussians on a worker, differentiably.

    The JAX version of `lumigrad.client.torch.render_gaussians`, which describes the arguments: means [N, 3], quats
    [N, 4] (w, x, y, z) and scales [N, 3], or covars [N, 3, 3]; opacities [N]; colors [N, D] or [C, N, D], with
    sh_degree coefficients [N, K, D]; viewmats [C, 4, 4] world to camera; Ks [C, 3, 3], pixels; backgrounds [C, D] or
    [D], which `background` may name too; transforms of (begin, end, matrix [4, 4]), or (begin, end, matrix, matrix_end)
    of slices that move while a rolling shutter is open. Lengths are in scene units. Use `jax.vmap` for several scenes.

    For real cameras, projected by sigma points (`with_ut`) or the Jacobian, radial_coeffs [C, k], tangential_coeffs
    [C, 2], thin_prism_coeffs [C, 4], viewmats_rs [C, 4, 4] at the end of a rolling_shutter, rays [C, H, W, 6] with
    with_eval3d, and the parameters of ftheta_coeffs, lidar_coeffs and external_distortion_coeffs, which all cameras
    share, are arrays; the rest is static. Rolling shutters and lidars need with_ut.

    With a stored `scene`, a handle from `Client.put`, only the arrays that are passed travel: they stand in for its own
    in this call.

    Gradients flow to every array that is passed. All other arguments, and the distortion, are static when a function is
    compiled; the settings are those of `lumigrad.client.GaussianSettings`. `outputs` beside the colour are chosen from
    `OUTPUTS` and `MORE_OUTPUTS`; leave out those that you do not use.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; JAX may wrap it.

    Example:
        cameras = {"viewmats": camera.view_matrix[None], "Ks": camera.K[None]}
        size = {"width": camera.width, "height": camera.height}
        rendered = jax_functions.render_gaussians(scene=scene, **cameras, **size, client=client)
        rendered.color  # [1, H, W, 3]
    """
    arguments = locals()
    check_stored(scene, "gaussians")
    wanted = chosen(outputs, (*OUTPUTS, *MORE_OUTPUTS), always=("color",))
    check_outputs(arguments, wanted)
    one_of("gradient_format", gradient_format, get_args(WireFormat))
    cameras, inputs, of_sensors = _cameras(arguments, _inputs(arguments))
    moving = moving_slices(transforms)
    matrices = [shaped(f"transforms[{k}]", entry[2], (4, 4)) for k, entry in enumerate(transforms)]
    ends = [shaped(f"transforms[{k}]", list(transforms[k])[3], (4, 4)) for k in moving]
    poses = zip(TRANSFORM_INPUTS, (matrices, ends), strict=True)
    placed = {name: jnp.stack(given) if given else None for name, given in poses}
    call = JaxGaussianCall(
        client=client_of(client),
        settings=GaussianSettings.of(arguments, transforms=(), background=(), **of_sensors),
        cameras=cameras,
        outputs=travelling(wanted),
        slices=tuple((entry[0], entry[1]) for entry in transforms),
        moving=moving,
        gradient_format=gradient_format,
        scene=scene,
    )
    images = compute(call, {**inputs, **placed})
    if "transmittance" in images:
        images["alpha"] = 1.0 - images["transmittance"]
    if "expected_depth" in wanted:
        images["expected_depth"] = images["depth"] / jnp.maximum(images["alpha"], LEAST_ALPHA)
    if "expected_hit_distance" in wanted:
        images["expected_hit_distance"] = images["hit_distance"] / jnp.maximum(images["alpha"], LEAST_ALPHA)
    return RenderedGaussians(**{name: images[name] for name in wanted})


def _cameras(given: Mapping[str, Any], inputs: Inputs) -> tuple[ViewMatrices | SensorMatrices, Inputs, dict[str, Any]]:
    """The cameras, the inputs with those of lenses, and the settings that sensors have."""
    none = dict.fromkeys((*CAMERA_INPUTS, *LENS_INPUTS, RAYS))
    views = len(inputs["view"])
    if not are_sensors(given):
        rows, model = distortion_rows(given["distortion"], views), projection_of(given["camera_model"])
        matrices = ViewMatrices(given["width"], given["height"], model, rows)
        return matrices, {**none, **inputs}, {"tile_bounds": None}
    cameras, of_lenses = sensors(given, (views,), _ARRAYS, given["row_time"], given["lens_domain"])
    return cameras, {**none, **inputs, **of_lenses}, sensor_settings(given, given["tile_bounds"])


def _inputs(given: Mapping[str, Any]) -> Inputs:
    """Checks the arrays of `render_gaussians` and names them as in the protocol; a stored scene has those missing."""
    viewmats = shaped("viewmats", given["viewmats"], ("C", 4, 4))
    scene, covars = given["scene"], given["covars"]
    name, background = one_background(given["background"], given["backgrounds"])
    own = shaped if scene is None else optional
    means = own("means", given["means"], ("N", 3))
    count = scene.count if means is None else len(means)
    if covars is None:
        quats, scales = own("quats", given["quats"], (count, 4)), own("scales", given["scales"], (count, 3))
    else:
        whole = shaped("covars", covars, (count, 3, 3))
        # The mean of both triangles, so that the gradient is symmetric.
        symmetric = (whole + jnp.swapaxes(whole, -1, -2)) / 2
        quats, scales, covars = None, None, symmetric[:, np.array(ROWS), np.array(COLUMNS)]
    colors, sh = None, None
    if given["colors"] is not None or scene is None:
        colors, sh = _colors(given["colors"], given["sh_degree"], count, len(viewmats))
    shown = colors if sh is None else sh
    channels = "D" if shown is None else shown.shape[-1]
    shared = np.ndim(background) == 1 if background is not None else False
    return {
        "means": means,
        "quats": quats,
        "scales": scales,
        "covariances": covars,
        "opacities": own("opacities", given["opacities"], (count,)),
        "sh": sh,
        "colors": colors,
        "background": optional(name, background, (channels,) if shared else (len(viewmats), channels)),
        "view": viewmats,
        "projection": _intrinsics(given, len(viewmats)),
    }


def _intrinsics(given: Mapping[str, Any], views: int) -> Any:
    """K, or what stands for it with a lidar, which has none."""
    if given["Ks"] is None and given["camera_model"] == "lidar":
        return jnp.broadcast_to(jnp.eye(3), (views, 3, 3))
    return shaped("Ks", given["Ks"], (views, 3, 3))


def _colors(colors: Any, sh_degree: int | None, count: int, cameras: int) -> tuple[Any, Any]:
    """The colours, or the coefficients of spherical harmonics that are in use; None for the other."""
    if sh_degree is not None:
        array = shaped("colors", colors, (count, "K", "D"))
        return None, array[:, : used_coefficients(sh_degree, array.shape[1])]
    if np.ndim(colors) == 3:
        return shaped("colors", colors, (cameras, count, "D")), None
    return shaped("colors", colors, (count, "D")), None
