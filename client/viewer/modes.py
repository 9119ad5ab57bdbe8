"""What a picture can show of a scene: colours, depths, opacity, or which sphere is where."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from lumigrad.client.frame import Frame
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.image_format import ImageFormats
from lumigrad.client.named_arrays import Array
from lumigrad.client.spheres import Spheres
from lumigrad.client.viewer.color_scale import DEPTHS
from lumigrad.client.viewer.picture import jpeg_of

# Of a picture's depths, shares left aside at either end.
_NEAREST_PERCENTILE, _FARTHEST_PERCENTILE = 1.0, 99.0
_VISIBLE = 127
_PALETTE_SIZE = 4096
# Neighbouring numbers get colours far apart: multiplied by an odd number, modulo the size.
_SCATTER = 1597


@dataclass(frozen=True)
class Look:
    """What else somebody chose in the panel.

    Attributes:
        background: [3] 0 to 1.
        depths: nearest and farthest depth shown, scene units; None: what the last sharp picture held.
    """

    background: tuple[float, float, float]
    depths: tuple[float, float] | None = None


class Mode(Protocol):
    """One of the entries of the panel."""

    @property
    def label(self) -> str:
        """Its name there."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What must be rendered."""

    @property
    def formats(self) -> ImageFormats:
        """How that travels."""

    def file(self, frame: Frame, look: Look, *, is_sharp: bool) -> bytes:
        """A JPEG."""

    def legend(self) -> str:
        """HTML; empty: there is nothing to explain."""


class ColorMode:
    """The picture itself, compressed by the worker."""

    label, outputs = "colour", ("color",)
    formats: ImageFormats = MappingProxyType({"color": "jpeg"})

    def file(self, frame: Frame, look: Look, *, is_sharp: bool) -> bytes:
        """As it came."""
        file = frame.encoded["color"]
        assert isinstance(file, bytes)
        return file

    def legend(self) -> str:
        """None."""
        return ""


class DepthMode:
    """Depths in colours, over the background."""

    label = "depth"

    def __init__(self, output: str) -> None:
        self._output = output
        self.outputs = (output, "alpha")
        self.formats: ImageFormats = {output: "float16", "alpha": "uint8"}
        # Of the last sharp picture: were it anew for each, colours would flicker while the camera moves.
        self._seen: tuple[float, float] | None = None
        self._shown = (0.0, 1.0)

    def file(self, frame: Frame, look: Look, *, is_sharp: bool) -> bytes:
        """Blended by opacity."""
        depth, alpha = frame[self._output], frame.alpha
        if look.depths is None and (is_sharp or self._seen is None):
            self._seen = _range_of(depth, alpha)
        low, high = self._shown = look.depths or self._seen or (0.0, 1.0)
        colors = DEPTHS.levels((depth - low) / max(high - low, 1e-9))
        background = np.rint(255.0 * np.asarray(look.background)).astype(np.uint16)
        # Spheres have a depth of -1 where there is none. In 16 bits, since this is done for each picture.
        share = np.where(depth < 0.0, 0, alpha)[..., None].astype(np.uint16)
        blended = (colors * share + background * (255 - share) + 127) // 255
        return jpeg_of(blended.astype(np.uint8), is_sharp=is_sharp)

    def legend(self) -> str:
        """The range of the last picture."""
        low, high = self._shown
        marks = [f"{low + share * (high - low):.4g}" for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        return DEPTHS.legend("depth, scene units", marks)


class AlphaMode:
    """Opacity, from black to white."""

    label, outputs = "alpha", ("alpha",)
    formats: ImageFormats = MappingProxyType({"alpha": "uint8"})

    def file(self, frame: Frame, look: Look, *, is_sharp: bool) -> bytes:
        """In grey."""
        return jpeg_of(frame.alpha, is_sharp=is_sharp)

    def legend(self) -> str:
        """None."""
        return ""


class IdsMode:
    """The sphere that is closest, each number in a colour of its own."""

    label, outputs = "sphere ids", ("sphere_ids",)
    formats: ImageFormats = MappingProxyType({})

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        hue, strength, light = generator.uniform((0, 0.45, 0.55), (1, 0.9, 1.0), (_PALETTE_SIZE, 3)).T
        waves = np.clip(np.abs((hue[:, None] * 6 + np.array([0, 4, 2])) % 6 - 3) - 1, 0, 1)
        colors = light[:, None] * (1 - strength[:, None] * (1 - waves))
        self._palette = np.rint(255 * colors).astype(np.uint8)

    def file(self, frame: Frame, look: Look, *, is_sharp: bool) -> bytes:
        """Over the background."""
        ids = frame.sphere_ids[..., 0]
        colors = self._palette[ids.astype(np.int64) * _SCATTER % _PALETTE_SIZE]
        background = np.rint(255.0 * np.asarray(look.background)).astype(np.uint8)
        return jpeg_of(np.where((ids < 0)[..., None], background, colors), is_sharp=is_sharp)

    def legend(self) -> str:
        """None."""
        return ""


def modes_of(scene: Spheres | Gaussians) -> tuple[Mode, ...]:
    """Those that a scene can be shown in, the first one first."""
    if isinstance(scene, Gaussians):
        return (ColorMode(), DepthMode("expected_depth"), AlphaMode())
    return (ColorMode(), DepthMode("depth"), AlphaMode(), IdsMode())


def _range_of(depth: Array, alpha: Array) -> tuple[float, float] | None:
    """Of what is visible; None: nothing is."""
    seen = depth[(alpha > _VISIBLE) & (depth > 0.0) & np.isfinite(depth)]
    if not seen.size:
        return None
    low, high = np.percentile(seen[:: max(1, seen.size // 20000)], [_NEAREST_PERCENTILE, _FARTHEST_PERCENTILE])
    return float(low), max(float(high), float(low) * 1.001 + 1e-9)
