"""`render_spheres`: soft-blended spheres as a differentiable function of JAX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from lumigrad.client.base.arrays import summary
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.jax.arrays import backdrop, optional, shaped, stored_channels
from lumigrad.client.jax.remote import Inputs, JaxCall, compute
from lumigrad.client.operators.call import (
    SPHERE_OUTPUTS,
    SphereCall,
    check_parameters,
    check_stored,
    chosen,
    is_number,
    picture_size,
)
from lumigrad.client.settings.fields import SphereFields
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.handle import SceneHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RenderedSpheres(NamedTuple):
    """An image as in `lumigrad.client.torch.RenderedSpheres`. Outputs that were not requested are None."""

    color: jax.Array
    alpha: jax.Array | None
    depth: jax.Array | None
    info: jax.Array | None

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._asdict())


class JaxSphereCall(SphereCall, JaxCall):
    """See `JaxCall`."""

    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """Returns the shape [H, W, ...] of each output."""
        width, height = self.size
        colors = inputs["colors"]
        of_color = stored_channels(self.scene) if colors is None else colors.shape[1]
        channels = {"color": (of_color,), "info": (3 + 2 * self.settings.n_track,)}
        return {name: (height, width, *channels.get(name, ())) for name in self.outputs}


def render_spheres(
    positions: Any = None,
    colors: Any = None,
    radii: Any = None,
    cam_params: Any = None,
    *,
    scene: SceneHandle | None = None,
    width: int | None = None,
    height: int | None = None,
    opacities: Any = None,
    background: Any = None,
    gamma: Any = None,
    orthogonal: bool = False,
    right_handed: bool = False,
    settings: SphereSettings | None = None,
    outputs: Sequence[str] = SPHERE_OUTPUTS,
    client: Client | str | None = None,
    **fields: Unpack[SphereFields],
) -> RenderedSpheres:
    """Renders spheres on a worker, differentiably.

    This is the JAX version of `lumigrad.client.torch.render_spheres`, which describes the arguments: positions [N, 3],
    colors [N, K], radii [N], opacities [N] and background [K]; cam_params, Pulsar's [8 | 10 | 11 | 13], or a `Camera`,
    which has no gradient and defines width and height. Lengths are in scene units. A gamma that is an array is
    differentiated.

    With a stored `scene`, a handle from `Client.put`, only the passed arrays are sent; they replace the scene's own in
    this call.

    All arguments except arrays are static when a function is compiled; `settings` are `lumigrad.client.SphereSettings`,
    whose fields may also be passed by name. `outputs` besides the colour are chosen from "alpha", "depth" and "info";
    omit unused ones.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; JAX may wrap it.

    Example:
        arrays = spheres.positions, spheres.colors, spheres.radii
        size = {"width": camera.width, "height": camera.height}
        rendered = jax_functions.render_spheres(*arrays, camera, **size, gamma=0.1, max_depth=10.0, client=client)
    """
    check_stored(scene, "spheres")
    if is_number(background):
        settings, background = SphereSettings.from_fields(settings, {"background": background}), None
    fixed = cam_params if isinstance(cam_params, Camera) else None
    parameters = None if fixed else shaped("cam_params", cam_params, ("8 | 10 | 11 | 13",))
    if parameters is not None:
        check_parameters(parameters.shape)
    is_array = isinstance(gamma, jax.Array)
    call = JaxSphereCall(
        client=client_of(client),
        settings=SphereSettings.from_fields(settings, {**fields, "gamma": None if is_array else gamma}),
        camera=fixed,
        size=picture_size(fixed, width, height),
        orthogonal=bool(orthogonal),
        right_handed=bool(right_handed),
        outputs=chosen(outputs, SPHERE_OUTPUTS, always=("color",)),
        scene=scene,
    )  # fmt: skip
    own = shaped if scene is None else optional
    positions = own("positions", positions, ("N", 3))
    count = len(positions) if scene is None or positions is not None else scene.count
    colors = own("colors", colors, (count, "K"))
    inputs = {
        "positions": positions,
        "colors": colors,
        "radii": own("radii", radii, (count,)),
        "opacities": optional("opacities", opacities, (count,)),
        "cameras": parameters,
        "background": backdrop(background, "K" if colors is None else colors.shape[1]),
        "gamma": shaped("gamma", gamma, ()) if is_array else None,
    }
    results = compute(call, inputs)
    return RenderedSpheres(results["color"], *(results.get(name) for name in SPHERE_OUTPUTS[1:]))
