"""Render requests as messages of the contract, and the arrays of replies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from lumigrad.client.base.arrays import Array
from lumigrad.client.rendering.request import RenderRequest
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.transport.connection import Reply
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.wire.scenes import (
    camera_message,
    gaussian_settings_message,
    scene_message,
    sphere_settings_message,
)
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, scene_pb2

# How the names of gradients begin that have a row per camera whatever the scene.
PER_CAMERA = ("camera", "means2d")
WIRE_FORMATS = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}


def fill_spec(
    spec: render_pb2.RenderSpec, request: RenderRequest, reference: scene_pb2.SceneRef | None, payload: PayloadWriter
) -> None:
    """Says what to render; a scene without a `reference` travels with the call, in `payload`."""
    spec.cameras.extend(camera_message(camera) for camera in request.cameras)
    spec.outputs.extend(request.outputs)
    if isinstance(request.settings, SphereSettings):
        spec.spheres.CopyFrom(sphere_settings_message(request.settings))
    else:
        spec.gaussians.CopyFrom(gaussian_settings_message(request.settings))
    if reference is not None:
        spec.scene_ref.CopyFrom(reference)
    elif not isinstance(request.scene, SceneHandle):
        spec.scene.CopyFrom(scene_message(request.scene, payload))


def outputs_of(reply: Reply[Any]) -> tuple[dict[str, Array], dict[str, tuple[bytes, ...]]]:
    """The arrays of a reply, and its files."""
    arrays: dict[str, Array] = {}
    files: dict[str, tuple[bytes, ...]] = {}
    for named in reply.header.outputs:
        array = reply.reader.read(named.tensor, named.name)
        if named.HasField("encoded"):
            files[named.name] = _files(array, named.encoded.lengths)
        else:
            half = named.tensor.dtype in (dtypes.FLOAT16, dtypes.BFLOAT16)
            arrays[named.name] = dtypes.to_float32(array, named.tensor.dtype) if half else array
    return arrays, files


def gradients_of(reply: Reply[Any], single: bool) -> dict[str, Array]:
    """The gradients of a reply; with `single` without the axis of cameras."""
    arrays: dict[str, Array] = {}
    for named in reply.header.gradients:
        array = reply.reader.read(named.tensor, named.name)
        if named.tensor.dtype != dtypes.INT64:
            array = dtypes.to_float32(array, named.tensor.dtype)
        arrays[named.name] = array[0] if single and named.name.startswith(PER_CAMERA) else array
    return arrays


def _files(contents: Array, lengths: Sequence[int]) -> tuple[bytes, ...]:
    ends = list(accumulate(lengths))
    return tuple(contents[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True))
