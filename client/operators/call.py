"""The computations behind the torch and JAX operators: their common interface, sphere renderings and distances."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import instance, names
from lumigrad.client.base.arrays import Array, float32_array
from lumigrad.client.client import Client
from lumigrad.client.distances.answer import Distances
from lumigrad.client.distances.query import DistanceQuery, Surroundings, environment_numbers, warn_of_far
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import RenderRequest
from lumigrad.client.settings.distances import DistanceSettings
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import PULSAR_LENGTHS
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres


class RemoteCall:
    """A computation without its input arrays: the engine's settings, the names of the outputs, and how to run it."""

    settings: Any
    outputs: tuple[str, ...]

    @property
    @abstractmethod
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""

    @property
    def without_gradient(self) -> frozenset[str]:
        """Inputs to which no gradients flow with these settings."""
        return frozenset()

    @abstractmethod
    def request(self, inputs: Mapping[str, Array | None]) -> Any:
        """Returns the request of the call for inputs by name; absent inputs are None."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Any:
        """Makes the call and returns a result with the outputs as items; `retain` keeps the forward state."""

    def gradients(
        self, result: Any, upstream: Mapping[str, Any], wanted: tuple[str, ...], release: bool
    ) -> Mapping[str, Array]:
        """Computes the gradients of the inputs `wanted` from the gradients `upstream` of the outputs.

        Each has as many values as its input, but not always the same shape. `release` frees the worker's forward state.
        """
        found: Mapping[str, Array] = result.backward(**upstream, wanted=wanted, release=release)
        return found


def chosen(outputs: Any, known: Sequence[str], always: Sequence[str] = ()) -> tuple[str, ...]:
    """Checks the outputs of an operator and sorts them as in `known`; adds those in `always`."""
    given = names("outputs", outputs)
    unknown = sorted(set(given) - set(known))
    if unknown or not (given or always):
        raise InvalidArgument.of("outputs", f"expected some of {', '.join(known)}, got {', '.join(unknown) or 'none'}")
    return tuple(name for name in known if name in {*always, *given})


def is_number(background: Any) -> bool:
    """Whether a background is one number for all channels; so are NumPy's scalars."""
    return isinstance(background, int | float | np.number)


def check_stored(scene: Any, kind: str) -> None:
    """Raises InvalidArgument unless an operator's `scene` is None or a handle of the given kind."""
    if scene is None:
        return
    instance("scene", scene, (SceneHandle,), "pass what Client.put returned, or None and the tensors of a scene")
    if scene.kind == "levels" and kind == "gaussians":
        advice = "call Client.render(..., retain=True), and Frame.backward for gradients"
        raise InvalidArgument.of("scene", f"expected a handle of {kind}, got one of levels; {advice}")
    if scene.kind != kind:
        raise InvalidArgument.of("scene", f"expected a handle of {kind}, got one of kind {scene.kind!r}")


def refuse_scene(name: str, value: Any) -> None:
    """Raises InvalidArgument for a scene, a handle or a camera where a tensor is expected."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    if isinstance(first, Camera):
        advice = "pass it as camera="
        raise InvalidArgument.of(
            name, f"expected a tensor, got {'a Camera' if first is value else 'cameras'}; {advice}"
        )
    if isinstance(value, SceneHandle):
        advice = "pass the handle as scene=, and None for the tensors that it has"
        raise InvalidArgument.of(name, f"expected a tensor, got a SceneHandle; {advice}")
    if isinstance(value, Gaussians | Spheres):
        advice = "pass its tensors, or scene=client.put(…) for a scene that stays on the worker"
        raise InvalidArgument.of(name, f"expected a tensor, got {type(value).__name__}; {advice}")


def scene_of(
    stored: SceneHandle | None, kind: type[Gaussians] | type[Spheres], tensors: Mapping[str, Array | None]
) -> tuple[Gaussians | Spheres | SceneHandle, dict[str, Array]]:
    """Returns the scene to render, and the tensors that replace those of a stored scene. Absent tensors are None."""
    if stored is None:
        return kind(**tensors), {}
    return stored, {name: float32_array(name, array) for name, array in tensors.items() if array is not None}


SPHERE_OUTPUTS = ("color", "alpha", "depth", "info")


@dataclass(frozen=True)
class SphereCall(RemoteCall):
    """A rendering of spheres; see `RemoteCall`.

    The inputs are positions, colors, radii, opacities, cameras, background and gamma, float32; background and gamma
    replace the values in `settings`. A stored `scene` supplies any of the first four that are None. Without `camera`,
    the input cameras are Pulsar's parameters of a camera of `size` (width and height, pixels), with the options
    `orthogonal`, `right_handed` and `first_r_then_t` of `PulsarModel`.
    """

    client: Client
    settings: SphereSettings
    camera: Camera | None
    size: tuple[int, int]
    outputs: tuple[str, ...]
    orthogonal: bool = False
    right_handed: bool = False
    first_r_then_t: bool = False
    scene: SceneHandle | None = None

    @property
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""
        return frozenset({"color", "alpha", "depth"} if self.settings.semantics == "exact" else {"color"})

    @property
    def without_gradient(self) -> frozenset[str]:
        """Inputs without gradients: background and gamma in Pulsar's semantics."""
        return frozenset(() if self.settings.semantics == "exact" else ("background", "gamma"))

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Frame:
        """Renders one image."""
        return self.client._rendered(self.request(inputs), retain)

    def request(self, inputs: Mapping[str, Array | None]) -> RenderRequest:
        """Returns the request of the rendering."""
        settings, background, gamma = self.settings, inputs["background"], inputs["gamma"]
        if background is not None:
            settings = replace(settings, background=tuple(background.ravel().tolist()))
        if gamma is not None:
            settings = replace(settings, gamma=float(gamma))
        names = ("positions", "colors", "radii", "opacities")
        scene, own = scene_of(self.scene, Spheres, {name: inputs[name] for name in names})
        camera = self.camera or Camera.pulsar(
            inputs["cameras"],
            *self.size,
            orthogonal=self.orthogonal,
            right_handed=self.right_handed,
            first_r_then_t=self.first_r_then_t,
        )
        return RenderRequest(scene, (camera,), True, settings, self.outputs, tensors=own)


def picture_size(camera: Camera | None, width: int | None, height: int | None) -> tuple[int, int]:
    """Returns width and height: those of the camera, or the arguments if it is None."""
    if camera is None:
        if width is None or height is None:
            raise InvalidArgument.of("width, height", "expected numbers of pixels, since cam_params have none")
        return width, height
    for name, passed, actual in (("width", width, camera.width), ("height", height, camera.height)):
        if passed not in (None, actual):
            raise InvalidArgument.of(name, f"expected the camera's own {name} {actual} or none, got {passed}")
    return camera.width, camera.height


def check_parameters(shape: Sequence[int]) -> None:
    """Raises InvalidArgument unless `shape` is that of Pulsar's camera parameters."""
    if len(shape) != 1 or shape[0] not in PULSAR_LENGTHS:
        raise InvalidArgument.of("cam_params", f"expected shape [8], [10], [11] or [13], got {list(shape)}")


DISTANCE_OUTPUTS = ("cost", "distance")


@dataclass(frozen=True)
class DistanceCall(RemoteCall):
    """A query; see `RemoteCall`.

    The inputs are spheres [B, H, S, 4], poses [I, 7] and weight [], float32; the weight replaces that in `settings`.
    `environments` are [B], or one for all; `spread` divides the spheres among several workers.
    """

    client: Client
    world: Surroundings
    settings: DistanceSettings
    outputs: tuple[str, ...]
    environments: Any = None
    spread: bool = False

    @property
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""
        return frozenset(DISTANCE_OUTPUTS if self.settings.semantics == "exact" else ("cost",))

    @property
    def without_gradient(self) -> frozenset[str]:
        """Inputs without gradients: poses in cuRobo's semantics."""
        return frozenset(() if self.settings.semantics == "exact" else ("poses",))

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Distances:
        """Makes the query."""
        return self.client._asked(self.request(inputs), retain, self.spread)

    def request(self, inputs: Mapping[str, Array | None]) -> DistanceQuery:
        """Returns the query."""
        spheres, poses, weight = inputs["spheres"], inputs["poses"], inputs["weight"]
        assert spheres is not None
        settings = self.settings if weight is None else replace(self.settings, weight=float(weight))
        environments = environment_numbers(self.environments, len(spheres))
        warn_of_far(self.world, spheres, poses)
        return DistanceQuery(self.world, spheres, 3, settings, self.outputs, environments, poses)
