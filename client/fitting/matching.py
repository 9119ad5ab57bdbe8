"""Matches photographs and masks with their cameras: checks their shapes and chooses their orientations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lumigrad.client.base.arrays import Array
from lumigrad.client.datasets.view import View
from lumigrad.client.fitting.picture_file import Header, Size, read_header, read_mask, read_picture, reduced_size
from lumigrad.client.formats.source import malformed


@dataclass(frozen=True)
class Matched:
    """A view whose photograph and mask have the aspect ratio of its camera.

    Attributes:
        view: the view, with a photograph.
        size: width and height of the photograph, after it was turned to fit the camera.
        orientation: the EXIF orientation that is applied to the photograph; 1: none.
        ignored: the photograph's EXIF orientation if it is not applied; 1: none.
        mask_orientation: the EXIF orientation that is applied to the mask; 1: none.
    """

    view: View
    size: Size
    orientation: int = 1
    ignored: int = 1
    mask_orientation: int = 1

    @staticmethod
    def of(view: View) -> Matched:
        """Reads the headers of a view's files; raises InvalidArgument if a file does not fit the camera."""
        assert view.image is not None
        camera, found = (view.camera.width, view.camera.height), read_header(view.image)
        orientation = found.orientation if _is_turned(found, camera) else 1
        size = found.size if orientation == 1 else found.upright_size
        if not have_one_shape(size, camera):
            raise _misfit(view.image, "photograph", found, camera)
        ignored = found.orientation if orientation == 1 else 1
        return Matched(view, size, orientation, ignored, _orientation_of_mask(view.mask, camera, orientation))

    def reduced_size(self, largest: int) -> Size:
        """Returns the width and height of the photograph, reduced to at most `largest` pixels."""
        return reduced_size(self.size, largest)

    def picture(self, size: Size) -> Array:
        """Reads the photograph, [H, W, 3] or, with its opacity, [H, W, 4] uint8."""
        assert self.view.image is not None
        return read_picture(self.view.image, size, self.orientation)

    def mask(self, size: Size) -> Array | None:
        """Reads the mask, [H, W] uint8; returns None if there is none."""
        return None if self.view.mask is None else read_mask(self.view.mask, size, self.mask_orientation)


def have_one_shape(first: Size, second: Size) -> bool:
    """Whether one of two sizes is the other one, scaled by a factor and rounded up or down to whole pixels."""
    return _is_scaled(first, second) or _is_scaled(second, first)


def _is_scaled(whole: Size, part: Size) -> bool:
    least = max((pixels - 1) / side for pixels, side in zip(part, whole, strict=True))
    return least < min((pixels + 1) / side for pixels, side in zip(part, whole, strict=True))


def _is_turned(found: Header, camera: Size) -> bool:
    """Whether a picture fits a camera only if it is turned by its EXIF orientation.

    COLMAP calibrates stored pixels, so a picture that fits as stored is not turned.
    """
    return not have_one_shape(found.size, camera) and have_one_shape(found.upright_size, camera)


def _orientation_of_mask(path: Path | None, camera: Size, of_photograph: int) -> int:
    if path is None:
        return 1
    found = read_header(path)
    # A mask for the stored pixels of a photograph is turned like the photograph.
    for each in (found, Header(found.size, of_photograph)):
        if _is_turned(each, camera):
            return each.orientation
    if not have_one_shape(found.size, camera):
        raise _misfit(path, "mask", found, camera)
    return 1


def _misfit(path: Path, kind: str, found: Header, camera: Size) -> Exception:
    (width, height), (wide, high) = found.size, camera
    remedy = "crop the camera too: its size and principal point are those of the whole picture"
    if have_one_shape((height, width), camera):
        remedy = f"turn the {kind} by 90 degrees, or calibrate it as it is stored"
    turned = f" with EXIF orientation {found.orientation}" if found.orientation != 1 else ""
    return malformed(
        path,
        f"expected a {kind} of {wide}x{high} like its camera, or of that shape, got {width}x{height}{turned}; {remedy}",
    )


def say_orientations(found: Sequence[Matched]) -> None:
    """Warns about photographs with an EXIF orientation, both those that are turned by it and those that are not."""

    def say(orientation: Callable[[Matched], int], text: str) -> None:
        values = [orientation(each) for each in found if orientation(each) != 1]
        if values:
            kinds = " or ".join(str(value) for value in sorted(set(values)))
            subject, be = (
                ("1 photograph has", "it is") if len(values) == 1 else (f"{len(values)} photographs have", "they are")
            )
            warnings.warn(f"{subject} EXIF orientation {kinds}; {be} {text}", stacklevel=4)

    say(lambda each: each.ignored, "used as stored, which fits the camera")
    say(lambda each: each.orientation, "turned by it, since only that fits the camera")
