"""Finds the photographs of a data set."""

from __future__ import annotations

from pathlib import Path

from lumigrad.client.base.extras import require
from lumigrad.client.formats.source import malformed

_SUFFIXES = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".JPEG", ".webp")


class Photographs:
    """A folder of photographs."""

    def __init__(self, folder: Path) -> None:
        """Lists a folder, which need not exist."""
        self._folder = folder

    def find(self, name: str) -> Path | None:
        """The path of a photograph, by name with or without suffix; None if there is none.

        Files with another suffix match too, because data sets are often converted.
        """
        wanted = self._folder / name
        candidates = [wanted, *(wanted.with_name(wanted.name + suffix) for suffix in _SUFFIXES)]
        candidates += [wanted.with_suffix(suffix) for suffix in _SUFFIXES] if wanted.suffix in _SUFFIXES else []
        return next((path for path in candidates if path.is_file()), None)


def picture_size(path: Path) -> tuple[int, int]:
    """Width and height of an image in pixels, from its header."""
    images = require("PIL.Image", "io", "reading the sizes of photographs")
    try:
        with images.open(path) as image:
            return int(image.width), int(image.height)
    except (OSError, ValueError, SyntaxError, images.DecompressionBombError) as error:
        raise malformed(path, f"expected a picture: {error}") from error
