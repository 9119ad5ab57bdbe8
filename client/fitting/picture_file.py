"""Reads files of photographs and masks, and their headers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.source import malformed

Size = tuple[int, int]

# The EXIF tag of the orientation, and the names of Pillow's transpositions that turn such pictures upright.
_ORIENTATION = 0x0112
_UPRIGHT = {
    **{2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"},
    **{6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"},
}
_STORED = {**_UPRIGHT, 6: "ROTATE_90", 8: "ROTATE_270"}
# The block of EXIF tags about the camera, and the tag of the focal length in it.
_CAMERA_TAGS, _FOCAL = 0x8769, 0x920A
# The orientations that swap width and height.
_SIDEWAYS = (5, 6, 7, 8)
# TIFF tags; the last one tells which level is black.
_WIDTH_TAG, _HEIGHT_TAG, _BLACK_TAG = 256, 257, 262
_GREY_MODES = ("1", "L")
_CLEAR_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
# Single-channel modes with more than 8 bits, whose levels Pillow would clip to 8 bits.
_DEEP_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
_MOST_16 = (1 << 16) - 1
# 16-bit pictures that never reach a sixteenth of their range come from sensors with at most 12 bits.
_LEAST_16 = 1 << 12
# Masks have levels up to 255, unless these are labels. The colours of grey pixels differ by less than the last number.
_LARGEST_LABEL, _COLORED = 127, 32
# Formats whose levels are not exactly those that were saved, and the side of the squares that they encode as a whole.
_LOSSY, _SQUARE = ("JPEG", "MPO", "JPEG2000", "WEBP", "HEIF", "AVIF"), 16
# At most so many colours of labels, and levels of grey ones, are in a picture.
_MOST_COLORS = 256
_UNREADABLE = {
    **dict.fromkeys((".heic", ".heif"), "HEIC needs the package pillow-heif; install it, or convert it to JPEG or PNG"),
    **dict.fromkeys(
        (".dng", ".nef", ".cr2", ".cr3", ".arw", ".raf", ".orf", ".rw2"),
        "raw photographs are not supported; develop it to JPEG or PNG",
    ),
}


@dataclass(frozen=True)
class Header:
    """Facts from the header of a picture's file.

    Attributes:
        size: width and height of the pixels as stored.
        orientation: the EXIF orientation, 1 to 8; 1: upright.
        focal_mm: the focal length of the lens in the EXIF data, millimetres; 0: unknown.
    """

    size: Size
    orientation: int = 1
    focal_mm: float = 0.0

    @property
    def upright_size(self) -> Size:
        """The width and height after the orientation is applied."""
        return self.size[::-1] if self.orientation in _SIDEWAYS else self.size


def read_header(path: Path) -> Header:
    """Reads the header of a picture's file without decoding its pixels."""
    with _opened(path) as picture:
        orientation = _orientation(picture)
        # Pillow swaps the sides of a TIFF that it will turn on decoding.
        tags = getattr(picture, "tag_v2", {})
        size = tags.get(_WIDTH_TAG, picture.width), tags.get(_HEIGHT_TAG, picture.height)
        focal_mm = _focal_length(picture)
    return Header((int(size[0]), int(size[1])), orientation, focal_mm)


def _orientation(picture: Any) -> int:
    """Returns the EXIF orientation, 1 to 8; 1 if the EXIF data are damaged, which does no other harm."""
    with suppress(Exception):
        found = picture.getexif().get(_ORIENTATION, 1)
        return int(found) if found in _UPRIGHT else 1
    return 1


def _focal_length(picture: Any) -> float:
    with suppress(Exception):
        focal_mm = float(picture.getexif().get_ifd(_CAMERA_TAGS).get(_FOCAL, 0.0))
        # Cameras that do not know the focal length write 0 / 0, which reads as NaN.
        return focal_mm if isfinite(focal_mm) else 0.0
    return 0.0


def reduced_size(size: Size, largest: int) -> Size:
    """Returns a width and height, reduced to at most `largest` pixels."""
    share = min(largest / max(size), 1.0)
    return max(round(size[0] * share), 1), max(round(size[1] * share), 1)


def read_picture(path: Path, size: Size, orientation: int = 1) -> Array:
    """Reads a photograph: [H, W, 4] uint8 if it may be transparent, else [H, W, 3].

    Args:
        path: the file.
        size: the width and height to reduce it to.
        orientation: the EXIF orientation to apply, regardless of the file's own; 1: none.
    """
    image: Any = require("PIL.Image", "fit", "reading photographs")
    with _opened(path) as picture:
        # A JPEG is decoded at a half, quarter or eighth of its size if that is at least twice the wanted size.
        wanted = size[::-1] if orientation in _SIDEWAYS else size
        picture.draft(None, (2 * wanted[0], 2 * wanted[1]))
        if picture.mode in _DEEP_MODES:
            decoded = image.fromarray(_levels(_deep_pixels(picture), path)).convert("RGB")
        else:
            is_clear = picture.mode in _CLEAR_MODES or "transparency" in picture.info
            # Pillow keeps only the upper 8 bits of 16-bit colours.
            is_deep = ";16" in str(picture.tile)
            decoded = _decoded(picture).convert("RGBA" if is_clear else "RGB")
            if is_deep:
                _check_reach(256 * max(most for _, most in decoded.getextrema()[:3]), path)
        decoded = _turned(decoded, orientation)
        if decoded.size != size:
            decoded = decoded.resize(size, image.Resampling.LANCZOS, reducing_gap=2.0)
        return np.asarray(decoded, np.uint8)


def read_mask(path: Path, size: Size, orientation: int = 1) -> Array:
    """Reads a mask [H, W] uint8, which must not be 0 everywhere; the arguments are those of `read_picture`."""
    image: Any = require("PIL.Image", "fit", "reading masks")
    with _opened(path) as picture:
        is_exact = picture.format not in _LOSSY
        if picture.mode in _DEEP_MODES:
            levels = _levels(_deep_pixels(picture), path, is_mask=True)
        elif picture.mode in _CLEAR_MODES or "transparency" in picture.info:
            levels = _of_alpha(_decoded(picture).convert("RGBA"), path, is_exact)
        elif picture.mode in _GREY_MODES:
            levels = np.asarray(_decoded(picture).convert("L"))
        else:
            levels = _of_colors(_decoded(picture).convert("RGB"), path, is_exact)
        turned = _turned(image.fromarray(levels), orientation)
        mask = np.asarray(turned.resize(size, image.Resampling.NEAREST), np.uint8)
    if not mask.any():
        raise malformed(
            path,
            "expected a mask that lets a part of the photograph through, got one that is black everywhere; take the "
            "photograph out of the data set, or the mask",
        )
    # Programs that label pixels write flags of 0 and 1, or the numbers of things.
    return np.asarray(np.where(mask > 0, 255, mask), np.uint8) if mask.max() <= _LARGEST_LABEL else mask


def _of_colors(picture: Any, path: Path, is_exact: bool) -> Array:
    """Returns the levels of a mask [H, W]: those of grey pixels; with other colours, which are labels, 0 and 255."""
    # A maximum over the last axis takes several times as long.
    red, green, blue = np.moveaxis(np.asarray(picture), -1, 0)
    most, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    if most.max(initial=0) <= _LARGEST_LABEL and is_exact:
        return np.asarray(most)
    if (most - least).max(initial=0) <= _COLORED:
        return np.asarray(picture.convert("L"))
    if is_exact and picture.getcolors(_MOST_COLORS) is not None:
        return np.asarray(np.where(most > 0, 255, 0), np.uint8)
    _check_bright(most, path)
    # The black of a JPEG, and of what was made from one, is not always 0.
    return np.asarray(np.where(most > _COLORED, 255, 0), np.uint8)


def _of_alpha(picture: Any, path: Path, is_exact: bool) -> Array:
    """Returns the levels [H, W] of a mask with transparency, which are in its colours or in its alpha."""
    pixels = np.asarray(picture)
    alpha, grey = pixels[..., 3], pixels[..., :3].max(axis=-1)
    seen = grey[alpha > 0]
    if seen.size == 0 or (seen.min() == seen.max() and seen.max() > 0):
        return np.ascontiguousarray(alpha)
    if alpha.min() == 255:
        return _of_colors(picture.convert("RGB"), path, is_exact)
    raise malformed(
        path,
        "expected a mask in its colours or in its transparency, got both; save it in grey, black where the photograph "
        "is ignored",
    )


def _check_bright(most: Array, path: Path) -> None:
    """Raises InvalidArgument for a label that cannot be told from a black that compression has changed.

    Args:
        most: [H, W] the largest of each pixel's three levels.
        path: the mask's file.
    """
    rows, columns = (side // _SQUARE for side in most.shape)
    squares = most[: rows * _SQUARE, : columns * _SQUARE].reshape(rows, _SQUARE, columns, _SQUARE)
    least, largest = squares.min(axis=(1, 3)), squares.max(axis=(1, 3))
    # A square that was all black stays nearly so, and one with traces of a label's edge also has a part of the label.
    if ((least > _COLORED // 4) & (largest <= _COLORED)).any():
        raise malformed(
            path,
            f"expected labels of colours with a level above {_COLORED}, got a darker area, which may be a label or the "
            "black of a compressed picture; save it as PNG with exact colours, or in black and white",
        )


def _levels(pixels: Array, path: Path, is_mask: bool = False) -> Array:
    """Converts a picture of 16-bit integers, or of floats from 0 to 1, to levels [H, W] uint8."""
    if not np.isfinite(pixels).all():
        raise malformed(path, "expected finite levels, got NaN or infinite ones")
    least, most = pixels.min(), pixels.max()
    if pixels.dtype.kind == "f":
        if least < 0 or most > 1:
            raise malformed(path, f"expected floats from 0 to 1, got {least:g} to {most:g}; save it with 8 bits")
        scaled = 255 * pixels.astype(np.float64)
    elif least < 0 or most > _MOST_16:
        raise malformed(path, f"expected levels of at most 16 bits, got {least:,} to {most:,}; save it with 8 bits")
    elif is_mask and most < 256:
        return pixels.astype(np.uint8)
    else:
        if not is_mask:
            _check_reach(int(most), path)
        scaled = pixels.astype(np.float64) / 257
    # Mask levels above 0, however small, stay above 0.
    return np.asarray((np.ceil(scaled) if is_mask else np.rint(scaled)).astype(np.uint8))


def _check_reach(most: int, path: Path) -> None:
    """Raises InvalidArgument if the largest level of a 16-bit picture shows that it uses only the lower bits."""
    if 0 < most < _LEAST_16:
        raise malformed(
            path,
            f"expected levels up to {_MOST_16:,} of a picture of 16 bits, got at most {most:,}, like a sensor of fewer "
            "bits; scale it, or save it with 8 bits",
        )


def _deep_pixels(picture: Any) -> Array:
    """Returns the levels of a single-channel picture with more than 8 bits, 0 for black."""
    pixels = np.asarray(_decoded(picture))
    # Pillow inverts a TIFF in which 0 is white only if it has 8 bits.
    if pixels.dtype.kind == "u" and getattr(picture, "tag_v2", {}).get(_BLACK_TAG) == 0:
        return np.asarray(_MOST_16 - pixels)
    return pixels


def _turned(picture: Any, orientation: int) -> Any:
    """Applies an EXIF orientation to a picture."""
    return picture if orientation == 1 else picture.transpose(_transposition(_UPRIGHT[orientation]))


def _transposition(name: str) -> Any:
    image: Any = require("PIL.Image", "fit", "reading photographs")
    return image.Transpose[name]


def _decoded(picture: Any) -> Any:
    """Decodes a picture and returns its pixels as stored; undoes the turn that Pillow applies to TIFF files."""
    before, size = _orientation(picture), picture.size
    picture.load()
    if _orientation(picture) == before:
        return picture
    if picture.size != size:
        # Pillow mixes up the rows of uncompressed files whose sides it swaps.
        raise ValueError(f"a TIFF with EXIF orientation {before} is supported with compression only")
    return picture.transpose(_transposition(_STORED[before]))


def _is_heic(path: Path) -> bool:
    """Whether a file is HEIC, as phones write it, whatever its suffix."""
    with path.open("rb") as file:
        head = file.read(12)
    return head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Yields a picture that is not decoded yet; raises InvalidArgument, with advice, if the file cannot be read."""
    image: Any = require("PIL.Image", "fit", "reading photographs")
    remedy = _UNREADABLE.get(path.suffix.lower())
    try:
        if _is_heic(path) and find_spec("pillow_heif"):
            import_module("pillow_heif").register_heif_opener()
        with image.open(path) as picture:
            # Many raw photographs are TIFF files with a small preview.
            if remedy and picture.format == "TIFF":
                raise malformed(path, remedy)
            yield picture
    except image.UnidentifiedImageError as error:
        remedy = remedy or (_UNREADABLE[".heic"] if _is_heic(path) else f"expected a picture: {error}")
        raise malformed(path, remedy) from error
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError | InvalidArgument):
            raise
        raise malformed(path, f"expected a picture: {error}") from error
