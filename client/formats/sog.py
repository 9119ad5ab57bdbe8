"""SOG: Gaussians as a folder or archive of images with a meta.json."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.extras import require
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.scene import (
    StoredScene,
    from_smallest_three,
    opacities_from_logits,
    scales_from_logarithms,
)
from lumigrad.client.formats.source import check_growth, malformed

Array = npt.NDArray[Any]

_LEVELS = 256
# Version 1's bounds for all channels are repeated for each channel.
_BOUND_COUNTS = {"means": 3, "scales": 3, "sh0": 4, "shN": 3}


class SogMeta:
    """The values of a meta.json, by entry: "means", "scales", "quats", "sh0", "shN".

    Version 1 has bounds where version 2 has code books.

    Attributes:
        version: 1 or 2.
        count: number of Gaussians.
        antialiased: whether it was trained with antialiasing.
    """

    def __init__(self, values: Any, fail: Callable[[str], InvalidArgument]) -> None:
        self._fail = fail
        if not isinstance(values, dict):
            raise fail(f"expected an object in meta.json, got {type(values).__name__}")
        self._values = values
        self.version = values.get("version", 1)
        if self.version not in (1, 2):
            raise fail(f"expected version 1 or 2 in meta.json, got {self.version!r}")
        shape = self._entry("means").get("shape") if self.version == 1 else [values.get("count")]
        count = shape[0] if isinstance(shape, list) and shape else None
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise fail(f"expected a number of Gaussians >= 1 in meta.json, got {count!r}")
        self.count = count
        self.antialiased = values.get("model") == "antialiased" or values.get("antialias") is True

    def has(self, entry: str) -> bool:
        """Whether an entry exists."""
        return self._values.get(entry) is not None

    def file(self, entry: str, place: int) -> str:
        """Returns the file name of one of an entry's images."""
        files = self._entry(entry).get("files")
        name = files[place] if isinstance(files, list) and len(files) > place else None
        if not isinstance(name, str):
            raise self._fail(f"expected at least {place + 1} file names in {entry}.files of meta.json, got {files!r}")
        return name

    def between(self, entry: str, channel: int, fractions: Array) -> Array:
        """Interpolates between an entry's lower and upper bound."""
        low, high = (self._numbers(entry, name, _BOUND_COUNTS[entry])[channel] for name in ("mins", "maxs"))
        return np.asarray(low + (high - low) * fractions)

    def decode(self, entry: str, levels: Array) -> Array:
        """Returns the values of an entry's levels 0 to 255 [..., 3]."""
        if self.version == 1:
            channels = [self.between(entry, channel, levels[..., channel] / 255.0) for channel in range(3)]
            return np.stack(channels, axis=-1)
        return np.asarray(self._numbers(entry, "codebook", _LEVELS)[levels])

    def degree(self, coefficients: int) -> int:
        """Returns the degree of the harmonics, from the meta.json or in version 1 from the size of a palette entry."""
        bands = round(math.sqrt(coefficients + 1)) - 1 if self.version == 1 else self._entry("shN").get("bands")
        if bands not in (1, 2, 3):
            raise self._fail(f"expected shN.bands 1, 2 or 3 in meta.json, got {bands!r}")
        return int(bands)

    def palette_count(self, room: int) -> int:
        """Returns the number of entries in the palette of harmonics."""
        count = room if self.version == 1 else self._entry("shN").get("count")
        if not isinstance(count, int) or count < 1:
            raise self._fail(f"expected shN.count >= 1 in meta.json, got {count!r}")
        return count

    def _entry(self, entry: str) -> dict[str, Any]:
        values = self._values.get(entry)
        if not isinstance(values, dict):
            raise self._fail(f"expected an object {entry!r} in meta.json, got {type(values).__name__}")
        return values

    def _numbers(self, entry: str, name: str, count: int) -> Array:
        values = self._entry(entry).get(name)
        listed = values if isinstance(values, list) else [values] * count
        # Code books of one early writer start with null instead of the next value.
        if name == "codebook" and len(listed) > 1 and listed[0] is None:
            listed = [listed[1], *listed[1:]]
        numbers = [value for value in listed[:count] if isinstance(value, (int, float))]
        if len(numbers) < count:
            raise self._fail(f"expected {count} numbers in {entry}.{name} of meta.json")
        # JSON integers may exceed the range of float.
        return np.array([float(value) if abs(value) < 1e300 else math.inf for value in numbers])


_LARGEST_META = 16 << 20
# Bytes per Gaussian: five images of four channels.
_BYTES_PER_GAUSSIAN = 20
# A palette of harmonics: 65,536 entries of 15 coefficients.
_LARGEST_PALETTE = 65536 * 15
# The number of members that an error names.
_LISTED = 5
_PICTURE_FORMATS = ("WEBP", "PNG")
# The errors of zipfile; invalid member names raise a UnicodeDecodeError.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, UnicodeError, ValueError, RuntimeError, EOFError)


class SogFiles:
    """The files of one scene by name: those beside a meta.json, or the members of a zip file."""

    def __init__(self, path: Path) -> None:
        self._path, self._zip = path, None
        if not path.name.endswith(".json"):
            try:
                self._zip = zipfile.ZipFile(path)
            except _DAMAGE as error:
                raise self.fail(f"expected a zip file: {error}") from error

    def fail(self, description: str) -> InvalidArgument:
        """Returns the error to raise about this scene."""
        return malformed(self._path, description)

    def meta(self) -> bytes:
        """Reads the meta.json."""
        return self.read(META_NAME if self._zip else self._path.name)

    def read(self, name: str) -> bytes:
        """Reads a file."""
        return self._from_folder(name) if self._zip is None else self._from_zip(self._zip, name)

    def close(self) -> None:
        """Closes the zip file."""
        if self._zip is not None:
            self._zip.close()

    def check_growth(self, count: int) -> None:
        """Raises InvalidArgument if `count` is implausible for files of this size."""
        files = [self._path] if self._zip else [file for file in self._path.parent.iterdir() if file.is_file()]
        check_growth(self._path, sum(file.stat().st_size for file in files), count * _BYTES_PER_GAUSSIAN)

    def picture(self, name: str, count: int) -> npt.NDArray[Any]:
        """Reads [H, W, 4], the levels of an image of at least `count` pixels; 0 for a palette, of any size."""
        images = require("PIL.Image", "io", "reading .sog files")
        content = self.read(name)
        try:
            with images.open(io.BytesIO(content), formats=_PICTURE_FORMATS) as image:
                pixels = image.width * image.height
                # The size is checked before decoding. Images may have a few spare rows.
                most = 2 * count + 65536 if count else _LARGEST_PALETTE
                if not count <= pixels <= most:
                    raise self.fail(
                        f"expected {count:,} to {most:,} pixels in {name}, got {image.width} x {image.height}"
                    )
                return np.asarray(image.convert("RGBA"))
        except (OSError, ValueError, SyntaxError, EOFError, images.DecompressionBombError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise self.fail(f"expected a WebP or PNG picture in {name}: {error}") from error

    def _from_folder(self, name: str) -> bytes:
        if Path(name).name != name:
            raise self.fail(f"expected the name of a file in the same folder, got {name!r}")
        try:
            return (self._path.parent / name).read_bytes()
        except FileNotFoundError as error:
            if name == self._path.name:
                raise
            raise self.fail(f"expected a file {name} in its folder; there is none") from error

    def _from_zip(self, archive: zipfile.ZipFile, name: str) -> bytes:
        try:
            member = archive.getinfo(name)
            if member.file_size > max(_LARGEST_META, self._path.stat().st_size):
                raise self.fail(
                    f"expected no member larger than the file itself, {name} has {member.file_size:,} bytes"
                )
            return archive.read(member)
        except InvalidArgument:
            raise
        except KeyError as error:
            names = archive.namelist()
            others = f" and {len(names) - _LISTED} others" if len(names) > _LISTED else ""
            listed = ", ".join(names[:_LISTED]) + others
            raise self.fail(f"expected a member {name} in the zip file, got {listed}") from error
        except (*_DAMAGE, OSError) as error:
            raise self.fail(f"expected a whole member {name}: {error}") from error


META_NAME = "meta.json"
ZIP_MAGIC = b"PK\x03\x04"
# The fourth channel of a rotation is this plus the omitted component.
_FIRST_TAG = 252
_PALETTE_WIDTH = 64


def read_sog(path: Path) -> StoredScene:
    """Reads a .sog file, or a folder's meta.json and its images; versions 1 and 2."""
    with closing(SogFiles(path)) as files:
        content = files.meta()
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise files.fail(f"expected JSON in {META_NAME}: {error}") from error
        return _read(SogMeta(values, files.fail), files)


def _read(meta: SogMeta, files: SogFiles) -> StoredScene:
    count = meta.count
    files.check_growth(count)

    def pixels(entry: str, place: int = 0) -> Array:
        return files.picture(meta.file(entry, place), count).reshape(-1, 4)[:count]

    colors = pixels("sh0")
    scales = meta.decode("scales", pixels("scales")[:, :3])
    base = meta.decode("sh0", colors[:, :3])
    if meta.version == 1:
        opacities = opacities_from_logits(meta.between("sh0", 3, colors[:, 3] / 255.0))
    else:
        opacities = (colors[:, 3] / 255.0).astype(np.float32)
    sh = base[:, None].astype(np.float32)
    if meta.has("shN"):
        sh = np.concatenate([sh, _harmonics(meta, files, pixels("shN", 1))], axis=1)
    return StoredScene(
        means=_means(meta, pixels("means", 0), pixels("means", 1)),
        quats=_rotations(pixels("quats")),
        scales=scales_from_logarithms(scales),
        opacities=opacities,
        sh=sh,
        antialiased=meta.antialiased,
    )


def _means(meta: SogMeta, low: Array, high: Array) -> Float32:
    """Decodes positions, stored as sign(x) log(1 + |x|) evenly between bounds."""
    words = low[:, :3].astype(np.int32) | high[:, :3].astype(np.int32) << 8
    bent = np.stack([meta.between("means", axis, words[:, axis] / 65535.0) for axis in range(3)], axis=1)
    return np.asarray(np.sign(bent) * np.expm1(np.abs(bent)), np.float32)


def _rotations(levels: Array) -> Float32:
    tags = levels[:, 3].astype(np.int64) - _FIRST_TAG
    others = (levels[:, :3] / 255.0 * 2.0 - 1.0) / np.sqrt(2.0)
    quats: Float32 = from_smallest_three(np.maximum(tags, 0), others)
    # Any other tag means no rotation.
    quats[tags < 0] = (1.0, 0.0, 0.0, 0.0)
    return quats


def _harmonics(meta: SogMeta, files: SogFiles, labels: Array) -> Float32:
    """Returns [N, K - 1, 3] from a palette, an image with 64 entries per row and one pixel per coefficient."""
    picture = files.picture(meta.file("shN", 0), 0)
    degree = meta.degree(picture.shape[1] // _PALETTE_WIDTH)
    coefficients = (degree + 1) ** 2 - 1
    if picture.shape[1] != _PALETTE_WIDTH * coefficients:
        raise files.fail(
            f"expected a palette {_PALETTE_WIDTH * coefficients} pixels wide for degree {degree} in "
            f"{meta.file('shN', 0)}, got {picture.shape[1]}"
        )
    palette = meta.decode("shN", picture[..., :3]).reshape(-1, coefficients, 3).astype(np.float32)
    index = labels[:, 0].astype(np.int64) | labels[:, 1].astype(np.int64) << 8
    used = min(meta.palette_count(len(palette)), len(palette))
    if len(index) and index.max() >= used:
        raise files.fail(
            f"expected labels below {used:,}, the size of the palette, in {meta.file('shN', 1)}, got {index.max():,}"
        )
    return np.asarray(palette[index])
