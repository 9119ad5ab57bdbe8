"""Scenes that simulators name by address: folders below that of --sensorsim, in `file:` addresses, and nothing else."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lumigrad.protos.drive.manifest import NAME
from lumigrad.server.core.errors import UnknownNameError
from lumigrad.server.core.limits import require

# Metadata of NuRec's clients: the address of a scene, and the name by which requests call it.
URL, SCENE_ID = "x-nre-scene-url", "x-nre-scene-id"
_LIMIT = f"the file: address of a folder with a {NAME}, or of that file, below the worker's --sensorsim"
_SHOWN = 200


def manifest_at(url: str, root: Path) -> Path:
    """The manifest at an address; callers learn nothing about files elsewhere."""
    shown = url[:_SHOWN]
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "file" and parts.netloc in ("", "localhost") and not (parts.query or parts.fragment)
        path = Path(unquote(parts.path, errors="strict"))
    except ValueError:
        is_local, path = False, Path()
    require(is_local and path.is_absolute() and "\0" not in str(path), URL, _LIMIT, shown)
    try:
        place = path.resolve()
    except (OSError, RuntimeError):
        # Links in a circle.
        place = Path(path.anchor)
    require(place.is_relative_to(root.resolve()), URL, _LIMIT, shown)
    file = place if place.name == NAME else place / NAME
    # Not of the path itself, which raises for long names.
    if not isfile(file):
        raise UnknownNameError(URL, _LIMIT, shown)
    return file
