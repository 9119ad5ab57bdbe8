"""Arrays of numbers from files: .npy, .npz, and text with one row per line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.source import shortened

NUMBER_SUFFIXES = (".npy", ".npz", ".csv", ".txt")
_UNITS = frozenset({"m", "meter", "meters", "metre", "metres", "rad", "radian", "radians"})
# Values that programs write for missing numbers.
_MISSING = frozenset({"na", "n/a", "null", "none"})
_OTHER_UNITS = frozenset({"mm", "cm", "dm", "km", "um", "in", "inch", "inches", "ft", "deg", "degree", "degrees", "°"})


def read_numbers(
    name: str, path: str | PathLike[str], preferred: str, places: Mapping[str, int], *, any_unit: bool = False
) -> Float64:
    """Reads the numbers of a file as float64, in their shape in the file.

    Args:
        name: name of the argument, for errors.
        path: .npy; .npz, from which the array `preferred` or the only one is read; .csv or .txt with numbers separated
            by commas, semicolons or blanks. Comments after # are skipped, except for column names above the first row.
        preferred: name of the array in an .npz file.
        places: position of each column by its name in lower case; the columns of a text file that names them in its
            first line, perhaps with a unit as in "x_m" or "x [m]", are reordered accordingly. Other names are ignored,
            but refused beside these or around these, as in "x_world".
        any_unit: whether units other than metres and radians are accepted, because the caller converts them.

    Raises:
        InvalidArgument: another kind of file, one that is damaged, or columns in other units or by other names.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in NUMBER_SUFFIXES:
        raise InvalidArgument.of(name, f"expected a file that ends in {_either()}, got {fspath(path)}")
    try:
        array = _text(path, places, any_unit=any_unit) if suffix in (".csv", ".txt") else _binary(path, preferred)
    except (ValueError, EOFError, KeyError, BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise InvalidArgument.of(name, f"{fspath(path)}: expected numbers: {reason}") from error
    if array.dtype.kind not in "fiu":
        raise InvalidArgument.of(name, f"{fspath(path)}: expected real numbers, got dtype {array.dtype}")
    return array.astype(np.float64)


def _either() -> str:
    return " or ".join(", ".join(NUMBER_SUFFIXES).rsplit(", ", 1))


def _binary(path: Path, preferred: str) -> npt.NDArray[Any]:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        names = list(loaded.files)
        if preferred not in names and len(names) != 1:
            raise ValueError(f"an array named {preferred!r}, or a single one; it has {', '.join(names) or 'none'}")
        return np.asarray(loaded[preferred if preferred in names else names[0]])


def _text(path: Path, places: Mapping[str, int], *, any_unit: bool) -> Float64:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    contents = [line.partition("#")[0].strip() for line in lines]
    rows = [_fields(content) for content in contents if content]
    columns: list[tuple[str, str]] = []
    # A first row without any number names the columns; a mistyped row would still have some.
    if rows and not any(_is_number(field) or field.lower() in _MISSING for field in rows[0]):
        columns, rows = [_name_and_unit(field, places) for field in rows[0]], rows[1:]
    elif rows:
        columns = _columns_in(_comment_above(lines, contents), len(rows[0]), places)
    if not rows:
        raise ValueError("at least one line of them, got none")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"lines of equal length, got {min(map(len, rows))} to {max(map(len, rows))} in a line")
    numbers = np.array(rows, np.float64)
    names = [name for name, _ in columns]
    if not any(name in places for name in names):
        _check_unnamed(names, numbers.shape[1], places)
        return numbers
    if len(names) != numbers.shape[1]:
        raise ValueError(f"a name for each column, got {', '.join(names)} for {numbers.shape[1]} columns")
    for name, unit in columns:
        if unit in _OTHER_UNITS and not any_unit:
            raise ValueError(f"metres and radians, or the scale of other units, got the column {name} in {unit}")
    return numbers[:, _order(names, places)]


def _comment_above(lines: Sequence[str], contents: Sequence[str]) -> str:
    """Returns the comment in the line above the first line with content; empty if there is none."""
    first = next(index for index, content in enumerate(contents) if content)
    return lines[first - 1].strip().lstrip("#") if first else ""


def _columns_in(comment: str, count: int, places: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns the columns that a comment names, as NumPy's savetxt writes them; none for any other remark."""
    words = re.sub(r"\s+(?=[\[(])", "", comment.replace(",", " ").replace(";", " ")).split()
    columns = [_name_and_unit(word, places) for word in words]
    names = {name for name, _ in columns}
    if len(columns) != count or len(names) != count:
        return []
    # Remarks have words such as "x-axis", too, but seldom three of them.
    found = {places[part] for name in names for part in (name, *_parts(name)) if part in places}
    return columns if len(names & places.keys()) >= min(count, 2) or len(found) >= min(count, 3) else []


def _name_and_unit(field: str, places: Mapping[str, int]) -> tuple[str, str]:
    """Returns the name of a column and its unit in lower case, without quotes; the unit may be empty.

    The unit is in brackets, or follows the last underscore if `places` has the name before it.
    """
    name, _, unit = field.strip("\"' ").lower().replace("(", "[").partition("[")
    name, unit = name.strip(), unit.rstrip("]) ")
    stem, _, ending = name.rpartition("_")
    if name not in places and stem in places and ending in _UNITS | _OTHER_UNITS:
        return stem, unit or ending
    return name, unit


def _check_unnamed(names: Sequence[str], count: int, places: Mapping[str, int]) -> None:
    """Raises ValueError if a name extends one of `places`, and there is a name for each of `count` columns."""
    longer = [name for name in names if _is_longer(name, places)]
    if longer and len(names) == count:
        known = ", ".join(places)
        raise ValueError(f"columns by the names {known}, perhaps with a unit behind, or by none; got {longer[0]!r}")


def _is_longer(name: str, places: Mapping[str, int]) -> bool:
    """Whether a name is one of `places` with other words before or after it: "x_world", "pos.x"."""
    return any(part in places for part in _parts(name))


def _parts(name: str) -> list[str]:
    """Returns what is before, and what is after each gap of a name."""
    gaps = re.finditer(r"[\s_.:/-]+", name)
    return [part for gap in gaps for part in (name[: gap.start()], name[gap.end() :])]


def _fields(line: str) -> list[str]:
    """Returns the fields of a line between semicolons, commas or blanks."""
    separator = next((mark for mark in ";," if mark in line), None)
    fields = [_unquoted(field.strip()) for field in line.removesuffix(separator or "").split(separator)]
    words = [word for field in fields for word in field.replace(",", " ").split()]
    if len(words) > len(fields) and any(map(_is_number, words)):
        # Commas may be decimal points.
        raise ValueError(f"numbers with decimal points and one kind of separator, got {shortened(line, 60)!r}")
    return fields


def _unquoted(field: str) -> str:
    """Returns a field without the quotes around it; a field that was split inside of quotes keeps them."""
    return field[1:-1].strip() if len(field) > 1 and field[0] == field[-1] == '"' else field


def _order(names: Sequence[str], places: Mapping[str, int]) -> list[int]:
    """Returns the columns of a file in the order of `places`."""
    found = [places.get(name, -1) for name in names]
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"the columns {', '.join(places)} alone, got {', '.join(map(repr, names))}")
    return sorted(range(len(found)), key=found.__getitem__)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
