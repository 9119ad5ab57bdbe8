"""Render and Backward through one connection: requests to messages, replies to arrays."""

from __future__ import annotations

from collections import deque
from typing import Any

from lumigrad.client.connection import Connection, Reply
from lumigrad.client.frame import Frame
from lumigrad.client.gradients import Gradients
from lumigrad.client.messages import (
    camera_message,
    gaussian_settings_message,
    scene_message,
    sphere_settings_message,
)
from lumigrad.client.named_arrays import Array
from lumigrad.client.request import BackwardRequest, RenderRequest
from lumigrad.client.retry import Deadline
from lumigrad.client.scene import SceneHandle
from lumigrad.client.scene_store import SceneStore
from lumigrad.client.settings import SphereSettings
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, scene_pb2, tensor_pb2

# How the names of gradients begin that have a row per camera whatever the scene.
_PER_CAMERA = ("camera", "means2d")
_WIRE_FORMATS = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}


class RemoteRenderer:
    """The renderer of the worker behind a connection."""

    def __init__(self, connection: Connection, store: SceneStore) -> None:
        self._connection = connection
        self._store = store
        self._discarded: deque[str] = deque()

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call."""
        return self._connection.deadline(timeout_s)

    def discard(self, context_id: str) -> None:
        """Notes a context that nobody needs; the next call tells the worker.

        Called by finalizers, anywhere and in any thread: must not take a lock, so it does not call the worker itself.
        """
        self._discarded.append(context_id)

    def render(self, request: RenderRequest, retain: bool, deadline: Deadline) -> Frame:
        """Renders; with `retain` the worker keeps the forward state for the frame's backward."""
        self.flush()

        def attempt(reference: scene_pb2.SceneRef | None) -> Reply[Any]:
            payload = PayloadWriter()
            header = render_pb2.RenderRequest(spec=_spec(request, reference, payload), retain=retain)
            return self._connection.exchange(self._connection.render.Render, header, payload, deadline)

        if isinstance(request.scene, SceneHandle):
            reply = self._store.with_reference(request.scene, attempt, deadline)
        else:
            reply = attempt(None)
        arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.outputs}
        return Frame(self, request, arrays, reply.header.context_id or None, reply.timings)

    def backward(
        self, request: BackwardRequest, deadline: Deadline, context_id: str | None = None, release: bool = False
    ) -> Gradients:
        """Gradients from the context, or without one by rendering again."""
        render = request.render

        def attempt(reference: scene_pb2.SceneRef | None) -> Reply[Any]:
            payload = PayloadWriter()
            spec = render_pb2.BackwardSpec(wanted=request.wanted, release=release)
            spec.format.dtype, spec.format.sparse = _WIRE_FORMATS[request.wire_format], request.sparse
            if context_id is None:
                spec.render.CopyFrom(_spec(render, reference, payload))
            else:
                spec.context_id = context_id
            for name, array in request.output_gradients.items():
                spec.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)))
            header = render_pb2.BackwardRequest(spec=spec)
            return self._connection.exchange(self._connection.render.Backward, header, payload, deadline)

        if context_id is None and isinstance(render.scene, SceneHandle):
            reply = self._store.with_reference(render.scene, attempt, deadline, any_version=True)
        else:
            reply = attempt(None)
        return Gradients(_gradient_arrays(reply, render.single), reply.timings)

    def flush(self) -> None:
        """Tells the worker which contexts it may forget, without waiting for it."""
        while self._discarded:
            request = render_pb2.ReleaseRequest(context_id=self._discarded.popleft())
            self._connection.forget(self._connection.render.Release, request)


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


def _gradient_arrays(reply: Reply[Any], single: bool) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for named in reply.header.gradients:
        array = reply.reader.read(named.tensor, named.name)
        if named.tensor.dtype != dtypes.INT64:
            array = dtypes.to_float32(array, named.tensor.dtype)
        arrays[named.name] = array[0] if single and named.name.startswith(_PER_CAMERA) else array
    return arrays
