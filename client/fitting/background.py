"""The background behind the subject of photographs: a colour, nothing, or the rest of the picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lumigrad.client.base.arrays import Array

Color = tuple[float, float, float]
CHOICES = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}
# Pixels have the usual colour if their levels differ from it by less than this, and this share of the frame must.
_TOLERANCE, _SHARE = 12, 0.85
# A smaller share of transparent pixels counts as a fault of a picture.
_TRANSPARENT = 0.01


@dataclass(frozen=True)
class Background:
    """The background of a fit.

    Attributes:
        color: the colour of renderings behind the scene, 0 to 1.
        is_transparent: whether the scene must be empty where the photographs are transparent.
        is_image: whether everything that the photographs show is part of the scene.
    """

    color: Color = (0.0, 0.0, 0.0)
    is_transparent: bool = False
    is_image: bool = False

    @staticmethod
    def of(photographs: Iterable[Array], choice: str) -> Background:
        """Returns the background for photographs [H, W, 3] or [H, W, 4] uint8.

        Args:
            photographs: colours, with opacities if transparent; "auto" reads them one at a time.
            choice: "white" or "black"; "image": everything that the photographs show is part of the scene; "auto":
                transparent if the photographs are, else the colour of nearly all of their frames if it is one, else
                "image".
        """
        if choice in CHOICES:
            return Background(CHOICES[choice])
        if choice == "image":
            return Background(is_image=True)
        clear, frames = zip(*((_clear(photograph), _frame(photograph)) for photograph in photographs), strict=True)
        if np.mean(clear) > _TRANSPARENT:
            return Background(is_transparent=True)
        return _of_frames(np.concatenate(frames).astype(np.int16))

    def behind(self, photograph: Array) -> Array:
        """Returns a photograph [H, W, 3] or [H, W, 4] over the background colour, as [H, W, 3] uint8."""
        if photograph.shape[2] == 3 or (photograph[..., 3] == 255).all():
            return np.ascontiguousarray(photograph[..., :3])
        opacity = photograph[..., 3:] / np.float32(255)
        mixed = photograph[..., :3] * opacity
        mixed += (1 - opacity) * 255 * np.array(self.color, np.float32)
        return np.asarray(np.rint(mixed, out=mixed).astype(np.uint8))

    def opacity(self, photograph: Array) -> Array | None:
        """Returns [H, W] uint8, 0 where the scene must be empty; None if the background is not transparent."""
        if not self.is_transparent:
            return None
        if photograph.shape[2] == 3:
            return np.full(photograph.shape[:2], 255, np.uint8)
        return np.ascontiguousarray(photograph[..., 3])

    def __str__(self) -> str:
        if self.is_image:
            return "image"
        if self.is_transparent:
            return "transparent"
        names = {color: name for name, color in CHOICES.items()}
        return names.get(self.color) or ",".join(f"{value:.2f}" for value in self.color)

    @property
    def opposite(self) -> str:
        """The alternative to this background, in words, for a message in case it is wrong."""
        return "one colour, and not part of the scene" if self.is_image else f"not {self}"


def _of_frames(frames: Array) -> Background:
    """Returns a background of the one colour of the pixels [N, 3], or "image" if they have several colours."""
    usual = np.median(frames, axis=0)
    if (np.abs(frames - usual).max(axis=1) < _TOLERANCE).mean() < _SHARE:
        return Background(is_image=True)
    near = [color for color in CHOICES.values() if np.abs(usual - 255 * np.array(color)).max() < _TOLERANCE]
    red, green, blue = near[0] if near else (round(float(level) / 255, 4) for level in usual)
    return Background((red, green, blue))


def _clear(photograph: Array) -> float:
    """Returns the share of transparent pixels."""
    return float((photograph[..., 3] < 128).mean()) if photograph.shape[2] == 4 else 0.0


def _frame(photograph: Array) -> Array:
    """Returns the colours [N, 3] of the outermost pixels."""
    sides = photograph[0], photograph[-1], photograph[:, 0], photograph[:, -1]
    return np.concatenate(sides)[:, :3]
