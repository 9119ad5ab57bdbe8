"""The view that a browser requests, and the call that renders it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.client import Client
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.image_format import ImageFormats
from lumigrad.client.transport.call import Cancellation
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.viewer.lens import Lens
from lumigrad.client.viewer.modes import Look, modes_of
from lumigrad.client.viewer.picture import COARSE_QUALITY, SHARP_QUALITY, Picture, depth_file
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
    """

    lens: Lens
    size: tuple[int, int]
    mode: str
    look: Look
    is_solid: bool


class Painter:
    """Renders one stored scene for one browser.

    Attributes:
        modes: the scene's modes by label.
    """

    def __init__(
        self, client: Client, stored: SceneHandle, scene: Spheres | Gaussians, settings: Mapping[str, Any]
    ) -> None:
        self._client, self._stored, self._settings = client, stored, settings
        self._is_gaussians = isinstance(scene, Gaussians)
        self.modes = {mode.label: mode for mode in modes_of(scene)}

    def paint(self, view: View, order: Order, cancellation: Cancellation) -> Picture:
        """Renders a view at the size of the order, unless it is cancelled."""
        mode = self.modes[view.mode]
        depth = "expected_depth" if self._is_gaussians else "depth"
        solid = (depth, "alpha") if view.is_solid else ()
        formats: ImageFormats = {**mode.formats, **({depth: "float16", "alpha": "uint8"} if solid else {})}
        quality = SHARP_QUALITY if order.is_sharp else COARSE_QUALITY
        settings = {**self._settings, **({"n_track": 1} if "sphere_ids" in mode.outputs else {})}
        frame = self._client._cancelled_by(cancellation).render(
            self._stored,
            view.lens.camera(order.width, order.height),
            **{**settings, "background": view.look.background},
            outputs=tuple(dict.fromkeys((*mode.outputs, *solid))),
            image_format=formats,
            jpeg_quality=quality if "jpeg" in formats.values() else None,
        )
        file = mode.file(frame, view.look, is_sharp=order.is_sharp)
        depths = depth_file(self._along_axis(frame, depth, view.lens), frame.alpha / 255.0) if solid else None
        return Picture(file, depths, frame.timings)

    def _along_axis(self, frame: Frame, name: str, lens: Lens) -> Array:
        """Returns [H, W], depths along the view direction; the worker's depths of spheres are along the rays."""
        depth = frame[name]
        if self._is_gaussians:
            return depth
        height, width = depth.shape
        tangent = math.tan(lens.fov / 2)
        x = np.linspace(-1, 1, width, dtype=np.float32) * lens.aspect * tangent
        y = np.linspace(-1, 1, height, dtype=np.float32) * tangent
        return np.asarray(depth / np.sqrt(1.0 + x * x + (y * y)[:, None]))
