"""`render_spheres`: soft-blended spheres as a differentiable torch operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lumigrad.client.base.arrays import summary
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.errors import InvalidArgument
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
from lumigrad.client.torch.remote import compute, number_on_host, on_host, outside_graphs, refuse_gradients
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.handle import SceneHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RenderedSpheres(NamedTuple):
    """An image, on the device of the first passed tensor. Outputs that were not requested are None.

    Attributes:
        color: [H, W, K].
        alpha: [H, W] 1 - weight of the background.
        depth: [H, W] distance to the closest sphere, scene units; -1 where there is none.
        info: [H, W, 3 + 2 T] Pulsar's forward info. The id channels are int32 bit patterns: view the tensor as int32
            before doing anything else with them.
    """

    color: torch.Tensor
    alpha: torch.Tensor | None
    depth: torch.Tensor | None
    info: torch.Tensor | None

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._asdict())


@outside_graphs
def render_spheres(
    positions: torch.Tensor | None = None,
    colors: torch.Tensor | None = None,
    radii: torch.Tensor | None = None,
    cam_params: torch.Tensor | Sequence[float] | Camera | None = None,
    *,
    scene: SceneHandle | None = None,
    width: int | None = None,
    height: int | None = None,
    opacities: torch.Tensor | None = None,
    background: torch.Tensor | Sequence[float] | float | None = None,
    gamma: float | torch.Tensor | None = None,
    orthogonal: bool = False,
    right_handed: bool = False,
    settings: SphereSettings | None = None,
    outputs: Sequence[str] = SPHERE_OUTPUTS,
    client: Client | str | None = None,
    **fields: Unpack[SphereFields],
) -> RenderedSpheres:
    """Renders spheres on a worker, differentiably.

    Gradients flow to positions, colors, radii, opacities and cam_params, from color; in exact semantics also to
    background and gamma, and from alpha and depth. Tensors of any float type and device are accepted; they are
    transferred as float32.

    With a stored `scene`, only the tensors that you pass are sent: for the gradient of a camera, none of the spheres.

    Args:
        positions: [N, 3] centres, world frame, scene units. Without a stored scene, positions, colors and radii are
            needed; with one, each may be None.
        colors: [N, K] channels.
        radii: [N] scene units, > 0.
        cam_params: [8 | 10 | 11 | 13] Pulsar's camera parameters, or a camera, to which no gradient flows; needed.
        scene: the handle of stored spheres, from `Client.put`. Passed tensors replace its own in this call; the stored
            scene does not change.
        width: image width, pixels; not needed with a camera.
        height: image height, pixels; not needed with a camera.
        opacities: [N] in [0, 1]; None: all 1, or those of the stored scene.
        background: [K] channels, or one number; None: as in the settings, by default all 1.
        gamma: softness of the depth blending, in [1e-5, 1]; a tensor is differentiated. None: as in the settings.
        orthogonal: parallel rays; the focal length must then be 0.
        right_handed: the camera looks along -z instead of +z.
        settings: the other settings; None: the defaults.
        outputs: outputs besides the colour, from "alpha", "depth" and "info"; omit unused ones.
        client: the client to use; a target such as "localhost:50051" means the shared client of that target, None the
            shared client of the default target.
        fields: fields of the settings by name, as for `Client.render`.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; the backward pass raises the same.

    Example:
        positions = torch.tensor(spheres.positions, requires_grad=True)
        colors, radii = torch.tensor(spheres.colors), torch.tensor(spheres.radii)
        size = {"width": camera.width, "height": camera.height}
        rendered = render_spheres(positions, colors, radii, camera, **size, gamma=0.1, max_depth=10, client=client)
        rendered.color.mean().backward()
    """
    check_stored(scene, "spheres")
    refuse_gradients(**SphereSettings.among(fields))
    if is_number(background):
        settings, background = SphereSettings.from_fields(settings, {"background": background}), None
    camera = cam_params if isinstance(cam_params, Camera) else None
    is_differentiated = isinstance(gamma, torch.Tensor)
    named = {
        "positions": positions,
        "colors": colors,
        "radii": radii,
        "opacities": opacities,
        "background": background,
        "gamma": gamma if is_differentiated else None,
    }
    for name in ("positions", "colors", "radii") if scene is None else ():
        if named[name] is None:
            raise InvalidArgument.of(name, "expected a tensor, got None; only those of a stored scene= may be missing")
    tensors = {name: None if value is None else on_host(name, value) for name, value in named.items()}
    if isinstance(gamma, torch.Tensor):
        tensors["gamma"] = number_on_host("gamma", gamma)
    shown, backdrop = tensors["colors"], tensors["background"]
    if backdrop is not None and backdrop.ndim == 0 and shown is not None and shown.ndim:
        tensors["background"] = backdrop.expand(shown.shape[-1])
    call = SphereCall(
        client=client_of(client),
        settings=SphereSettings.from_fields(settings, {**fields, "gamma": None if is_differentiated else gamma}),
        camera=camera,
        size=picture_size(camera, width, height),
        outputs=chosen(outputs, SPHERE_OUTPUTS, always=("color",)),
        orthogonal=orthogonal,
        right_handed=right_handed,
        scene=scene,
    )
    results = compute(call, {**tensors, "cameras": None if camera else _parameters(cam_params)})
    first = next((it for it in (positions, colors, radii, cam_params) if isinstance(it, torch.Tensor)), None)
    device = torch.device("cpu") if first is None else first.device
    on_device = {name: tensor.to(device) for name, tensor in results.items()}
    return RenderedSpheres(on_device["color"], on_device.get("alpha"), on_device.get("depth"), on_device.get("info"))


def _parameters(cam_params: Any) -> torch.Tensor:
    tensor = on_host("cam_params", cam_params)
    check_parameters(tensor.shape)
    return tensor
