"""Renders that differ only in the poses of their cameras: prepared once, then drawn without Python; their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.prepared import Place
from lumigrad.kernels.spheres.camera import Camera
from lumigrad.kernels.spheres.camera_sources import OpenCVSource
from lumigrad.kernels.spheres.engine import Prepared
from lumigrad.kernels.spheres.forward import TRACKED, State
from lumigrad.kernels.spheres.inputs import Inputs, check_cameras, depth_range
from lumigrad.kernels.spheres.settings import Settings


def prepare(
    inputs: Inputs,
    cameras: Sequence[Camera],
    settings: Settings,
    places: Sequence[Place],
    payload_bytes: int,
    head: bytes,
    *,
    retain: bool = False,
) -> _native.NativeRender:
    """Prepares renders of one scene by cameras like these at other poses.

    Args:
        inputs: The scene, which must not change while the result is in use.
        cameras: Created by `Camera.opencv`.
        settings: How to blend.
        places: The outputs, each once, from `OUTPUTS`.
        payload_bytes: The size of the payload.
        head: The bytes of a reply before its payload.
        retain: Whether states are kept for `backward`.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_cameras(cameras)
    lenses = []
    for camera in cameras:
        assert isinstance(camera.source, OpenCVSource)
        lenses.append(camera.source.lens(camera.width, camera.height))
    near, far = depth_range(cameras, settings)
    track = any(place.name in TRACKED for place in places) or (retain and not settings.exact)
    native = settings.native(track)
    return _native.sphere_render(lenses, near, far, native, places, payload_bytes, head, **inputs.arrays())


# Images of states whose outputs have other names.
_IDS, _SPHERE_IDS = "ids", "sphere_ids"
_INTEGERS = {_SPHERE_IDS, "stop"}


def images_of(state: State) -> Mapping[str, int]:
    """The number of values of each image that such states keep."""
    return {_SPHERE_IDS if name == _IDS else name: tensor.numel() for name, tensor in state.images.items()}


def state_of(
    images: Mapping[str, torch.Tensor], inputs: Inputs, cameras: Sequence[Camera], settings: Settings
) -> State:
    """The state of a prepared render, as `forward` with `retain` returns it for the same arguments.

    Args:
        images: The values of the state's images, by the names of `images_of`, in one dimension.
        inputs: The scene.
        cameras: The views.
        settings: The settings of the render.
    """
    size = (len(cameras), cameras[0].height, cameras[0].width)
    shaped = {}
    for name, values in images.items():
        typed = values.view(torch.int32) if name in _INTEGERS else values
        shaped[_IDS if name == _SPHERE_IDS else name] = typed.view(size if name == "stop" else (*size, -1))
    near = depth_range(cameras, settings)[0]
    return State(inputs, tuple(cameras), settings, near, shaped, Prepared((0,) * len(cameras)))
