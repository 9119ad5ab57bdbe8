"""The file format of a blob: name, header and payload, with digests that reveal damage."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MAGIC = b"lumigrad spool 1"
# Magic, then the byte counts of name, header and payload.
_SIZES = struct.Struct("<16sQQQ")
_DIGEST_BYTES = hashlib.sha256().digest_size
# Payloads start at multiples of this, in bytes.
_ALIGNMENT = 64
# Bytes hashed and written at a time: small enough for the processor's cache.
_PIECE_BYTES = 1 << 20


class DamagedError(Exception):
    """A file's content is not what was written; the text says why."""


@dataclass(frozen=True)
class Head:
    """The beginning of a file.

    Attributes:
        name: The blob's name.
        header: The blob's header.
        payload_bytes: The size of the payload.
        digest: SHA-256 of the fields above.
    """

    name: str
    header: bytes
    payload_bytes: int
    digest: bytes

    @property
    def offset(self) -> int:
        """The payload's offset in the file, in bytes."""
        return _padded(_SIZES.size + len(self.name.encode()) + len(self.header) + _DIGEST_BYTES)

    @property
    def file_bytes(self) -> int:
        """The size of the whole file."""
        return self.offset + self.payload_bytes + _DIGEST_BYTES


def head_of(name: str, header: bytes, payload_bytes: int) -> Head:
    """Create the head of a new file."""
    return Head(name, header, payload_bytes, hashlib.sha256(_described(name, header, payload_bytes)).digest())


def write(path: str, head: Head, buffers: Sequence[memoryview]) -> None:
    """Write a new file and fsync it. An OSError leaves a partial file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        described = _described(head.name, head.header, head.payload_bytes) + head.digest
        _write_all(file.fileno(), memoryview(described + bytes(head.offset - len(described))))
        digest = hashlib.sha256(head.digest)
        for buffer in buffers:
            for start in range(0, buffer.nbytes, _PIECE_BYTES):
                piece = buffer[start : start + _PIECE_BYTES]
                digest.update(piece)
                _write_all(file.fileno(), piece)
        _write_all(file.fileno(), memoryview(digest.digest()))
        os.fsync(file.fileno())


def read_head(path: str) -> Head:
    """Read the head of a file; DamagedError if it is damaged."""
    with open(_opened(path), "rb") as file:
        return _head(file.fileno())


def read(path: str, allocate: Callable[[int], memoryview]) -> tuple[Head, memoryview]:
    """Read head and payload, the latter into a buffer from `allocate(length)`; DamagedError if damaged."""
    with open(_opened(path), "rb", buffering=0) as file:
        head = _head(file.fileno())
        payload = allocate(head.payload_bytes)
        os.lseek(file.fileno(), head.offset, os.SEEK_SET)
        digest = hashlib.sha256(head.digest)
        for start in range(0, payload.nbytes, _PIECE_BYTES):
            piece = payload[start : start + _PIECE_BYTES]
            _read_all(file.fileno(), piece)
            digest.update(piece)
        written = memoryview(bytearray(_DIGEST_BYTES))
        _read_all(file.fileno(), written)
    if written != digest.digest():
        raise DamagedError("the payload is not what was written")
    return head, payload


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _head(descriptor: int) -> Head:
    actual = os.fstat(descriptor).st_size
    sizes = os.read(descriptor, _SIZES.size)
    if len(sizes) < _SIZES.size:
        raise DamagedError(f"a file of {actual} bytes has no head")
    magic, name_bytes, header_bytes, payload_bytes = _SIZES.unpack(sizes)
    if magic != _MAGIC:
        raise DamagedError("it is no file of a spool, or one of another version")
    # Checked before anything is allocated.
    expected = _padded(_SIZES.size + name_bytes + header_bytes + _DIGEST_BYTES) + payload_bytes + _DIGEST_BYTES
    if expected != actual:
        raise DamagedError(f"expected {expected} bytes, got {actual}")
    rest = memoryview(bytearray(name_bytes + header_bytes + _DIGEST_BYTES))
    _read_all(descriptor, rest)
    name, header = bytes(rest[:name_bytes]), bytes(rest[name_bytes : name_bytes + header_bytes])
    digest = hashlib.sha256(sizes + name + header).digest()
    if digest != rest[name_bytes + header_bytes :]:
        raise DamagedError("the head is not what was written")
    return Head(name.decode(), header, payload_bytes, digest)


def _described(name: str, header: bytes, payload_bytes: int) -> bytes:
    encoded = name.encode()
    return _SIZES.pack(_MAGIC, len(encoded), len(header), payload_bytes) + encoded + header


def _padded(length: int) -> int:
    return length + -length % _ALIGNMENT


def _write_all(descriptor: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(descriptor, data) :]


def _read_all(descriptor: int, into: memoryview) -> None:
    while into.nbytes:
        count = os.readv(descriptor, [into])
        if not count:
            raise DamagedError("the file became shorter while it was read")
        into = into[count:]
