"""Pictures of spheres, as the operators ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lumigrad.client.base.arrays import Array
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.call import RemoteCall
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import RenderRequest
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.spheres import Spheres

OUTPUTS = ("color", "alpha", "depth", "info")


@dataclass(frozen=True)
class SphereCall(RemoteCall):
    """A rendering of spheres; see `RemoteCall`.

    The inputs are positions, colors, radii, opacities, cameras, background and gamma, float32.

    Attributes:
        client: the way to the worker.
        settings: how to blend; the inputs `background` and `gamma` replace what it says.
        camera: None: made of the input `cameras`, Pulsar's parameters.
        size: width and height, pixels.
        outputs: what to return.
        orthogonal: of a camera that is made here, as what follows: parallel rays.
        right_handed: it looks along -z instead of +z.
        first_r_then_t: its position is rotated too.
    """

    client: Client
    settings: SphereSettings
    camera: Camera | None
    size: tuple[int, int]
    outputs: tuple[str, ...]
    orthogonal: bool = False
    right_handed: bool = False
    first_r_then_t: bool = False

    @property
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""
        return frozenset({"color", "alpha", "depth"} if self.settings.semantics == "exact" else {"color"})

    @property
    def without_gradient(self) -> frozenset[str]:
        """In Pulsar's semantics background and gamma have none."""
        return frozenset(() if self.settings.semantics == "exact" else ("background", "gamma"))

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Frame:
        """Renders one picture."""
        settings, background, gamma = self.settings, inputs["background"], inputs["gamma"]
        if background is not None:
            settings = replace(settings, background=tuple(background.ravel().tolist()))
        if gamma is not None:
            settings = replace(settings, gamma=float(gamma))
        scene = Spheres(*(inputs[name] for name in ("positions", "colors", "radii", "opacities")))
        camera = self.camera or Camera.pulsar(
            inputs["cameras"],
            *self.size,
            orthogonal=self.orthogonal,
            right_handed=self.right_handed,
            first_r_then_t=self.first_r_then_t,
        )
        return self.client.render_request(RenderRequest(scene, (camera,), True, settings, self.outputs), retain=retain)


def picture_size(camera: Camera | None, width: int | None, height: int | None) -> tuple[int, int]:
    """Width and height: the camera's, or for None those passed."""
    if camera is None:
        if width is None or height is None:
            raise InvalidArgument.of("width, height", "expected numbers of pixels, since cam_params do not say them")
        return width, height
    for name, passed, actual in (("width", width, camera.width), ("height", height, camera.height)):
        if passed not in (None, actual):
            raise InvalidArgument.of(name, f"expected the camera's own {name} {actual} or none, got {passed}")
    return camera.width, camera.height
