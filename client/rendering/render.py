"""Renders on the worker of a scene, or on several that share the views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from lumigrad.client.base.timings import Gradients
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import PER_CAMERA, BackwardRequest, RenderRequest, fill_spec, outputs_of
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.image_format import format_messages
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.transport.call import Call
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.routing import Route
from lumigrad.client.workers.spread import added, portions, slowest, together
from lumigrad.client.workers.worker import Kept
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2

# Gradients with a row for each primitive, which are sparse on request.
_ROWS = ("positions", "colors", "radii", "opacities", "means", "quats", "scales", "covariances", "sh")


class SpreadFrame(Frame):
    """As `Frame`: the views of its parts, one after the other, and the sum of their gradients."""

    def __init__(self, workers: Pool, request: RenderRequest, parts: Sequence[Frame]) -> None:
        """Takes what was rendered of `request`, in the order of its cameras."""
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        files = {name: tuple(chain.from_iterable(part.files[name] for part in parts)) for name in parts[0].files}
        super().__init__(workers, request, arrays, files, None, slowest([part.timings for part in parts]))
        self._parts = parts

    def release(self) -> None:
        """Lets the workers forget the forward state; backward still works, by computing it again."""
        for part in self._parts:
            part.release()

    def differentiated(self, request: BackwardRequest, call: Call, release: bool) -> Gradients:
        """The sum of what each part's worker answers; of cameras, one after the other."""
        asks: list[Callable[[], Gradients]] = []
        begin = 0
        for part in self._parts:
            end = begin + len(part.request.cameras)
            upstream = {name: array[begin:end] for name, array in request.output_gradients.items()}
            piece = replace(request, output_gradients=upstream)
            asks.append(partial(part.differentiated, piece, call, release))
            begin = end
        found = together(asks)
        joined = [name for name in found[0] if name.startswith(PER_CAMERA)]
        if _has_backgrounds(self.request):
            joined.append("background")
        return added(found, _ROWS, joined)


def render(workers: Pool, request: RenderRequest, retain: bool, call: Call, route: Route | None = None) -> Frame:
    """Renders; with `retain` the worker keeps the forward state for the frame's backward.

    Args:
        workers: of the client.
        request: what to render.
        retain: whether to keep it.
        call: of the user.
        route: which worker; None: the scene's.
    """
    attempts = RoutedAttempts(workers, request.stored, call, route=route)

    def build(payload: PayloadWriter) -> render_pb2.RenderRequest:
        formats = format_messages(request.image_formats, request.jpeg_quality)
        message = render_pb2.RenderRequest(retain=retain, formats=formats)
        fill_spec(message.spec, request, attempts.reference, payload)
        return message

    while True:
        with attempts as worker:
            service = worker.connection.render
            reply = worker.connection.exchange(service.Render, build, attempts.call)
            kept = Kept.of(reply.header.context_id, worker, service.Release, attempts.call.affinity)
            arrays, files = outputs_of(reply)
            return Frame(workers, request, arrays, files, kept, reply.timings)


def render_spread(workers: Pool, request: RenderRequest, retain: bool, call: Call) -> Frame:
    """Renders each worker's share of the views at the same time; all on one worker what cannot be shared."""
    most = len(request.cameras) if _is_divisible(request) else 1
    routes = workers.spread(request.stored, most)
    if len(routes) < 2:
        return render(workers, request, retain, call)
    asks: list[Callable[[], Frame]] = []
    for share, route in zip(portions(len(request.cameras), len(routes)), routes, strict=True):
        part = replace(request, cameras=request.cameras[share], settings=_settings_of(request, share))
        asks.append(partial(render, workers, part, retain, call, route))
    return SpreadFrame(workers, request, together(asks))


def _known(request: RenderRequest) -> object:
    return request.scene.scene if isinstance(request.scene, SceneHandle) else request.scene


def _is_divisible(request: RenderRequest) -> bool:
    """Whether each view shows the whole scene: not where cameras belong to one of several scenes, or have colours."""
    scene = _known(request)
    if isinstance(scene, Gaussians):
        return scene.scenes is None and (scene.colors is None or scene.colors.ndim == 2)
    return isinstance(scene, Spheres)


def _has_backgrounds(request: RenderRequest) -> bool:
    """Whether each camera has a background of its own."""
    scene, background = _known(request), request.settings.background
    return isinstance(scene, Gaussians) and len(background) > scene.channels


def _settings_of(request: RenderRequest, share: slice) -> SphereSettings | GaussianSettings:
    settings = request.settings
    if isinstance(settings, SphereSettings) or not _has_backgrounds(request):
        return settings
    scene = _known(request)
    assert isinstance(scene, Gaussians)
    colors = settings.background[share.start * scene.channels : share.stop * scene.channels]
    return replace(settings, background=colors)
