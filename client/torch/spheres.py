"""`render_spheres`: spheres as a differentiable torch operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from lumigrad.client.base.arguments import names
from lumigrad.client.base.arrays import Array
from lumigrad.client.base.timings import Gradients
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import RenderRequest
from lumigrad.client.settings.spheres import Semantics, SphereSettings
from lumigrad.client.torch.graphs import on_host, outside_graphs
from lumigrad.client.torch.remote import compute, requires_gradient
from lumigrad.client.values.camera import PULSAR_LENGTHS, Camera
from lumigrad.client.values.spheres import Spheres


@dataclass(frozen=True)
class SphereCall:
    """All of a rendering that is not a tensor; see `RemoteCall`.

    The inputs are positions, colors, radii, opacities, cameras, background and gamma, float32.

    Attributes:
        client: the way to the worker.
        settings: how to blend; `background` and `gamma` tensors replace what it says.
        camera: makes the camera from the array of its parameters, or ignores it.
        outputs: what to return, in this order.
        differentiable: those of them through which gradients flow.
        before_backward: told which gradients are about to be computed.
    """

    client: Client
    settings: SphereSettings
    camera: Callable[[Array | None], Camera]
    outputs: tuple[str, ...]
    differentiable: frozenset[str]
    before_backward: Callable[[Sequence[str]], None] = lambda _: None

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Frame:
        """Renders one picture."""
        settings, background, gamma = self.settings, inputs["background"], inputs["gamma"]
        if background is not None:
            settings = replace(settings, background=tuple(background.ravel().tolist()))
        if gamma is not None:
            settings = replace(settings, gamma=float(gamma))
        scene = Spheres(*(inputs[name] for name in ("positions", "colors", "radii", "opacities")))
        request = RenderRequest(scene, (self.camera(inputs["cameras"]),), True, settings, self.outputs)
        return self.client.render_request(request, retain=retain)

    def gradients(
        self, result: Frame, upstream: Mapping[str, torch.Tensor], wanted: tuple[str, ...], release: bool
    ) -> Gradients:
        """As the worker returns them."""
        self.before_backward(wanted)
        given: dict[str, Any] = dict(upstream)
        return result.backward(**given, wanted=wanted, release=release)


OUTPUTS = ("color", "alpha", "depth", "info")


class RenderedSpheres(NamedTuple):
    """A picture, on the device of the positions. What was not asked for is None.

    Attributes:
        color: [H, W, K].
        alpha: [H, W] 1 - share of the background.
        depth: [H, W] distance to the closest sphere, scene units; -1 where there is none.
        info: [H, W, 3 + 2 T] Pulsar's forward info. The id channels are int32 bit patterns: view the tensor as int32
            before doing anything else with them.
    """

    color: torch.Tensor
    alpha: torch.Tensor | None
    depth: torch.Tensor | None
    info: torch.Tensor | None


@outside_graphs
def render_spheres(
    positions: torch.Tensor,
    colors: torch.Tensor,
    radii: torch.Tensor,
    cam_params: torch.Tensor | Sequence[float] | Camera,
    *,
    width: int | None = None,
    height: int | None = None,
    gamma: float | torch.Tensor,
    max_depth: float,
    min_depth: float = 0.0,
    opacities: torch.Tensor | None = None,
    background: torch.Tensor | Sequence[float] | None = None,
    orthogonal: bool = False,
    right_handed: bool = False,
    allowed_difference: float = 0.0,
    semantics: Semantics = "exact",
    client: Client | str | None = None,
    outputs: Sequence[str] = OUTPUTS,
) -> RenderedSpheres:
    """Renders spheres on a worker, differentiably.

    Gradients flow to positions, colors, radii, opacities and cam_params, from color; in exact semantics also to
    background and gamma, and from alpha and depth. Tensors of any float type and device are taken; they travel as
    float32.

    Args:
        positions: [N, 3] centres, world frame, scene units.
        colors: [N, K] channels.
        radii: [N] scene units, > 0.
        cam_params: [8 | 10 | 11 | 13] Pulsar's camera parameters, or a camera, to which no gradient flows.
        width: picture width, pixels; not needed with a camera.
        height: picture height, pixels; not needed with a camera.
        gamma: softness of the depth blending, in [1e-5, 1].
        max_depth: far end of the depth range, scene units.
        min_depth: near end; 0: just behind the film.
        opacities: [N] in [0, 1]; None: all 1.
        background: [K] channels; None: all 1.
        orthogonal: parallel rays; then the focal length must be 0.
        right_handed: the camera looks along -z instead of +z.
        allowed_difference: share of a pixel's colour that stopping early may cost, in [0, 1).
        semantics: "exact" for true derivatives, "compat" for Pulsar's behaviour.
        client: the way to the worker; a target such as "localhost:50051" stands for the shared client of that target,
            None for that of the default target.
        outputs: what to transfer beside the colour, of "alpha", "depth" and "info"; leave out what you do not use.
    """
    arguments = locals()
    outputs = names("outputs", outputs)
    unknown = sorted(set(outputs) - set(OUTPUTS))
    if unknown:
        raise InvalidArgument.of("outputs", f"expected some of {', '.join(OUTPUTS)}, got {', '.join(unknown)}")
    if semantics == "compat":
        _refuse_gradients(background=background, gamma=gamma)
    camera, parameters = _camera(cam_params, width, height, orthogonal, right_handed)
    named = {
        "positions": positions,
        "colors": colors,
        "radii": radii,
        "opacities": opacities,
        "background": background,
        "gamma": gamma if isinstance(gamma, torch.Tensor) else None,
    }
    tensors = {name: None if value is None else on_host(name, value) for name, value in named.items()}
    call = SphereCall(
        client=client_of(client),
        settings=SphereSettings.of(arguments, background=()),
        camera=camera,
        outputs=("color", *(name for name in OUTPUTS[1:] if name in outputs)),
        differentiable=frozenset({"color", "alpha", "depth"} if semantics == "exact" else {"color"}),
    )
    results = compute(call, {**tensors, "cameras": parameters})
    device = positions.device if isinstance(positions, torch.Tensor) else torch.device("cpu")
    on_device = {name: tensor.to(device) for name, tensor in results.items()}
    return RenderedSpheres(on_device["color"], on_device.get("alpha"), on_device.get("depth"), on_device.get("info"))


def _refuse_gradients(**tensors: Any) -> None:
    """Now rather than in backward, which is far from the cause."""
    for name, tensor in tensors.items():
        if requires_gradient([tensor]):
            raise InvalidArgument.of(
                name,
                'expected a tensor that requires no gradient, since there is none for it with semantics="compat", got '
                f'one that does; pass semantics="exact" or {name}.detach()',
            )


def _camera(
    cam_params: torch.Tensor | Sequence[float] | Camera,
    width: int | None,
    height: int | None,
    orthogonal: bool,
    right_handed: bool,
) -> tuple[Any, torch.Tensor | None]:
    """What makes the camera from its parameters, and the parameters if there are any."""
    if isinstance(cam_params, Camera):
        fixed = cam_params
        for name, passed, actual in (("width", width, fixed.width), ("height", height, fixed.height)):
            if passed not in (None, actual):
                raise InvalidArgument.of(name, f"expected the camera's own {name} {actual} or none, got {passed}")
        return lambda _: fixed, None
    tensor = on_host("cam_params", cam_params)
    if tensor.ndim != 1 or len(tensor) not in PULSAR_LENGTHS:
        raise InvalidArgument.of("cam_params", f"expected shape [8], [10], [11] or [13], got {list(tensor.shape)}")
    if width is None or height is None:
        raise InvalidArgument.of("width, height", "expected numbers of pixels, since cam_params do not say them")
    size = width, height
    return (
        lambda parameters: Camera.pulsar(parameters, *size, orthogonal=orthogonal, right_handed=right_handed),
        tensor,
    )
