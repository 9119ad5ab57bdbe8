"""Files beside that of a scene: the view with which it opens, and the offset of its coordinates."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from lumigrad.client.base.cautions import warn_of_radians
from lumigrad.client.base.replacing import write_text
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.camera import Camera

Numbers = tuple[float, ...]
Offset = tuple[float, float, float]
_LENGTHS = {"eye": 3, "target": 3, "up": 3}


@dataclass(frozen=True)
class SceneView:
    """A camera that looks at a scene, and the background that the scene was fitted with.

    Attributes:
        eye: [3] position, world frame, scene units.
        target: [3] the point looked at, which orbits turn around.
        up: [3] world direction that points up.
        fov_degrees: vertical field of view.
        background: colour, 0 to 1; None: the default.
    """

    eye: Numbers
    target: Numbers
    up: Numbers
    fov_degrees: float
    background: Numbers | None = None

    @staticmethod
    def load(scene: str | PathLike[str]) -> SceneView | None:
        """Reads the file beside a scene file; None if there is none.

        Args:
            scene: the path of the scene file.

        Raises:
            InvalidArgument: the file is no view.

        Example:
            view = SceneView.load(folder / "scene.ply")
        """
        path = beside(scene, "view")
        if not path.is_file():
            return None
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            vectors = {name: _numbers(values[name], length) for name, length in _LENGTHS.items()}
            stated = values.get("background")
            background = None if stated is None else _numbers(stated, len(stated))
            if background is not None and not all(0.0 <= level <= 1.0 for level in background):
                raise ValueError(f"expected a background of numbers from 0 to 1, got {stated}")
            view = SceneView(**vectors, fov_degrees=float(values["fov_degrees"]), background=background)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            expected = 'expected "eye", "target" and "up", three numbers each, and "fov_degrees"'
            raise malformed(path, f"{expected}; remove or correct the file: {error!r}") from error
        warn_of_radians(f"{path}: fov_degrees", view.fov_degrees)
        return view

    def camera(self, width: int, height: int) -> Camera:
        """Returns the view as a pinhole camera.

        Args:
            width: picture width in pixels.
            height: picture height in pixels.

        Raises:
            InvalidArgument: a size is not positive, or the view looks along its up direction.

        Example:
            view = SceneView((0, 0, -4), (0, 0, 0), (0, -1, 0), fov_degrees=45)
            camera = view.camera(640, 480)
        """
        return Camera.look_at(self.eye, self.target, self.up, fov_degrees=self.fov_degrees, width=width, height=height)

    def save(self, scene: str | PathLike[str]) -> None:
        """Writes the file beside a scene file.

        Args:
            scene: the path of the scene file.

        Raises:
            OSError: the file cannot be written.

        Example:
            SceneView((0, 0, -4), (0, 0, 0), (0, -1, 0), fov_degrees=45).save(folder / "scene.ply")
        """
        values = {name: value for name, value in asdict(self).items() if value is not None}
        write_text(beside(scene, "view"), json.dumps(values) + "\n")


def beside(scene: str | PathLike[str], kind: str) -> Path:
    """Returns the path of a file about a scene file, beside it: scene.view.json for scene.ply."""
    path = Path(scene)
    if path.name in ("", ".."):
        # Paths such as "." and ".." lack the name of the scene's folder.
        path = path.resolve()
    return path.parent / f"{path.stem}.{kind}.json"


def _numbers(values: Any, length: int) -> Numbers:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != length:
        raise ValueError(f"expected {length} numbers, got {values}")
    return numbers


def read_offset(scene: str | PathLike[str]) -> Offset | None:
    """Returns the offset from a scene's coordinates to those of its data set; None if they are the same.

    Raises:
        InvalidArgument: the file beside the scene file holds no offset.
    """
    path = beside(scene, "offset")
    if not path.is_file():
        return None
    try:
        x, y, z = (float(value) for value in json.loads(path.read_text(encoding="utf-8"))["offset"])
        if not all(map(math.isfinite, (x, y, z))):
            raise ValueError("not finite")
    except (ValueError, TypeError, KeyError) as error:
        raise malformed(path, f'expected "offset", three numbers; correct the file: {error!r}') from error
    return x, y, z


def write_offset(scene: str | PathLike[str], offset: Offset | None) -> None:
    """Writes the file beside a scene file; None removes it."""
    path = beside(scene, "offset")
    if offset is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, json.dumps({"offset": offset}) + "\n")


def offset_text(offset: Offset | None) -> str:
    """Describes a scene's coordinates for users."""
    minus = "" if offset is None else f" minus ({', '.join(f'{value:.15g}' for value in offset)})"
    return f"those of the data set{minus}"
