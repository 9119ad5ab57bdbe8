"""Sends many render requests in one call to each worker, and collects their frames and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from lumigrad.client.base.arguments import instance
from lumigrad.client.errors import InvalidArgument, LumigradError, ResourceExhausted, SceneNotFound, VersionMismatch
from lumigrad.client.rendering.frame import Frame, render
from lumigrad.client.rendering.request import RenderRequest, fill_spec, outputs_of, request_of
from lumigrad.client.settings.fields import RENDER_FIELDS
from lumigrad.client.settings.image_format import format_messages
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.status import exception_of_item
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.result import together
from lumigrad.client.workers.routing import Route, in_order
from lumigrad.client.workers.worker import Worker
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2

_Scene: TypeAlias = "Spheres | Gaussians | SceneHandle"
_Cameras: TypeAlias = "Camera | Sequence[Camera]"
# A scene, its cameras and, if needed, further arguments of `Client.render` by their names.
BatchItem: TypeAlias = "tuple[_Scene, _Cameras] | tuple[_Scene, _Cameras, Mapping[str, Any]]"
# The result of an item: its frame or its error.
Result: TypeAlias = "Frame | LumigradError"

_ARGUMENTS = ("settings", "outputs", "image_format", "jpeg_quality", *sorted(RENDER_FIELDS))
# Errors that concern one item only; any other error ends the call.
_OF_ITEMS = (InvalidArgument, ResourceExhausted, SceneNotFound, VersionMismatch)


def batch_requests(items: Iterable[BatchItem], arguments: Mapping[str, Any]) -> list[RenderRequest | LumigradError]:
    """Returns the request of each item, or the error in its arguments; `arguments` are those that all items share."""
    check_names(arguments)
    # A mapping or a string is iterable, but its entries are not what the caller passed.
    advice = "pass a list of (scene, camera) pairs"
    instance("items", items, () if isinstance(items, str | Mapping) else (Iterable,), advice)
    shared_names = arguments.keys() - RENDER_FIELDS
    requests: list[RenderRequest | LumigradError] = []
    for index, item in enumerate(items):
        where = f"items[{index}]"
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            expected = "expected (scene, camera) or (scene, camera, {argument: value})"
            raise InvalidArgument.of(where, f"{expected}, got {type(item).__name__}")
        own: Any = item[2] if len(item) == 3 else {}
        instance(where, own, (Mapping,), "pass its arguments by name, e.g. {'near': 0.1}")
        # An item's own settings also replace the shared fields, which would otherwise change them.
        shared = arguments if own.get("settings") is None else {name: arguments[name] for name in shared_names}
        try:
            check_names(own)
            requests.append(request_of(item[0], item[1], **{**shared, **own}))
        except InvalidArgument as error:
            requests.append(_named(error, index))
    return requests


def batch_facts(requests: Sequence[RenderRequest | LumigradError]) -> dict[str, str | int]:
    """Returns the attributes of the trace span: the number of items, cameras and pixels."""
    cameras = [camera for request in requests if isinstance(request, RenderRequest) for camera in request.cameras]
    pixels = sum(camera.width * camera.height for camera in cameras)
    return {"items": len(requests), "cameras": len(cameras), "pixels": pixels}


def render_batch(workers: Pool, requests: Sequence[RenderRequest | LumigradError], call: Call) -> tuple[Result, ...]:
    """Renders each request on the worker of its scene; errors among `requests` are passed through to the results."""
    results: dict[int, Result] = {}
    sound: dict[int, RenderRequest] = {}
    for index, request in enumerate(requests):
        if isinstance(request, RenderRequest):
            sound[index] = request
        else:
            results[index] = request
    asks = [partial(_render_share, workers, share, route, call) for route, share in _shares(workers, sound)]
    for part in [asks[0]()] if len(asks) == 1 else together(asks) if asks else []:
        results.update(part)
    return tuple(results[index] for index in range(len(requests)))


def _shares(workers: Pool, requests: Mapping[int, RenderRequest]) -> list[tuple[Route, dict[int, RenderRequest]]]:
    """Groups the requests by worker; returns for each group its route and its requests by index."""
    members = workers.members()
    shares: dict[str, tuple[Route, dict[int, RenderRequest]]] = {}
    of_scenes: dict[str, Route] = {}
    for index, request in requests.items():
        name = "" if request.stored is None else request.stored.affinity_key
        route = of_scenes.get(name)
        if route is None:
            route = of_scenes[name] = workers.route(request.stored)
        target = in_order(route, members)[0].target
        shares.setdefault(target, (route._replace(address=target, is_movable=True), {}))[1][index] = request
    return list(shares.values())


def _render_share(workers: Pool, requests: Mapping[int, RenderRequest], route: Route, call: Call) -> dict[int, Result]:
    """Renders requests in one call along a route; requests whose scenes the worker lacks are rendered one by one."""
    attempts = RoutedAttempts(workers, route, call)
    most_reply_bytes = sum(request.most_reply_bytes for request in requests.values())
    while True:
        with attempts as worker:
            build = partial(_message, requests.values(), worker)
            method = worker.connection.render.RenderBatch
            reply = worker.connection.exchange(method, build, attempts.call, most_reply_bytes)
            break
    results: dict[int, Result] = {}
    for (index, request), item in zip(requests.items(), reply.header.items, strict=True):
        if item.status.code == 0:
            arrays, files = outputs_of(item.outputs, reply.reader)
            results[index] = Frame(workers, request, arrays, files, None, reply.timings, item)
            continue
        error = exception_of_item(item.status, worker.target, call.timeout_s)
        results[index] = _repaired(workers, request, error, index, call)
    return results


def _message(
    requests: Iterable[RenderRequest], worker: Worker, payload: PayloadWriter
) -> render_pb2.RenderBatchRequest:
    """Returns the message for a worker; scenes that are not stored are appended to `payload`."""
    message = render_pb2.RenderBatchRequest()
    for request in requests:
        stored = request.stored
        item = message.items.add(formats=format_messages(request.image_formats, request.jpeg_quality))
        fill_spec(item.spec, request, None if stored is None else worker.store.reference(stored), payload)
    return message


def _repaired(workers: Pool, request: RenderRequest, error: LumigradError, index: int, call: Call) -> Result:
    """Renders a request in a call of its own if that can resolve `error`; otherwise returns the error.

    Such a call stores a lost scene again, and waits while the worker is full.
    """
    is_full = isinstance(error, ResourceExhausted) and error.retry_after_s is not None
    if is_full or isinstance(error, SceneNotFound | VersionMismatch):
        try:
            return render(workers, request, False, call)
        except _OF_ITEMS as last:
            error = last
    return _named(error, index)


def _named(error: LumigradError, index: int) -> LumigradError:
    """Returns the error with the item's index in its text."""
    error.args = (f"items[{index}]: {error}",)
    return error


def check_names(arguments: Mapping[str, Any]) -> None:
    """Raises InvalidArgument unless all names are arguments of `Client.render` that a batch takes."""
    for name in arguments:
        if name == "retain":
            text = "belongs to render: a batch keeps no forward state; backward of its frames renders the item again"
            raise InvalidArgument.of(name, text)
        if name not in _ARGUMENTS:
            raise InvalidArgument.of(str(name), f"expected arguments of render, {', '.join(_ARGUMENTS)}")
