"""Arrays of numbers from files: .npy, .npz, and text with one row per line."""

from __future__ import annotations

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


def read_numbers(name: str, path: str | PathLike[str], preferred: str, places: Mapping[str, int]) -> Float64:
    """Reads the numbers of a file as float64, in their shape in the file.

    Args:
        name: name of the argument, for errors.
        path: .npy; .npz, from which the array `preferred` or the only one is read; .csv or .txt with numbers separated
            by commas, semicolons or blanks. Comments after # are skipped, but for names of columns above the first row.
        preferred: name of the array in an .npz file.
        places: number of each column by its names in a first line of text, in small letters; columns come in this order
            if the file names them. Other names say nothing, but not beside these.

    Raises:
        InvalidArgument: another kind of file, or one that is damaged.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in NUMBER_SUFFIXES:
        raise InvalidArgument.of(name, f"expected a file that ends in {_either()}, got {fspath(path)}")
    try:
        array = _text(path, places) if suffix in (".csv", ".txt") else _binary(path, preferred)
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


def _text(path: Path, places: Mapping[str, int]) -> Float64:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    contents = [line.partition("#")[0].strip() for line in lines]
    rows = [_fields(content) for content in contents if content]
    names: list[str] = []
    # Names of columns; a mistyped first row has other numbers.
    if rows and not any(map(_is_number, rows[0])):
        names, rows = list(map(_plain, rows[0])), rows[1:]
    elif rows:
        names = _names_in(_comment_above(lines, contents), len(rows[0]), places)
    if not rows:
        raise ValueError("at least one line of them, got none")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"lines of equal length, got {min(map(len, rows))} to {max(map(len, rows))} in a line")
    numbers = np.array(rows, np.float64)
    if not any(name in places for name in names):
        return numbers
    if len(names) != numbers.shape[1]:
        raise ValueError(f"a name for each column, got {', '.join(names)} for {numbers.shape[1]} columns")
    return numbers[:, _order(names, places)]


def _comment_above(lines: Sequence[str], contents: Sequence[str]) -> str:
    """The comment in the line before the first one with content; empty: there is none."""
    first = next(index for index, content in enumerate(contents) if content)
    return lines[first - 1].strip().lstrip("#") if first else ""


def _names_in(comment: str, count: int, places: Mapping[str, int]) -> list[str]:
    """The names of columns in a comment, as NumPy's savetxt writes them; none if it is another remark."""
    names = list(map(_plain, comment.replace(",", " ").replace(";", " ").split()))
    known = sum(name in places for name in names)
    return names if len(names) == count and known >= min(count, 2) else []


def _plain(name: str) -> str:
    """The name of a column without quotes, capitals and a unit in brackets."""
    return name.strip("\"' ").lower().partition("[")[0].partition("(")[0].strip()


def _fields(line: str) -> list[str]:
    """The fields of a line between semicolons, commas or blanks."""
    separator = next((mark for mark in ";," if mark in line), None)
    fields = [field.strip() for field in line.removesuffix(separator or "").split(separator)]
    words = [word for field in fields for word in field.replace(",", " ").split()]
    if len(words) > len(fields) and any(map(_is_number, words)):
        # Commas may be decimal points.
        raise ValueError(f"numbers with decimal points and one kind of separator, got {shortened(line, 60)!r}")
    return fields


def _order(names: Sequence[str], places: Mapping[str, int]) -> list[int]:
    """The columns of a file in the order of `places`."""
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
