"""Render and Backward on a client's workers: requests to messages, replies to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from google.protobuf.message import Message

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.timings import Gradients
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import BackwardRequest, RenderRequest
from lumigrad.client.settings.image_format import format_messages
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.connection import Reply
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.wire.scenes import (
    camera_message,
    gaussian_settings_message,
    scene_message,
    sphere_settings_message,
)
from lumigrad.client.workers.contexts import Context, Kept
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.routing import Route
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, scene_pb2, tensor_pb2

# How the names of gradients begin that have a row per camera whatever the scene.
_PER_CAMERA = ("camera", "means2d")
_WIRE_FORMATS = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}


class RemoteRenderer:
    """The renderer of a client's workers."""

    def __init__(self, workers: Pool) -> None:
        self._workers = workers
        self.begin = workers.begin

    def render(self, request: RenderRequest, retain: bool, call: Call, route: Route | None = None) -> Frame:
        """Renders; with `retain` the worker keeps the forward state for the frame's backward.

        Args:
            request: what to render.
            retain: whether to keep it.
            call: of the user.
            route: which worker; None: the scene's.
        """
        attempts = self._workers.attempts(_stored(request), call, route=route)

        def build(payload: PayloadWriter) -> Message:
            spec = _spec(request, attempts.reference, payload)
            formats = format_messages(request.image_formats, request.jpeg_quality)
            return render_pb2.RenderRequest(spec=spec, retain=retain, formats=formats)

        while True:
            with attempts as worker:
                service = worker.connection.render
                reply = worker.connection.exchange(service.Render, build, attempts.call)
                kept = Kept.of(reply.header.context_id, worker, service.Release, attempts.call.affinity)
                arrays, files = _outputs(reply)
                return Frame(self, request, arrays, files, kept, reply.timings)

    def backward(self, request: BackwardRequest, call: Call, context: Context, release: bool) -> Gradients:
        """Gradients from the forward state, or without one by rendering again."""
        render = request.render
        attempts = self._workers.attempts(_stored(render), call, context=context, to_release=release, any_version=True)

        def build(payload: PayloadWriter) -> Message:
            spec = render_pb2.BackwardSpec(wanted=request.wanted, release=release and attempts.kept is not None)
            spec.format.dtype, spec.format.sparse = _WIRE_FORMATS[request.wire_format], request.sparse
            if attempts.kept is None:
                spec.render.CopyFrom(_spec(render, attempts.reference, payload))
            else:
                spec.context_id = attempts.kept.context_id
            for name, array in request.output_gradients.items():
                spec.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)))
            return render_pb2.BackwardRequest(spec=spec)

        while True:
            with attempts as worker:
                reply = worker.connection.exchange(worker.connection.render.Backward, build, attempts.call)
                return Gradients(_gradient_arrays(reply, render.single), reply.timings)


def _stored(request: RenderRequest) -> SceneHandle | None:
    """The scene that decides which worker is asked; one that travels with the call does not."""
    return request.scene if isinstance(request.scene, SceneHandle) else None


def _spec(
    request: RenderRequest, reference: scene_pb2.SceneRef | None, payload: PayloadWriter
) -> render_pb2.RenderSpec:
    spec = render_pb2.RenderSpec(
        cameras=[camera_message(camera) for camera in request.cameras],
        outputs=request.outputs,
    )
    if isinstance(request.settings, SphereSettings):
        spec.spheres.CopyFrom(sphere_settings_message(request.settings))
    else:
        spec.gaussians.CopyFrom(gaussian_settings_message(request.settings))
    if reference is not None:
        spec.scene_ref.CopyFrom(reference)
    elif not isinstance(request.scene, SceneHandle):
        spec.scene.CopyFrom(scene_message(request.scene, payload))
    return spec


def _outputs(reply: Reply[Any]) -> tuple[dict[str, Array], dict[str, tuple[bytes, ...]]]:
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


def _files(contents: Array, lengths: Sequence[int]) -> tuple[bytes, ...]:
    ends = list(accumulate(lengths))
    return tuple(contents[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True))


def _gradient_arrays(reply: Reply[Any], single: bool) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for named in reply.header.gradients:
        array = reply.reader.read(named.tensor, named.name)
        if named.tensor.dtype != dtypes.INT64:
            array = dtypes.to_float32(array, named.tensor.dtype)
        arrays[named.name] = array[0] if single and named.name.startswith(_PER_CAMERA) else array
    return arrays
