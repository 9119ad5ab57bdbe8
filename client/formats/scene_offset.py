"""The offset that was subtracted from a data set's coordinates to make a scene's, in scene.offset.json beside it."""

from __future__ import annotations

import json
import math
from os import PathLike

from lumigrad.client.base.replacing import write_text
from lumigrad.client.formats.scene_view import beside
from lumigrad.client.formats.source import malformed

Offset = tuple[float, float, float]
_NAME = "offset"


def read_offset(scene: str | PathLike[str]) -> Offset | None:
    """Returns the offset from a scene's coordinates to those of its data set; None if they are the same.

    Raises:
        InvalidArgument: the file beside the scene file holds no offset.
    """
    path = beside(scene, _NAME)
    if not path.is_file():
        return None
    try:
        x, y, z = (float(value) for value in json.loads(path.read_text(encoding="utf-8"))[_NAME])
        if not all(map(math.isfinite, (x, y, z))):
            raise ValueError("not finite")
    except (ValueError, TypeError, KeyError) as error:
        raise malformed(path, f'expected "offset", three numbers; correct the file: {error!r}') from error
    return x, y, z


def write_offset(scene: str | PathLike[str], offset: Offset | None) -> None:
    """Writes the file beside a scene file; None removes it."""
    path = beside(scene, _NAME)
    if offset is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, json.dumps({_NAME: offset}) + "\n")


def offset_text(offset: Offset | None) -> str:
    """Describes a scene's coordinates for users."""
    minus = "" if offset is None else f" minus ({', '.join(f'{value:.15g}' for value in offset)})"
    return f"those of the data set{minus}"
