"""Reads JSON files with checks: each error names the file, the field, what was expected and what came."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from lumigrad.protos.errors import shortened

_MOST_BYTES = 256 << 20


class ManifestError(ValueError):
    """A manifest, or a file that it names, is invalid; the text names file, field and reason."""


class JsonNode:
    """A value of a JSON file, and where it is: `path` is a field such as "cameras[0].intrinsics"."""

    def __init__(self, value: Any, file: Path, path: str = "") -> None:
        self.value = value
        self.file = file
        self.path = path

    @staticmethod
    def read(file: str | PathLike[str]) -> JsonNode:
        """Read a file.

        Raises:
            ManifestError: the file cannot be read, is not JSON, or has a key twice in one object.
        """
        file = Path(file)
        try:
            size = file.stat().st_size
            if size > _MOST_BYTES:
                raise ManifestError(f"{file}: expected at most {_MOST_BYTES:,} bytes, got {size:,}")
            # Some editors write a byte order mark.
            text = file.read_text(encoding="utf-8-sig")
            return JsonNode(json.loads(text, object_pairs_hook=_unique, parse_constant=_refused), file)
        except OSError as error:
            raise ManifestError(f"{file}: {error.strerror}") from error
        except RecursionError:
            raise ManifestError(f"{file}: expected values that are nested less deeply") from None
        except ValueError as error:
            raise error if isinstance(error, ManifestError) else ManifestError(f"{file}: {error}") from error

    def fail(self, expected: str, actual: object = None) -> NoReturn:
        """Raise a ManifestError about this value."""
        got = json.dumps(self.value) if actual is None else actual
        where = f"{self.path}: " if self.path else ""
        raise ManifestError(f"{self.file}: {where}expected {expected}, got {shortened(got)}")

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, JsonNode]:
        """Return the fields of an object; null counts as absent."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        known = [*required, *optional]
        for name in self.value:
            if name not in known:
                close = get_close_matches(name, known, 1)
                guess = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
                raise ManifestError(f"{self.file}: {self._below(name)}: unknown key{guess}")
        found = {
            name: JsonNode(value, self.file, self._below(name))
            for name, value in self.value.items()
            if value is not None
        }
        for name in required:
            if name not in found:
                raise ManifestError(f"{self.file}: {self._below(name)}: expected a value, got none")
        return found

    def items(self) -> Iterator[JsonNode]:
        """Yield the items of a list."""
        if not isinstance(self.value, list):
            self.fail("a list")
        for index, value in enumerate(self.value):
            yield JsonNode(value, self.file, f"{self.path}[{index}]")

    def text(self) -> str:
        """Return a text that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            self.fail("a text")
        return str(self.value)

    def choice(self, names: Collection[str]) -> str:
        """Return a word that must be among `names`."""
        if not isinstance(self.value, str) or self.value not in names:
            self.fail(f"one of {', '.join(names)}")
        return str(self.value)

    def integer(self, least: int, most: int) -> int:
        """Return a whole number within limits."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not least <= self.value <= most:
            self.fail(f"a whole number from {least} to {most}")
        return int(self.value)

    def number(self, above: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number greater than `above` and at most `most`."""
        value = self.value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not above < value <= most:
            limits = [f" above {above:g}"] * (above > -math.inf) + [f" of at most {most:g}"] * (most < math.inf)
            self.fail("a finite number" + " and".join(limits))
        return float(value)

    def numbers(self, counts: Collection[int]) -> list[float]:
        """Return a list of finite numbers; `counts` are the allowed lengths."""
        items = list(self.items())
        if len(items) not in counts:
            allowed = f"{min(counts)} to {max(counts)}" if len(counts) > 2 else " or ".join(map(str, counts))
            self.fail(f"{allowed} numbers", f"{len(items)}")
        return [item.number() for item in items]

    def _below(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shortened(name)}: expected each key once in an object, got it twice")
        found[name] = value
    return found


def _refused(name: str) -> NoReturn:
    raise ValueError(f"expected finite numbers, got {name}")
