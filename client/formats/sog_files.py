"""The files that make up a .sog scene: members of a zip file, or neighbours in a folder."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.extras import require
from lumigrad.client.formats.source import check_growth, malformed

_LARGEST_META = 16 << 20
# Five pictures of four channels for each Gaussian.
_BYTES_PER_GAUSSIAN = 20
# A palette of harmonics: 65,536 entries of 15 coefficients.
_LARGEST_PALETTE = 65536 * 15
# Members that an error names.
_LISTED = 5
_PICTURE_FORMATS = ("WEBP", "PNG")
# What zipfile raises; names of members that are no text are a UnicodeDecodeError.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, UnicodeError, ValueError, RuntimeError, EOFError)


class SogFiles(ABC):
    """Reads the files of one scene by name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> SogFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def fail(self, description: str) -> InvalidArgument:
        """The error to raise about this scene."""
        return malformed(self._path, description)

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file."""

    @abstractmethod
    def stored_bytes(self) -> int:
        """The size of all files."""

    @abstractmethod
    def close(self) -> None:
        """Ends the use of the files."""

    def check_growth(self, count: int) -> None:
        """Raises InvalidArgument if so many Gaussians would be far too many for files of this size."""
        check_growth(self._path, self.stored_bytes(), count * _BYTES_PER_GAUSSIAN)

    def picture(self, name: str, count: int) -> npt.NDArray[Any]:
        """[H, W, 4] levels of a picture of at least `count` pixels; 0: of a palette."""
        images = require("PIL.Image", "io", "reading .sog files")
        content = self.read(name)
        try:
            with images.open(io.BytesIO(content), formats=_PICTURE_FORMATS) as image:
                pixels = image.width * image.height
                # Before anything is decoded. Pictures may have some rows to spare, but not many.
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


class FolderFiles(SogFiles):
    """The folder in which a meta.json lies."""

    def read(self, name: str) -> bytes:
        """The content of a file, which must lie in the folder itself."""
        if Path(name).name != name:
            raise self.fail(f"expected the name of a file in the same folder, got {name!r}")
        try:
            return (self._path.parent / name).read_bytes()
        except FileNotFoundError as error:
            if name == self._path.name:
                raise
            raise self.fail(f"expected a file {name} beside it; there is none") from error

    def stored_bytes(self) -> int:
        """The size of all files beside the meta.json."""
        return sum(file.stat().st_size for file in self._path.parent.iterdir() if file.is_file())

    def close(self) -> None:
        """Files are closed when they have been read."""


class ZipFiles(SogFiles):
    """Members of a zip file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise self.fail(f"expected a zip file: {error}") from error

    def read(self, name: str) -> bytes:
        """The content of a member."""
        try:
            member = self._zip.getinfo(name)
            if member.file_size > max(_LARGEST_META, self.stored_bytes()):
                raise self.fail(
                    f"expected no member larger than the file itself, {name} has {member.file_size:,} bytes"
                )
            return self._zip.read(member)
        except InvalidArgument:
            raise
        except KeyError as error:
            raise self.fail(f"expected a member {name} in the zip file, got {self._listed()}") from error
        except (*_DAMAGE, OSError) as error:
            raise self.fail(f"expected a whole member {name}: {error}") from error

    def _listed(self) -> str:
        names = self._zip.namelist()
        return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} others" if len(names) > _LISTED else "")

    def stored_bytes(self) -> int:
        """The size of the zip file."""
        return self._path.stat().st_size

    def close(self) -> None:
        """Closes the zip file."""
        self._zip.close()
