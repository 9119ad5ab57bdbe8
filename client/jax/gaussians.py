"""`render_gaussians`: Gaussians as a differentiable JAX function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import Array, summary
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.jax.arrays import backdrop, optional, real, shaped, stored_channels
from lumigrad.client.jax.remote import Inputs, JaxCall, compute
from lumigrad.client.operators.call import check_stored, chosen, is_number
from lumigrad.client.operators.cameras import Arrays, sensor_inputs, views_of
from lumigrad.client.operators.gaussians import (
    CAMERA_INPUTS,
    COLUMNS,
    OUTPUTS,
    ROWS,
    TRANSFORM_INPUTS,
    GaussianCall,
    ViewMatrices,
    check_matrices,
    check_ray_outputs,
    moving_slices,
    travelling,
    used_coefficients,
    with_derived,
)
from lumigrad.client.operators.sensors import LENS_INPUTS, RAYS, SensorMatrices
from lumigrad.client.rendering.request import RenderRequest, WireFormat
from lumigrad.client.settings.fields import GaussianFields
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import Projection
from lumigrad.client.values.handle import SceneHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class JaxGaussianCall(GaussianCall, JaxCall):
    """See `JaxCall`."""

    cameras: ViewMatrices | SensorMatrices

    def request(self, inputs: Mapping[str, Array | None]) -> RenderRequest:
        """Returns the request of the rendering; checks the cameras' matrices, which were perhaps tracers before."""
        view, projection = inputs["view"], inputs["projection"]
        assert view is not None and projection is not None
        check_matrices(view, projection)
        return super().request(inputs)

    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each output: [C, H, W, D] of the colour, [C, H, W, 3] of normals, else [C, H, W]."""
        colors = inputs["colors"] if inputs["sh"] is None else inputs["sh"]
        channels = stored_channels(self.scene) if colors is None else colors.shape[-1]
        views = (len(inputs["view"]), self.cameras.height, self.cameras.width)
        last = {"color": (channels,), "normals": (3,)}
        return {name: (*views, *last.get(name, ())) for name in self.outputs}


MORE_OUTPUTS = ("inverse_depth", "hit_distance", "expected_hit_distance", "normals")
_ARRAYS = Arrays(real=real, single=real, repeated=lambda array, count: jnp.broadcast_to(array, (count, array.shape[0])))


class RenderedGaussians(NamedTuple):
    """Images as in `lumigrad.client.torch.RenderedGaussians`. Outputs that were not requested are None."""

    color: jax.Array
    alpha: jax.Array | None = None
    depth: jax.Array | None = None
    expected_depth: jax.Array | None = None
    transmittance: jax.Array | None = None
    inverse_depth: jax.Array | None = None
    hit_distance: jax.Array | None = None
    expected_hit_distance: jax.Array | None = None
    normals: jax.Array | None = None

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._asdict())


def render_gaussians(
    means: Any = None,
    quats: Any = None,
    scales: Any = None,
    opacities: Any = None,
    colors: Any = None,
    viewmats: Any = None,
    Ks: Any = None,
    *,
    camera: Camera | Sequence[Camera] | None = None,
    width: int | None = None,
    height: int | None = None,
    scene: SceneHandle | None = None,
    covariances: Any = None,
    background: Any = None,
    transforms: Sequence[tuple[int, int, Any] | tuple[int, int, Any, Any]] = (),
    projection: Projection | None = None,
    distortion: Any = None,
    lens: Mapping[str, Any] | None = None,
    viewmats_end: Any = None,
    rays: Any = None,
    settings: GaussianSettings | None = None,
    outputs: Sequence[str] = OUTPUTS,
    sparse: bool = False,
    gradient_format: WireFormat = "float32",
    spread: bool = False,
    client: Client | str | None = None,
    **fields: Unpack[GaussianFields],
) -> RenderedGaussians:
    """Renders Gaussians on a worker, differentiably.

    This is the JAX version of `lumigrad.client.torch.render_gaussians`, which describes the arguments: means [N, 3],
    quats [N, 4] (w, x, y, z) and scales [N, 3], of surfels also [N, 2], or covariances [N, 3, 3]; opacities [N]; colors
    [N, D] or [C, N, D], or coefficients [N, K, D] with the setting sh_degree; viewmats [C, 4, 4] world to camera and
    Ks [C, 3, 3], pixels, or `camera` instead; background [C, D], [D] or one number; transforms (begin, end, matrix
    [4, 4]), or (begin, end, matrix, matrix_end) for slices that move during a rolling shutter's exposure. Lengths are
    in scene units. Use `jax.vmap` for several scenes.

    For sensors, the coefficients in `lens`, viewmats_end [C, 4, 4] and rays [C, H, W, 6] are arrays too.

    With a stored `scene`, a handle from `Client.put`, only the passed arrays are sent; they replace the scene's own in
    this call.

    Gradients flow to every passed array. All other arguments, and the distortion, are static when a function is
    compiled. `outputs` besides the colour are chosen from `OUTPUTS` and `MORE_OUTPUTS`; omit unused ones.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; JAX may wrap it.

    Example:
        rendered = jax_functions.render_gaussians(scene=scene, camera=camera, near=0.1, client=client)
        rendered.color  # [1, H, W, 3]
    """
    arguments = locals()
    chosen_settings = GaussianSettings.from_fields(settings, fields)
    transforms = transforms or chosen_settings.transforms
    check_stored(scene, "gaussians")
    wanted = chosen(outputs, (*OUTPUTS, *MORE_OUTPUTS), always=("color",))
    check_ray_outputs(chosen_settings, wanted)
    one_of("gradient_format", gradient_format, get_args(WireFormat))
    if is_number(background):
        chosen_settings = replace(chosen_settings, background=background)
        arguments["background"] = None
    views = views_of(
        camera, width=width, height=height, projection=projection, distortion=distortion, viewmats=viewmats
    )
    arguments["viewmats"] = views.inputs.get("view") if viewmats is None else viewmats
    arguments["Ks"] = views.inputs.get("projection") if Ks is None else Ks
    if chosen_settings.primitive == "surfel":
        arguments["scales"] = _three(scales)
    inputs = _inputs(arguments, chosen_settings.sh_degree)
    matrices, of_sensors = sensor_inputs(
        views, (len(inputs["view"]),), _ARRAYS, lens=lens, viewmats_end=viewmats_end, rays=rays
    )
    moving = moving_slices(transforms)
    starts = [shaped(f"transforms[{k}]", entry[2], (4, 4)) for k, entry in enumerate(transforms)]
    ends = [shaped(f"transforms[{k}]", list(transforms[k])[3], (4, 4)) for k in moving]
    poses = zip(TRANSFORM_INPUTS, (starts, ends), strict=True)
    placed = {name: jnp.stack(given) if given else None for name, given in poses}
    call = JaxGaussianCall(
        client=client_of(client),
        settings=chosen_settings,
        cameras=matrices,
        outputs=travelling(wanted),
        slices=tuple((entry[0], entry[1]) for entry in transforms),
        moving=moving,
        gradient_format=gradient_format,
        sparse=sparse,
        spread=spread,
        scene=scene,
    )
    none = dict.fromkeys((*CAMERA_INPUTS, *LENS_INPUTS, RAYS))
    images = with_derived(compute(call, {**none, **inputs, **of_sensors, **placed}))
    return RenderedGaussians(**{name: images[name] for name in wanted})


def _inputs(given: Mapping[str, Any], sh_degree: int | None) -> Inputs:
    """Checks the arrays of `render_gaussians` and names them as in the protocol; a stored scene's may be None."""
    viewmats = shaped("viewmats", given["viewmats"], ("C", 4, 4))
    scene, covariances, background = given["scene"], given["covariances"], given["background"]
    own = shaped if scene is None else optional
    means = own("means", given["means"], ("N", 3))
    count = scene.count if means is None else len(means)
    if covariances is None:
        quats, scales = own("quats", given["quats"], (count, 4)), own("scales", given["scales"], (count, 3))
    else:
        whole = shaped("covariances", covariances, (count, 3, 3))
        # Both triangles are averaged so that the gradient is symmetric.
        symmetric = (whole + jnp.swapaxes(whole, -1, -2)) / 2
        quats, scales, covariances = None, None, symmetric[:, np.array(ROWS), np.array(COLUMNS)]
    colors, sh = None, None
    if given["colors"] is not None or scene is None:
        colors, sh = _colors(given["colors"], sh_degree, count, len(viewmats))
    shown = colors if sh is None else sh
    channels = "D" if shown is None else shown.shape[-1]
    return {
        "means": means,
        "quats": quats,
        "scales": scales,
        "covariances": covariances,
        "opacities": own("opacities", given["opacities"], (count,)),
        "sh": sh,
        "colors": colors,
        "background": backdrop(background, channels, (len(viewmats),)),
        "view": viewmats,
        "projection": shaped("Ks", given["Ks"], (len(viewmats), 3, 3)),
    }


def _three(scales: Any) -> Any:
    """Pads scales [N, 2] with 0 to [N, 3]; returns other values unchanged."""
    array = None if scales is None else real("scales", scales)
    return array if array is None or array.shape[1:] != (2,) else jnp.pad(array, ((0, 0), (0, 1)))


def _colors(colors: Any, sh_degree: int | None, count: int, cameras: int) -> tuple[Any, Any]:
    """Returns the colours and None, or None and the spherical harmonics coefficients in use."""
    if sh_degree is not None:
        array = shaped("colors", colors, (count, "K", "D"))
        return None, array[:, : used_coefficients(sh_degree, array.shape[1])]
    if np.ndim(colors) == 3:
        return shaped("colors", colors, (cameras, count, "D")), None
    return shaped("colors", colors, (count, "D")), None
