"""One blob in one file: a name, a header and a payload, with digests by which damage is found. Knows no folder."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MAGIC = b"lumigrad spool 1"
# Magic, bytes of the name, of the header and of the payload.
_SIZES = struct.Struct("<16sQQQ")
_DIGEST_BYTES = hashlib.sha256().digest_size
# Payloads start at multiples of this.
_ALIGNMENT = 64
# What is hashed and written at a time: small enough to stay in the processor's cache.
_PIECE_BYTES = 1 << 20


class DamagedError(Exception):
    """A file that is not what was written; the text says why."""


@dataclass(frozen=True)
class Head:
    """What a file begins with.

    Attributes:
        name: Of the blob.
        header: What its owner says of it.
        payload_bytes: Of its payload.
        digest: SHA-256 of all this.
    """

    name: str
    header: bytes
    payload_bytes: int
    digest: bytes

    @property
    def offset(self) -> int:
        """Where the payload starts."""
        return _padded(_SIZES.size + len(self.name.encode()) + len(self.header) + _DIGEST_BYTES)

    @property
    def file_bytes(self) -> int:
        """Of the whole file."""
        return self.offset + self.payload_bytes + _DIGEST_BYTES


def head_of(name: str, header: bytes, payload_bytes: int) -> Head:
    """The head of a file that is to be written."""
    return Head(name, header, payload_bytes, hashlib.sha256(_described(name, header, payload_bytes)).digest())


def write(path: str, head: Head, buffers: Sequence[memoryview]) -> None:
    """Write a new file, to the disk itself. An OSError leaves a part of it behind."""
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
    """The head of a file; a damaged one is a DamagedError."""
    with open(_opened(path), "rb") as file:
        return _head(file.fileno())


def read(path: str, allocate: Callable[[int], memoryview]) -> tuple[Head, memoryview]:
    """Head and payload; the payload goes to the buffer that `allocate` gives for its length."""
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
    # Before anything is allocated.
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
