"""What is behind the subject of photographs: a colour, nothing, or the rest of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.client.base.arrays import Array

Color = tuple[float, float, float]
CHOICES = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}
# Pixels whose levels differ by less from the usual one have one colour, and so much of the frame has to have it.
_TOLERANCE, _SHARE = 12, 0.85
# Fewer transparent pixels are faults of a picture.
_TRANSPARENT = 0.01


@dataclass(frozen=True)
class Background:
    """The background of a fit.

    Attributes:
        color: of the renderings behind the scene, 0 to 1.
        is_transparent: whether the photographs' transparent pixels shall be empty in the scene, whatever is behind it.
    """

    color: Color = (0.0, 0.0, 0.0)
    is_transparent: bool = False

    @staticmethod
    def of(photographs: Sequence[Array], choice: str) -> Background:
        """Returns the background for photographs [H, W, 4] uint8.

        Args:
            photographs: colours and opacities.
            choice: "white" or "black"; "image": what the photographs show is all part of the scene; "auto": that of
                transparent photographs, or the one colour that the frames of nearly all photographs have, else "image".
        """
        if choice in CHOICES:
            return Background(CHOICES[choice])
        if choice == "image":
            return Background()
        clear = np.mean([float((photograph[..., 3] < 128).mean()) for photograph in photographs])
        if clear > _TRANSPARENT:
            return Background(is_transparent=True)
        frames = np.concatenate([_frame(photograph)[:, :3] for photograph in photographs]).astype(np.int16)
        usual = np.median(frames, axis=0)
        if (np.abs(frames - usual).max(axis=1) < _TOLERANCE).mean() < _SHARE:
            return Background()
        near = [color for color in CHOICES.values() if np.abs(usual - 255 * np.array(color)).max() < _TOLERANCE]
        red, green, blue = near[0] if near else (round(float(level) / 255, 4) for level in usual)
        return Background((red, green, blue))

    def behind(self, photograph: Array) -> Array:
        """Returns [H, W, 3] uint8, a photograph [H, W, 4] with the colour where it is transparent."""
        if (photograph[..., 3] == 255).all():
            return np.ascontiguousarray(photograph[..., :3])
        opacity = photograph[..., 3:] / np.float32(255)
        mixed = photograph[..., :3] * opacity + (1 - opacity) * 255 * np.array(self.color, np.float32)
        return np.asarray(np.rint(mixed).astype(np.uint8))

    def __str__(self) -> str:
        if self.is_transparent:
            return "transparent"
        names = {color: name for name, color in CHOICES.items()}
        return names.get(self.color) or ",".join(f"{value:.2f}" for value in self.color)


def _frame(photograph: Array) -> Array:
    """Returns [N, 4], the outermost pixels."""
    sides = photograph[0], photograph[-1], photograph[:, 0], photograph[:, -1]
    return np.concatenate(sides)
