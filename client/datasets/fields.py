"""Checked fields of JSON files, and poses in them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.datasets.files import portable
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.source import malformed, shortened
from lumigrad.client.values.rotations import why_no_rotation


def read_json(path: Path) -> Any:
    """Reads the content of a JSON file."""
    try:
        return json.loads(path.read_bytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise malformed(path, f"expected a JSON file: {error}") from error
    except _TwiceError as error:
        raise malformed(path, str(error)) from error


class _TwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object; raises _TwiceError for a field with two values, of which the parser would keep the last."""
    values = dict(pairs)
    if len(values) < len(pairs):
        for name, value in pairs:
            if value != values[name]:
                found = f"{shortened(repr(value), 60)} and {shortened(repr(values[name]), 60)}"
                raise _TwiceError(f"expected each field once, got {name!r} as {found}; remove the wrong one")
    return values


MOST_PIXELS = 1 << 20


class Fields:
    """An object of a JSON file.

    Attributes:
        path: the file.
        where: the object's path in it, e.g. "frames[3]"; empty: the whole file.
    """

    def __init__(self, path: Path, values: Any, where: str = "", fallback: Fields | None = None) -> None:
        """Wraps an object; missing fields are read from `fallback`."""
        self.path, self.where, self._fallback = path, where, fallback
        if not isinstance(values, dict):
            raise malformed(path, f"expected an object{f' at {where}' if where else ''}, got {type(values).__name__}")
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self.owns(name) or (self._fallback is not None and name in self._fallback)

    def owns(self, name: str) -> bool:
        """Whether this object itself has the field."""
        return self._values.get(name) is not None

    def closest(self, *names: str) -> str | None:
        """Returns the first of these names that this object has itself, else the fallback's first; None without any."""
        own = next((name for name in names if self.owns(name)), None)
        return own if own or self._fallback is None else self._fallback.closest(*names)

    def fail(self, name: str, expected: str, value: Any) -> InvalidArgument:
        """Returns the error for an invalid field."""
        came = "nothing" if value is None else repr(value)
        return malformed(self.path, f"{self.place(name)}: expected {expected}, got {came}")

    def place(self, name: str) -> str:
        """Returns the path of a field in the file."""
        return ".".join(part for part in (self.where, name) if part)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number."""
        value = self._value(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < math.inf:
            raise self.fail(name, "a finite number", value)
        try:
            return float(value)
        except OverflowError as error:
            raise self.fail(name, "a finite number", "an integer too large for a float") from error

    def pixels(self, name: str) -> int:
        """Returns a whole number of pixels."""
        value = self.number(name)
        if value < 1 or value != math.floor(value) or value > MOST_PIXELS:
            raise self.fail(name, "a whole number of pixels >= 1", value)
        return int(value)

    def text(self, name: str) -> str:
        """Returns a string that is not empty."""
        value = self._value(name)
        if not isinstance(value, str) or not value:
            raise self.fail(name, "a text", value)
        return value

    def file_name(self, name: str) -> str:
        """Returns the path of a file."""
        value = self.text(name)
        if not PurePosixPath(portable(value)).name:
            raise self.fail(name, "the path of a file", value)
        return value

    def flag(self, name: str) -> bool | None:
        """Returns true or false, also as 1 or 0; None without a value."""
        value = self._value(name)
        if value is not None and value not in (True, False):
            raise self.fail(name, "true or false", value)
        return None if value is None else bool(value)

    def raw(self, name: str) -> Any:
        """Returns a value as it is."""
        return self._value(name)

    def saying(self, among: Iterable[str] | None = None) -> list[str]:
        """Returns the names of this object's fields, or those `among` these, that are not null, false, 0 or empty."""
        return [name for name in (self._values if among is None else among) if _says(self._value(name))]

    def array(self, name: str, *shapes: tuple[int, ...]) -> Float64:
        """Returns finite numbers in one of the given shapes."""
        value = self._value(name)
        expected = "finite numbers of shape " + " or ".join(str(list(shape)) for shape in shapes)
        try:
            array = np.array(value, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.fail(name, expected, value) from error
        if array.shape not in shapes or not np.isfinite(array).all():
            raise self.fail(name, expected, value)
        return array

    def object(self, name: str) -> Fields:
        """Returns an object in this one."""
        return Fields(self.path, self._value(name), f"{self.where}.{name}" if self.where else name)

    def objects(self, name: str) -> list[Any]:
        """Returns a list."""
        value = self._value(name)
        if not isinstance(value, list):
            raise self.fail(name, "a list", value)
        return value

    def _value(self, name: str) -> Any:
        value = self._values.get(name)
        return self._fallback._value(name) if value is None and self._fallback is not None else value


def _says(value: Any) -> bool:
    """Whether a value, or any value inside a dict or list, is not null, false, 0 or empty."""
    if isinstance(value, dict | list):
        return any(_says(each) for each in (value.values() if isinstance(value, dict) else value))
    return bool(value)


# Fields of lenses beyond pinholes.
_DISTORTION = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2", "skew", "distortion", "distortion_params")


def warn_of_lenses(path: Path, entries: Iterable[Fields]) -> None:
    """Warns of fields of lenses in a format whose cameras are pinholes."""
    if found := dict.fromkeys(name for entry in entries for name in entry.saying(_DISTORTION)):
        warn_caller(f"{path}: fields of lenses that are ignored: {', '.join(found)}; undistort the photographs")


def checked_rotation(fields: Fields, name: str, matrix: Float64) -> Float64:
    """Returns a matrix [3, 3]; raises InvalidArgument, which names the field, unless it is a rotation."""
    why = why_no_rotation(matrix)
    if not why:
        return matrix
    scale = float(np.cbrt(np.linalg.det(matrix)))
    if scale > 0 and not why_no_rotation(matrix / scale):
        why = f"one times {scale:.4g}; divide the matrix by this scale"
    raise malformed(
        fields.path, f"{fields.place(name)}: expected an orthonormal rotation of determinant 1, got {shortened(why)}"
    )


# OpenGL's cameras look along -z with y up.
OPENGL = np.diag([1.0, -1.0, -1.0])
_LAST_ROW = (0.0, 0.0, 0.0, 1.0)


def opengl_pose(fields: Fields, name: str, to_world: Float64) -> tuple[Float64, Float64]:
    """Returns rotation [3, 3] and translation [3], world to camera, of a matrix [3 or 4, 4] with OpenGL's axes.

    Raises:
        InvalidArgument: the matrix, the field `name`, has no rotation, or is for row vectors.
    """
    if len(to_world) == len(_LAST_ROW) and not np.allclose(to_world[3], _LAST_ROW, atol=1e-6):
        # Checks the rotation first: scaling a whole matrix changes its last row, too.
        checked_rotation(fields, name, to_world[:3, :3])
        text = f"expected the last row 0 0 0 1, got {to_world[3].tolist()}; transpose a matrix that is for row vectors"
        raise malformed(fields.path, f"{fields.place(name)}: {text}")
    rotation = (checked_rotation(fields, name, to_world[:3, :3]) @ OPENGL).T
    return rotation, -rotation @ to_world[:3, 3]
