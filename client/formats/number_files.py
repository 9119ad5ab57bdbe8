"""Arrays of numbers from files: .npy, .npz, and text with one row per line."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument

NUMBER_SUFFIXES = (".npy", ".npz", ".csv", ".txt")


def read_numbers(name: str, path: str | PathLike[str], preferred: str) -> Float64:
    """Reads the numbers of a file as float64, in their shape in the file.

    Args:
        name: name of the argument, for errors.
        path: .npy; .npz, from which the array `preferred` or the only one is read; .csv or .txt with numbers separated
            by commas, semicolons or blanks. A first line of names and comments after # are skipped.
        preferred: name of the array in an .npz file.

    Raises:
        InvalidArgument: another kind of file, or one that is damaged.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in NUMBER_SUFFIXES:
        raise InvalidArgument.of(name, f"expected a file that ends in {_either()}, got {fspath(path)}")
    try:
        array = _text(path) if suffix in (".csv", ".txt") else _binary(path, preferred)
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


def _text(path: Path) -> Float64:
    text = path.read_text(encoding="utf-8-sig")
    lines = [line.partition("#")[0].replace(";", " ").replace(",", " ") for line in text.splitlines()]
    rows = [line.split() for line in lines if line.strip()]
    # Names of columns; a mistyped first row has other numbers.
    if rows and not any(map(_is_number, rows[0])):
        rows = rows[1:]
    if not rows:
        raise ValueError("at least one line of them, got none")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"lines of equal length, got {min(map(len, rows))} to {max(map(len, rows))} in a line")
    return np.array(rows, np.float64)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
