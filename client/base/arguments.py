"""Validates single arguments and raises errors that name the argument."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Iterable
from contextlib import suppress
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args

from lumigrad.client.errors import InvalidArgument, shortened

_LONGEST_VALUE = 100
# Programs that unpack files, by suffix. Zip files are left to the readers, because a .sog is one.
_UNPACK = {
    **{".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".7z": "7z x", ".rar": "unrar x"},
    **dict.fromkeys((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"), "tar xf"),
}
# Programs that unpack what they read, by its beginning, for files whose names do not tell.
_GZIP = b"\x1f\x8b"
_BZIP2 = dict.fromkeys((b"BZh%d" % level for level in range(1, 10)), "bunzip2")
_UNPACK_BYTES = {_GZIP: "gunzip", **_BZIP2, b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
# The beginning of an .spz, which is read from a gzip stream, and more than the longest header of such a stream.
_SPZ, _LONGEST_START = b"NGSP", 1 << 10


def seconds(name: str, value: Any, least: float = -math.inf) -> float:
    """Converts `value` to a number of seconds, at least `least`; it may be infinite."""
    converted = number(name, value)
    if not converted >= least:
        limit = f" >= {least:g}" if least > -math.inf else ""
        raise InvalidArgument.of(name, f"expected seconds{limit}, got {_shown(value)}")
    return converted


def number(name: str, value: Any) -> float:
    """Converts `value` to a float; accepts 0-d arrays and tensors. True and False are not numbers."""
    try:
        if not isinstance(value, (str, bytes, bool)) and not str(getattr(value, "dtype", "")).endswith("bool"):
            return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InvalidArgument.of(name, f"expected a number, got {_shown(value)}; pass a float")


def whole_number(name: str, value: Any, least: int, largest: int) -> int:
    """Converts `value` to an int from `least` to `largest`, inclusive; accepts floats without a fraction."""
    converted = math.nan
    with suppress(InvalidArgument, TypeError):
        converted = number(name, value)
        # Floats round whole numbers from 2**53 on.
        converted = index(value)
    if not least <= converted <= largest or converted != int(converted):
        raise InvalidArgument.of(name, f"expected a whole number from {least} to {largest}, got {_shown(value)}")
    return int(converted)


def truth(name: str, value: Any) -> bool:
    """Converts `value` to True or False; accepts 0, 1, and arrays with one such value."""
    if value is False or value is True:
        return bool(value)
    with suppress(TypeError, ValueError, RuntimeError):
        if value in (False, True):
            return bool(value)
    raise InvalidArgument.of(name, f"expected True or False, got {_shown(value)}")


def names(name: str, value: Any) -> tuple[str, ...]:
    """Converts `value`, one name or several, to a tuple."""
    if isinstance(value, str):
        return (value,)
    given: tuple[Any, ...] = (
        value if isinstance(value, tuple) else tuple(value) if isinstance(value, Iterable) else (value,)
    )
    if not {str}.issuperset(map(type, given)) and not all(isinstance(entry, str) for entry in given):
        raise InvalidArgument.of(name, f'expected names, got {_shown(value)}; pass strings, e.g. ("color",)')
    return given


def optional_name(name: str, value: Any) -> str | None:
    """Returns `value` if it is None or a nonempty string; else raises InvalidArgument."""
    if value is not None and not (isinstance(value, str) and value):
        raise InvalidArgument.of(name, f"expected a name or None, got {_shown(value)}; pass a string")
    return value


def file_path(name: str, value: Any) -> Path:
    """Converts `value` to a path; an empty one is refused, since pathlib reads that as the current folder.

    Compressed files are refused, too, with the program that unpacks them.
    """
    if not isinstance(value, (str, PathLike)) or not fspath(value):
        raise InvalidArgument.of(name, f"expected the path of a file, got {_shown(value)}")
    path = Path(value)
    ends = [suffix.lower() for suffix in path.suffixes[-2:]]
    unpack = _UNPACK.get("".join(ends)) or _UNPACK.get(ends[-1] if ends else "")
    if unpack is not None and path.is_file():
        raise InvalidArgument.of(name, f"{path}: expected an unpacked file: `{unpack} {path}` unpacks it")
    if path.is_file() and (unpack := _unpacker_of(path)) is not None:
        raise InvalidArgument.of(name, f"{path}: expected an unpacked file: `{unpack} < {path} > NEW` unpacks it")
    return path


def _unpacker_of(path: Path) -> str | None:
    """Returns the program that unpacks a file, by its content; None if it is read as it is."""
    with open(path, "rb") as file:
        start = file.read(_LONGEST_START)
    if start.startswith(_GZIP):
        try:
            content = zlib.decompressobj(wbits=31).decompress(start, len(_SPZ))
        except zlib.error:
            return None
        return None if _SPZ.startswith(content) else _UNPACK_BYTES[_GZIP]
    return next((program for magic, program in _UNPACK_BYTES.items() if start.startswith(magic)), None)


def one_of(name: str, value: Any, known: Iterable[Any], quote: str = "", suffix: str = "") -> None:
    """Raises InvalidArgument unless `value` is in `known`; the text lists the known values, each between `quote`s."""
    listed = tuple(known)
    if not isinstance(value, Hashable) or value not in listed:
        expected = ", ".join(f"{quote}{entry}{quote}" for entry in listed)
        raise InvalidArgument.of(name, f"expected one of {expected}{suffix}, got {_shown(value)}")


def instance(name: str, value: Any, kinds: tuple[type, ...], advice: str) -> None:
    """Raises InvalidArgument unless `value` is of one of `kinds`."""
    if not isinstance(value, kinds):
        expected = " or ".join(", ".join(kind.__name__ for kind in kinds).rsplit(", ", 1))
        raise InvalidArgument.of(name, f"expected {expected}, got {_shown(value)}; {advice}")


def values_of(names: Any, kind: Any) -> dict[str, Any]:
    """Returns the values of the protobuf enum `kind` by the Python names in the Literal `names`."""
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    return {name: kind.Value(prefix + name.upper()) for name in get_args(names)}


def _shown(value: Any) -> str:
    """Returns the repr of a number, string or None, shortened if necessary; the type name of any other value."""
    is_short = isinstance(value, (str, int, float)) or value is None
    return shortened(repr(value), _LONGEST_VALUE) if is_short else type(value).__name__
