"""The viewer's modes: colour, depth with a legend, alpha, sphere ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Array
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.image_format import ImageFormats
from lumigrad.client.viewer.picture import jpeg_of

Levels = npt.NDArray[np.uint8]
_Color = tuple[float, float, float]
_ENTRIES = 1024


class ColorScale:
    """A colour map for numbers from 0 to 1; others are clipped, NaN counts as 0."""

    def __init__(self, stops: Sequence[_Color], places: Sequence[float] | None = None) -> None:
        """Creates a map that interpolates between stops.

        Args:
            stops: sRGB, 0 to 1.
            places: positions of the stops, ascending from 0 to 1; None: evenly spaced. Equal positions make a jump.
        """
        self._stops = stops
        self._places = list(np.linspace(0.0, 1.0, len(stops))) if places is None else list(places)
        channels = [
            np.interp(np.linspace(0.0, 1.0, _ENTRIES), self._places, channel) for channel in zip(*stops, strict=True)
        ]
        self._table: Levels = np.rint(255.0 * np.stack(channels, axis=-1)).astype(np.uint8)

    def levels(self, fractions: npt.NDArray[Any]) -> Levels:
        """Returns [..., 3], the colours of numbers [...]."""
        places = fractions * np.float32(_ENTRIES - 1)
        # `fmax` returns the number for NaN and a number; `maximum` would return NaN.
        inside = np.fmin(np.fmax(places, 0), _ENTRIES - 1).astype(np.int16)
        table: Levels = self._table.take(inside, axis=0)
        return table

    def legend(self, title: str, marks: Sequence[str]) -> str:
        """Returns HTML: a bar with evenly spaced marks below it."""
        steps = ", ".join(
            f"rgb({', '.join(str(round(255 * value)) for value in stop)}) {100 * place:.1f}%"
            for stop, place in zip(self._stops, self._places, strict=True)
        )
        labels = "".join(f"<span>{escape(mark)}</span>" for mark in marks)
        return (
            f'<div style="padding:0.1em 0.6em 0.5em;font-size:0.8em"><div style="margin-bottom:0.2em">{escape(title)}'
            f'</div><div style="height:0.8em;border-radius:3px;background:linear-gradient(to right, {steps})"></div>'
            f'<div style="display:flex;justify-content:space-between">{labels}</div></div>'
        )


# "Turbo": from dark blue over green to dark red; it separates neighbouring depths best.
DEPTHS = ColorScale(
    (
        (0.19, 0.07, 0.23),
        (0.25, 0.25, 0.63),
        (0.28, 0.42, 0.89),
        (0.26, 0.58, 1.00),
        (0.16, 0.74, 0.92),
        (0.09, 0.87, 0.76),
        (0.20, 0.95, 0.59),
        (0.43, 0.99, 0.39),
        (0.64, 0.99, 0.23),
        (0.80, 0.92, 0.20),
        (0.93, 0.81, 0.23),
        (0.99, 0.67, 0.20),
        (0.98, 0.49, 0.13),
        (0.92, 0.31, 0.05),
        (0.82, 0.18, 0.02),
        (0.66, 0.08, 0.00),
        (0.48, 0.02, 0.01),
    )
)
# Red up to the surface, with a jump there to show contact.
DISTANCES = ColorScale(
    ((0.42, 0.0, 0.05), (0.86, 0.08, 0.10), (0.99, 0.80, 0.25), (0.45, 0.78, 0.45), (0.22, 0.47, 0.86)),
    (0.0, 0.5, 0.5, 0.7, 1.0),
)


# The percentiles of an image's depths that the range begins and ends with.
_NEAREST_PERCENTILE, _FARTHEST_PERCENTILE = 1.0, 99.0
_VISIBLE = 127
_PALETTE_SIZE = 4096
# Gives neighbouring ids distant colours: multiplied by an odd number, modulo the size.
_SCATTER = 1597


@dataclass(frozen=True)
class Look:
    """The choices in the panel other than the mode.

    Attributes:
        background: [3] colour, 0 to 1.
        depths: nearest and farthest depth shown, scene units; None: the range of the last sharp image.
    """

    background: tuple[float, float, float]
    depths: tuple[float, float] | None = None


class Mode(ABC):
    """One mode.

    Attributes:
        label: its name in the panel.
        outputs: the outputs it needs.
        formats: the outputs' image formats for `levels`.
        file_formats: those for `file`.
    """

    label: str
    outputs: tuple[str, ...]
    formats: ImageFormats = MappingProxyType({})

    @property
    def file_formats(self) -> ImageFormats:
        """The outputs' image formats for `file`."""
        return self.formats

    @abstractmethod
    def levels(self, frame: Frame, look: Look, *, is_sharp: bool) -> Levels:
        """Returns the frame as a picture, [H, W, 3]."""

    def file(self, frame: Frame, look: Look, *, is_sharp: bool) -> bytes:
        """Returns the frame as a JPEG."""
        return jpeg_of(self.levels(frame, look, is_sharp=is_sharp), is_sharp=is_sharp)

    def legend(self) -> str:
        """Returns the legend as HTML; empty if there is none."""
        return ""


class ColorMode(Mode):
    """The rendered image, compressed by the worker."""

    label, outputs = "colour", ("color",)
    formats: ImageFormats = MappingProxyType({"color": "uint8"})

    @property
    def file_formats(self) -> ImageFormats:
        """The worker compresses the picture."""
        return {"color": "jpeg"}

    def levels(self, frame: Frame, look: Look, *, is_sharp: bool) -> Levels:
        """Returns the colours unchanged."""
        return frame.color

    def file(self, frame: Frame, look: Look, *, is_sharp: bool) -> bytes:
        """Returns the worker's file unchanged."""
        file = frame.encoded["color"]
        assert isinstance(file, bytes)
        return file


class DepthMode(Mode):
    """Depths in colours, over the background."""

    label = "depth"

    def __init__(self, output: str) -> None:
        self._output = output
        self.outputs = (output, "alpha")
        self.formats = {output: "float16", "alpha": "uint8"}
        # The range of the last sharp image; a range per image would make colours flicker while the camera moves.
        self._seen: tuple[float, float] | None = None
        self._shown = (0.0, 1.0)

    def levels(self, frame: Frame, look: Look, *, is_sharp: bool) -> Levels:
        """Returns the colours of depths, blended with the background by opacity."""
        depth, alpha = frame[self._output], frame.alpha
        if look.depths is None and (is_sharp or self._seen is None):
            self._seen = _range_of(depth, alpha)
        low, high = self._shown = look.depths or self._seen or (0.0, 1.0)
        colors = DEPTHS.levels((depth - low) / max(high - low, 1e-9))
        background = np.rint(255.0 * np.asarray(look.background)).astype(np.uint16)
        # Spheres have depth -1 where nothing is hit. 16 bits, because this runs for every image.
        share = np.where(depth < 0.0, 0, alpha)[..., None].astype(np.uint16)
        blended = (colors * share + background * (255 - share) + 127) // 255
        return blended.astype(np.uint8)

    def legend(self) -> str:
        """Returns the legend of the last image's range."""
        low, high = self._shown
        marks = [f"{low + share * (high - low):.4g}" for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        return DEPTHS.legend("depth, scene units", marks)


class AlphaMode(Mode):
    """Opacity, from black to white."""

    label, outputs = "alpha", ("alpha",)
    formats: ImageFormats = MappingProxyType({"alpha": "uint8"})

    def levels(self, frame: Frame, look: Look, *, is_sharp: bool) -> Levels:
        """Returns the opacity in grey."""
        return np.repeat(frame.alpha[..., None], 3, axis=-1)


class IdsMode(Mode):
    """The closest sphere, one colour per id."""

    label, outputs = "sphere ids", ("sphere_ids",)

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        hue, strength, light = generator.uniform((0, 0.45, 0.55), (1, 0.9, 1.0), (_PALETTE_SIZE, 3)).T
        waves = np.clip(np.abs((hue[:, None] * 6 + np.array([0, 4, 2])) % 6 - 3) - 1, 0, 1)
        colors = light[:, None] * (1 - strength[:, None] * (1 - waves))
        self._palette = np.rint(255 * colors).astype(np.uint8)

    def levels(self, frame: Frame, look: Look, *, is_sharp: bool) -> Levels:
        """Returns the colours of ids over the background."""
        ids = frame.sphere_ids[..., 0]
        colors = self._palette[ids.astype(np.int64) * _SCATTER % _PALETTE_SIZE]
        background = np.rint(255.0 * np.asarray(look.background)).astype(np.uint8)
        return np.where((ids < 0)[..., None], background, colors)


def modes_of(kind: str) -> tuple[Mode, ...]:
    """Returns the modes for a kind of scenes, "gaussians" or "spheres"; the default first."""
    if kind == "gaussians":
        return (ColorMode(), DepthMode("expected_depth"), AlphaMode())
    return (ColorMode(), DepthMode("depth"), AlphaMode(), IdsMode())


def _range_of(depth: Array, alpha: Array) -> tuple[float, float] | None:
    """Returns the range of visible depths; None if nothing is visible."""
    seen = depth[(alpha > _VISIBLE) & (depth > 0.0) & np.isfinite(depth)]
    if not seen.size:
        return None
    low, high = np.percentile(seen[:: max(1, seen.size // 20000)], [_NEAREST_PERCENTILE, _FARTHEST_PERCENTILE])
    return float(low), max(float(high), float(low) * 1.001 + 1e-9)
