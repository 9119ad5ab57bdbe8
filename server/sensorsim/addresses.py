"""Scenes that callers name by `file:` address: only files below the operator's folders."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lumigrad.protos.drive.manifest import NAME
from lumigrad.server.core.errors import UnknownNameError
from lumigrad.server.core.limits import require

# Metadata of NuRec's clients: the address of a scene, and the name that requests use for it.
URL, SCENE_ID = "x-nre-scene-url", "x-nre-scene-id"
_LIMIT = f"the file: address of a folder with a {NAME}, or of that file, below the worker's --sensorsim"
# Single-file formats: other formats refer to further files, which might be elsewhere.
SUFFIXES = (".ply", ".spz", ".splat", ".ksplat", ".sog")
_NAME = "name"
_FILE_LIMIT = f"the file: address of a {', '.join(SUFFIXES)} below the worker's --scene-files"
_SHOWN = 200


def manifest_at(url: str, root: Path) -> Path:
    """Return the manifest at an address; callers learn nothing about files elsewhere."""
    place = _place(url, root, URL, _LIMIT)
    file = place if place.name == NAME else place / NAME
    # Not `Path.is_file`, which raises for long names.
    if not isfile(file):
        raise UnknownNameError(URL, _LIMIT, url[:_SHOWN])
    return file


def scene_file_at(address: str, root: Path) -> Path:
    """Return the file of Gaussians at an address; callers learn nothing about files elsewhere."""
    place = _place(address, root, _NAME, _FILE_LIMIT)
    is_one = place.suffix.lower() in SUFFIXES and isfile(place)
    require(is_one, _NAME, _FILE_LIMIT, address[:_SHOWN])
    return place


def _place(url: str, root: Path, field: str, limit: str) -> Path:
    """Return the path at an address, with links resolved; it must be below the root."""
    shown = url[:_SHOWN]
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "file" and parts.netloc in ("", "localhost") and not (parts.query or parts.fragment)
        path = Path(unquote(parts.path, errors="strict"))
    except ValueError:
        is_local, path = False, Path()
    require(is_local and path.is_absolute() and "\0" not in str(path), field, limit, shown)
    try:
        place = path.resolve()
    except (OSError, RuntimeError):
        # Circular links.
        place = Path(path.anchor)
    require(place.is_relative_to(root.resolve()), field, limit, shown)
    return place
