"""The JSON and the buffers of a glTF file; everything read from them is checked."""

from __future__ import annotations

import base64
import binascii
import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.source import Source, check_growth, malformed

GLB_MAGIC = b"glTF"
GLB_VERSION = 2
JSON_CHUNK, BINARY_CHUNK = 0x4E4F534A, 0x004E4942
Json = dict[str, Any]


class Document:
    """A glTF file.

    Attributes:
        path: the file.
        json: its JSON.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file; raises InvalidArgument unless it is glTF 2.0."""
        self.path = path
        source = Source.open(path)
        self._binary: bytes | None = None
        self._files: dict[str, bytes] = {}
        self._stored_bytes = len(source)
        text = self._chunks(source) if source.data[:4] == GLB_MAGIC else source.data
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"expected JSON: {error}") from error
        if not isinstance(values, dict):
            raise self.fail(f"expected a JSON object, got {type(values).__name__}")
        self.json: Json = values
        version = self.object(values.get("asset"), "asset").get("version")
        if not isinstance(version, str) or not version.startswith("2."):
            raise self.fail(f"expected glTF 2.0 in asset.version, got {version!r}")

    def fail(self, description: str) -> InvalidArgument:
        """Returns the error to raise about this file."""
        return malformed(self.path, description)

    def object(self, value: Any, where: str) -> Json:
        """Returns a JSON object; `where` names it in the error."""
        if not isinstance(value, dict):
            raise self.fail(f"expected an object in {where}, got {_short(value)}")
        return value

    def list(self, owner: Json, name: str, where: str) -> list[Any]:
        """Returns a list, empty if `owner` has none of this name."""
        value = owner.get(name, [])
        if not isinstance(value, list):
            raise self.fail(f"expected a list in {where}{name}, got {_short(value)}")
        return value

    def integer(self, owner: Json, name: str, where: str, default: int | None = None) -> int:
        """Returns a non-negative integer."""
        value = owner.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.fail(f"expected an integer >= 0 in {where}.{name}, got {_short(value)}")
        return value

    def numbers(self, owner: Json, name: str, where: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Returns as many numbers as the default has."""
        values = owner.get(name, default)
        listed = values if isinstance(values, (list, tuple)) else []
        numbers = tuple(value for value in listed if isinstance(value, (int, float)) and not isinstance(value, bool))
        if len(numbers) != len(default) or len(listed) != len(default):
            raise self.fail(f"expected {len(default)} numbers in {where}.{name}, got {_short(values)}")
        # JSON integers may exceed the range of float.
        return tuple(float(value) if abs(value) < 1e300 else math.inf for value in numbers)

    def item(self, name: str, index: Any) -> Json:
        """Returns an item of a top-level list, e.g. of "accessors"."""
        items = self.list(self.json, name, "")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(items):
            raise self.fail(f"expected an index below {len(items)}, the number of {name}, got {_short(index)}")
        return self.object(items[index], f"{name}[{index}]")

    def extensions(self, owner: Json, where: str) -> Json:
        """Returns the extension objects of a JSON object, by name."""
        return self.object(owner.get("extensions", {}), f"{where}.extensions")

    def view(self, index: Any) -> tuple[Source, int | None]:
        """Returns the bytes of a buffer view, and the stride of its elements if it has one."""
        view = self.item("bufferViews", index)
        where = f"bufferViews[{index}]"
        compressed = [name for name in self.extensions(view, where) if "meshopt" in name]
        if compressed:
            raise self.fail(
                f"expected {where} without the extension {compressed[0]}, which is not supported; write the file "
                "without compression"
            )
        number = self.integer(view, "buffer", where)
        offset, size = self.integer(view, "byteOffset", where, 0), self.integer(view, "byteLength", where)
        stride = self.integer(view, "byteStride", where) if "byteStride" in view else None
        owner, owner_name = self.item("buffers", number), f"buffers[{number}]"
        content = self._content(owner.get("uri"), number)
        length = self.integer(owner, "byteLength", owner_name)
        if length > len(content) or offset + size > length:
            raise self.fail(
                f"expected {max(length, offset + size):,} bytes in {owner_name}, which says that it has {length:,}, "
                f"got {len(content):,}"
            )
        buffer = Source(self.path, content, owner_name)
        return Source(self.path, buffer.take(offset, size, where).tobytes(), where), stride

    def check_growth(self, decoded_bytes: int) -> None:
        """Raises InvalidArgument if so many decoded bytes are implausible for a file of this size."""
        check_growth(self.path, self._stored_bytes, decoded_bytes)

    def _chunks(self, source: Source) -> bytes:
        """Returns the JSON of a .glb file, and keeps its binary chunk."""
        version, length = source.unpack("II", 4, "header")
        if version != GLB_VERSION:
            raise self.fail(f"expected a .glb file of version {GLB_VERSION} at byte 4, got {version}")
        if length > len(source):
            raise self.fail(f"expected {length:,} bytes, as byte 8 says, but the file has {len(source):,}")
        text, offset = b"", 12
        while offset + 8 <= length:
            size, kind = source.unpack("II", offset, "header of a chunk")
            content = source.take(offset + 8, size, "a chunk")
            if offset == 12 and kind != JSON_CHUNK:
                break
            if offset == 12:
                text = content.tobytes()
            elif kind == BINARY_CHUNK and self._binary is None:
                self._binary = content.tobytes()
            offset += 8 + size
        if not text:
            raise self.fail("expected a chunk of JSON at byte 12")
        return text

    def _content(self, uri: Any, index: int) -> bytes:
        where = f"buffers[{index}]"
        if uri is None:
            if index or self._binary is None:
                raise self.fail(f"expected a uri in {where}; only the first buffer of a .glb file is inside it")
            return self._binary
        if not isinstance(uri, str):
            raise self.fail(f"expected text in {where}.uri, got {_short(uri)}")
        if uri.startswith("data:"):
            head, _, data = uri.partition(",")
            try:
                if not head.endswith(";base64"):
                    raise ValueError("only base64 is supported")
                return base64.b64decode(data, validate=True)
            except (ValueError, binascii.Error) as error:
                raise self.fail(f"expected a data URI with base64 in {where}.uri: {error}") from error
        if uri not in self._files:
            self._files[uri] = self._neighbour(unquote(uri), where)
            self._stored_bytes += len(self._files[uri])
        return self._files[uri]

    def _neighbour(self, name: str, where: str) -> bytes:
        """Reads a file in this file's folder or below it."""
        folder = self.path.parent.resolve()
        # An absolute name or one with a scheme leads out of the folder, too; "\0" names no file.
        path = None if "\0" in name or ":" in name else (folder / name).resolve()
        if path is None or folder not in path.parents:
            raise self.fail(f"expected a file in the folder of this one in {where}.uri, got {_short(name)}")
        try:
            return path.read_bytes()
        except OSError as error:
            raise self.fail(f"expected a file {_short(name)} for {where}: {error.strerror}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
