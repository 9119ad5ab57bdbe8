"""The files of a SOG scene: those beside a meta.json, or the members of a zip file."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.extras import require
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.source import check_growth, malformed

META_NAME = "meta.json"
ZIP_MAGIC = b"PK\x03\x04"
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
        self._path, self._zip, self._folder = path, None, ""
        if not path.name.endswith(".json"):
            try:
                self._zip = zipfile.ZipFile(path)
            except _DAMAGE as error:
                raise self.fail(f"expected a zip file: {error}") from error
            self._folder = _folder_of_scene(self._zip.namelist())

    def fail(self, description: str) -> InvalidArgument:
        """Returns the error to raise about this scene."""
        return malformed(self._path, description)

    def meta(self) -> Any:
        """Reads the meta.json; returns its values."""
        content = self.read(META_NAME if self._zip else self._path.name)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"expected JSON in {META_NAME}: {error}") from error

    def read(self, name: str) -> bytes:
        """Reads a file."""
        return self._from_folder(name) if self._zip is None else self._from_zip(self._zip, name)

    def close(self) -> None:
        """Closes the zip file."""
        if self._zip is not None:
            self._zip.close()

    def stored_bytes(self) -> int:
        """Returns the size of the zip file, or of all files in the folder."""
        files = [self._path] if self._zip else [file for file in self._path.parent.iterdir() if file.is_file()]
        return sum(file.stat().st_size for file in files)

    def check_growth(self, count: int) -> None:
        """Raises InvalidArgument if `count` is implausible for files of this size."""
        check_growth(self._path, self.stored_bytes(), count * _BYTES_PER_GAUSSIAN)

    def picture(self, name: str, count: int) -> npt.NDArray[Any]:
        """Reads the levels [H, W, 4] of an image of at least `count` pixels, or with 0 of a palette of any size."""
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
            member = archive.getinfo(self._folder + name)
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
            said = f"expected a member {name} in the zip file, got {listed}; unzip what is no .sog"
            raise self.fail(said) from error
        except (*_DAMAGE, OSError) as error:
            raise self.fail(f"expected a whole member {name}: {error}") from error


def _folder_of_scene(names: list[str]) -> str:
    """Returns the folder of the only meta.json in an archive, with a trailing slash; else an empty string."""
    folders = [name.removesuffix(META_NAME) for name in names if name.rpartition("/")[2] == META_NAME]
    return folders[0] if len(folders) == 1 else ""
