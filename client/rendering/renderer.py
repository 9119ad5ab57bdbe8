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
from lumigrad.client.transport.connection import Reply
from lumigrad.client.transport.retry import Deadline
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.wire.scenes import (
    camera_message,
    gaussian_settings_message,
    scene_message,
    sphere_settings_message,
)
from lumigrad.client.workers.contexts import Kept
from lumigrad.client.workers.pool import Workers
from lumigrad.client.workers.routing import Wish
from lumigrad.client.workers.worker import Worker
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, scene_pb2, tensor_pb2

# How the names of gradients begin that have a row per camera whatever the scene.
_PER_CAMERA = ("camera", "means2d")
_WIRE_FORMATS = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}


class RemoteRenderer:
    """The renderer of a client's workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call."""
        return self._workers.deadline(timeout_s)

    def render(self, request: RenderRequest, retain: bool, deadline: Deadline, wish: Wish | None = None) -> Frame:
        """Renders; with `retain` the worker keeps the forward state for the frame's backward.

        Args:
            request: what to render.
            retain: whether to keep it.
            deadline: of all of it.
            wish: which worker; None: the scene's.
        """
        return self._workers.call(
            wish or _stored(request), lambda worker: self._rendered(worker, request, retain, deadline), deadline
        )

    def _rendered(self, worker: Worker, request: RenderRequest, retain: bool, deadline: Deadline) -> Frame:
        def attempt(reference: scene_pb2.SceneRef | None) -> Reply[Any]:
            def build(payload: PayloadWriter) -> Message:
                spec = _spec(request, reference, payload)
                formats = format_messages(request.image_formats, request.jpeg_quality)
                return render_pb2.RenderRequest(spec=spec, retain=retain, formats=formats)

            return worker.connection.exchange(worker.connection.render.Render, build, deadline)

        if isinstance(request.scene, SceneHandle):
            reply = worker.store.with_reference(request.scene, attempt, deadline)
        else:
            reply = attempt(None)
        arrays: dict[str, Array] = {}
        files: dict[str, tuple[bytes, ...]] = {}
        for named in reply.header.outputs:
            array = reply.reader.read(named.tensor, named.name)
            if named.HasField("encoded"):
                files[named.name] = _files(array, named.encoded.lengths)
            else:
                half = named.tensor.dtype in (dtypes.FLOAT16, dtypes.BFLOAT16)
                arrays[named.name] = dtypes.to_float32(array, named.tensor.dtype) if half else array
        kept = Kept.of(reply.header.context_id, worker, worker.connection.render.Release)
        return Frame(self, request, arrays, files, kept, reply.timings)

    def backward(
        self, request: BackwardRequest, deadline: Deadline, kept: Kept | None = None, release: bool = False
    ) -> Gradients:
        """Gradients from the forward state, or without one by rendering again.

        Raises:
            ContextLost: the state is gone, perhaps with its worker.
        """
        if kept is not None:
            return self._workers.call_holder(
                kept, lambda worker: self._differentiated(worker, request, deadline, kept, release), deadline
            )
        return self._workers.call(
            _stored(request.render), lambda worker: self._differentiated(worker, request, deadline), deadline
        )

    def _differentiated(
        self,
        worker: Worker,
        request: BackwardRequest,
        deadline: Deadline,
        kept: Kept | None = None,
        release: bool = False,
    ) -> Gradients:
        render = request.render

        def build(reference: scene_pb2.SceneRef | None, payload: PayloadWriter) -> Message:
            spec = render_pb2.BackwardSpec(wanted=request.wanted, release=release and kept is not None)
            spec.format.dtype, spec.format.sparse = _WIRE_FORMATS[request.wire_format], request.sparse
            if kept is None:
                spec.render.CopyFrom(_spec(render, reference, payload))
            else:
                spec.context_id = kept.context_id
            for name, array in request.output_gradients.items():
                spec.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)))
            return render_pb2.BackwardRequest(spec=spec)

        def attempt(reference: scene_pb2.SceneRef | None) -> Reply[Any]:
            method = worker.connection.render.Backward
            return worker.connection.exchange(method, lambda payload: build(reference, payload), deadline)

        if kept is None and isinstance(render.scene, SceneHandle):
            reply = worker.store.with_reference(render.scene, attempt, deadline, any_version=True)
        else:
            reply = attempt(None)
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
