"""The view that a browser requests, and the call that renders it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.calls.scenes import stored
from lumigrad.client.client import Client
from lumigrad.client.datasets.view import resized
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import RenderRequest, request_of
from lumigrad.client.rendering.stream import RenderStream
from lumigrad.client.settings.image_format import ImageFormats
from lumigrad.client.transport.call import Cancellation
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.viewer.crop import Box
from lumigrad.client.viewer.lens import Lens
from lumigrad.client.viewer.modes import Levels, Look, modes_of
from lumigrad.client.viewer.picture import COARSE_QUALITY, SHARP_QUALITY, Picture, depth_file, jpeg_of
from lumigrad.client.viewer.stream import Order


@dataclass(frozen=True)
class View:
    """A requested view.

    Attributes:
        lens: the browser's camera.
        size: width and height of the sharp picture, pixels.
        mode: the label of one of the painter's modes.
        look: the other choices in the panel.
        is_solid: whether the browser draws objects that mix with the scene.
        through: a camera of a data set that takes the picture in place of the browser's, with its lens and shutter.
        box: everything outside it is hidden; None: nothing is hidden.
    """

    lens: Lens
    size: tuple[int, int]
    mode: str
    look: Look
    is_solid: bool
    through: Camera | None = None
    box: Box | None = None

    def camera(self, width: int, height: int) -> Camera:
        """Returns the camera that takes the picture, for an image of any size."""
        return self.lens.camera(width, height) if self.through is None else resized(self.through, width, height)


class Painter:
    """Renders one stored scene for one browser. Thread-safe, except for `paint`, which one thread calls at a time.

    Attributes:
        modes: the scene's modes by label.
    """

    def __init__(
        self, client: Client, stored: Callable[[], SceneHandle], kind: str, settings: Mapping[str, Any]
    ) -> None:
        """Renders nothing yet.

        Args:
            client: a client of the worker.
            stored: returns the scene to render; crop boxes need the client's copy of it.
            kind: its kind, "gaussians" or "spheres".
            settings: settings of `Client.render`.
        """
        self._client, self._stored, self._settings = client, stored, settings
        self._is_gaussians = kind == "gaussians"
        self._lock = threading.Lock()
        self._cropped: tuple[Box, SceneHandle] | None = None
        self._stream: RenderStream | None = None
        # Releases the stored part.
        self._keeping = ExitStack()
        self.modes = {mode.label: mode for mode in modes_of(kind)}

    def paint(self, view: View, order: Order, cancellation: Cancellation) -> Picture:
        """Renders a view at the size of the order, unless it is cancelled."""
        mode = self.modes[view.mode]
        if view.through is not None:
            frame = self._render(view, (order.width, order.height), mode.formats, cancellation)
            levels = _padded(mode.levels(frame, view.look, is_sharp=order.is_sharp), view.lens.aspect)
            return Picture(jpeg_of(levels, is_sharp=order.is_sharp), None, frame.timings)
        quality = SHARP_QUALITY if order.is_sharp else COARSE_QUALITY
        frame = self._render(view, (order.width, order.height), mode.file_formats, cancellation, quality)
        file = mode.file(frame, view.look, is_sharp=order.is_sharp)
        depths = depth_file(self._along_axis(frame, view.lens), frame.alpha / 255.0) if view.is_solid else None
        return Picture(file, depths, frame.timings)

    def levels(self, view: View) -> Levels:
        """Returns a view at its full size, [H, W, 3], without loss."""
        mode = self.modes[view.mode]
        frame = self._render(view, view.size, mode.formats)
        return mode.levels(frame, view.look, is_sharp=True)

    def close(self) -> None:
        """Ends the stream, and removes the part that the crop box stored."""
        with self._lock:
            self._end_stream()
            self._forget()

    def _render(
        self,
        view: View,
        size: tuple[int, int],
        formats: ImageFormats,
        cancellation: Cancellation | None = None,
        quality: int | None = None,
    ) -> Frame:
        mode, depth = self.modes[view.mode], self._depth
        solid = (depth, "alpha") if view.is_solid else ()
        formats = {**formats, **({depth: "float16", "alpha": "uint8"} if solid else {})}
        settings = {**self._settings, **({"n_track": 1} if "sphere_ids" in mode.outputs else {})}
        client = self._client if cancellation is None else self._client._cancelled_by(cancellation)
        arguments = {
            **settings,
            "background": view.look.background,
            "outputs": tuple(dict.fromkeys((*mode.outputs, *solid))),
            "image_format": formats,
            "jpeg_quality": quality if "jpeg" in formats.values() else None,
        }
        request = request_of(self._scene(client, view.box), view.camera(*size), **arguments)
        return client._rendered(request) if cancellation is None else self._streamed(request, cancellation)

    def _streamed(self, request: RenderRequest, cancellation: Cancellation) -> Frame:
        """Renders a request as a frame of the stream of its scene; skips frames that were cancelled before."""
        with self._lock:
            if self._stream is None or self._stream.scene is not request.scene:
                self._end_stream()
                assert request.stored is not None
                self._stream = self._client.stream(request.stored, latest_only=True)
            stream = self._stream._cancelled_by(cancellation)
        stream.ask(request)
        return stream.receive()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    @property
    def _depth(self) -> str:
        return "expected_depth" if self._is_gaussians else "depth"

    def _scene(self, client: Client, box: Box | None) -> SceneHandle:
        """Returns the stored scene, or the part of it inside a box, which is stored for as long as the box is kept."""
        with self._lock:
            if box is None:
                self._forget()
                return self._stored()
            if self._cropped is None or self._cropped[0] != box:
                whole = self._stored().scene
                assert isinstance(whole, Gaussians | Spheres)
                part = box.part_of(whole)
                if not len(part):
                    raise InvalidArgument.of("crop", "nothing is inside the box: move its sliders apart")
                if len(part) == len(whole):
                    return self._stored()
                self._forget()
                self._cropped = box, self._keeping.enter_context(stored(client, part))
            return self._cropped[1]

    def _forget(self) -> None:
        self._cropped = None
        self._keeping.close()

    def _along_axis(self, frame: Frame, lens: Lens) -> Array:
        """Returns depths [H, W] along the view direction; spheres, and Gaussians by distance, have them along rays."""
        depth = frame[self._depth]
        if self._is_gaussians and self._settings.get("depth_order") != "distance":
            return depth
        height, width = depth.shape
        tangent = math.tan(lens.fov / 2)
        x = np.linspace(-1, 1, width, dtype=np.float32) * lens.aspect * tangent
        y = np.linspace(-1, 1, height, dtype=np.float32) * tangent
        return np.asarray(depth / np.sqrt(1.0 + x * x + (y * y)[:, None]))


def _padded(levels: Levels, aspect: float) -> Levels:
    """Returns [H, W, 3] with black borders that give it the aspect of a window."""
    height, width = levels.shape[:2]
    x = max(round(height * aspect) - width, 0)
    y = max(round(width / aspect) - height, 0)
    return np.pad(levels, ((y // 2, y - y // 2), (x // 2, x - x // 2), (0, 0)))
