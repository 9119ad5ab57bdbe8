"""The keyword arguments of render -> the settings of the engine that the scene needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import number
from lumigrad.client.base.arrays import to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.spheres import SphereSettings, enclosing_depth
from lumigrad.client.values.camera import Camera, InriaModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target import Target
from lumigrad.client.values.world import World

_DEFAULT_GAMMA = 1e-2
_RENDERED = ("spheres", "gaussians")


# All settings of render, of which each engine has some.
RENDER_SETTINGS = tuple(dict.fromkeys((*SphereSettings.names(), *GaussianSettings.names())))


def settings_of(
    scene: Spheres | Gaussians | SceneHandle, cameras: Sequence[Camera], arguments: Mapping[str, Any]
) -> SphereSettings | GaussianSettings:
    """The settings of one rendering.

    Args:
        scene: decides which engine renders.
        cameras: all of the rendering.
        arguments: by name, settings of both engines among them; None: not given.

    Raises:
        InvalidArgument: a setting was given that belongs to the other engine.
    """
    if isinstance(scene, SceneHandle) and scene.kind not in _RENDERED:
        expected = " or ".join(_RENDERED)
        raise InvalidArgument.of("scene", f"expected {expected}, got a {scene.kind}; pass it to query, for distances")
    known = scene.scene if isinstance(scene, SceneHandle) else scene
    assert not isinstance(known, Mesh | World | Target)
    spheres = (scene.kind == "spheres") if isinstance(scene, SceneHandle) else isinstance(scene, Spheres)
    kind = SphereSettings if spheres else GaussianSettings
    given = {name: arguments[name] for name in RENDER_SETTINGS if arguments.get(name) is not None}
    for name in given:
        if name not in kind.names():
            owner, actual = ("Gaussians", "spheres") if spheres else ("spheres", "Gaussians")
            raise InvalidArgument.of(name, f"belongs to {owner}, but this scene is {actual}; leave it out")
    given["background"] = _background(given.get("background"), known)
    if not spheres:
        if any(isinstance(camera.model, InriaModel) for camera in cameras):
            # Where its projection puts the centre of the first pixel.
            given.setdefault("pixel_center", 0.0)
        return GaussianSettings(**given)
    if "max_depth" not in given:
        given["max_depth"] = _max_depth(known, cameras, number("min_depth", given.get("min_depth", 0.0)))
    return SphereSettings(**{"gamma": _DEFAULT_GAMMA, **given})


def _max_depth(scene: Spheres | Gaussians | None, cameras: Sequence[Camera], min_depth: float) -> float:
    if not isinstance(scene, Spheres):
        raise InvalidArgument.of(
            "max_depth", "has no default for a handle without its scene; pass it, or get the scene with_tensors=True"
        )
    return enclosing_depth(scene, cameras, min_depth)


def _background(background: Any, scene: Spheres | Gaussians | None) -> tuple[float, ...]:
    if background is None:
        return ()
    channels = to_numpy("background", background)
    if channels.dtype.kind not in "fiub":
        raise InvalidArgument.of(
            "background", f"expected a number, or one for each channel, got {background!r}; 0 is black, 1 is white"
        )
    channels = channels.astype(np.float32)
    if channels.ndim == 0 and scene is None:
        raise InvalidArgument.of("background", "expected one value per channel for a handle without its scene")
    if channels.ndim == 0 and scene is not None:
        channels = np.full(scene.channels, channels)
    return tuple(channels.ravel().tolist())
