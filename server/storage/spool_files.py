"""The files of the spool: their format, with digests that reveal damage, their writing, and their folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import re
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_VERSION = 1
_MAGIC = b"lumigrad spool %d" % _VERSION
_ANY_VERSION = re.compile(rb"lumigrad spool ?(\d{1,4})")
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


def write(path: str, head: Head, buffers: Iterable[memoryview], *, is_durable: bool) -> None:
    """Write a new file, and fsync it if it is durable. An error, even one of `buffers`, leaves a partial file."""
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
        if is_durable:
            os.fsync(file.fileno())


def read_head(path: str) -> Head:
    """Read the head of a file; raises DamagedError if it is damaged."""
    with open(_opened(path), "rb") as file:
        return _head(file.fileno())


def read(path: str, allocate: Callable[[int], memoryview]) -> tuple[Head, memoryview]:
    """Read the head, and the payload into a buffer from `allocate(length)`; raises DamagedError if damaged."""
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


class PayloadFile:
    """An open file, whose payload is read in parts, on any thread. It stays readable if the file is removed."""

    def __init__(self, path: str) -> None:
        """Open the file and check its head; raises DamagedError if that is damaged. The parts are not checked."""
        descriptor = _opened(path)
        self._close = weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self.head = _head(descriptor)

    def read(self, offset: int, into: memoryview) -> memoryview:
        """Fill a buffer from an offset in the payload; returns it. Raises DamagedError if the file is too short."""
        position, rest = self.head.offset + offset, into
        while rest.nbytes:
            count = os.preadv(self._descriptor, [rest], position)
            if not count:
                raise DamagedError("the file became shorter while it was read")
            position, rest = position + count, rest[count:]
        return into


def mapped(path: str, nbytes: int) -> memoryview:
    """Map `nbytes`, at least 1, of a new unnamed file; raises OSError if the disk has no room for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
        # A write to a page without room on the disk would end the process.
        os.posix_fallocate(descriptor, 0, nbytes)
        return memoryview(mmap.mmap(descriptor, nbytes))
    finally:
        os.close(descriptor)


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _head(descriptor: int) -> Head:
    actual = os.fstat(descriptor).st_size
    sizes = os.read(descriptor, _SIZES.size)
    if len(sizes) < _SIZES.size:
        raise DamagedError(f"a file of {actual} bytes has no head")
    magic, name_bytes, header_bytes, payload_bytes = _SIZES.unpack(sizes)
    if magic != _MAGIC:
        raise DamagedError("it is no file of a spool")
    # Check the size before anything is allocated.
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


GONE = ".gone"


class Trash:
    """Files to remove: `sync` durably renames them, and `sweep` removes them, which may take long."""

    def __init__(self) -> None:
        self._named: deque[str] = deque()
        self._renamed: deque[str] = deque()
        # Held while files are renamed, so that `sync` waits for renames of other threads.
        self.renaming = threading.Lock()

    def put(self, path: str) -> None:
        """Add a file. It keeps its name until `sync` returns."""
        self._named.append(path)

    def sync(self) -> None:
        """Rename the added files and fsync their folders, so that they stay removed after a power failure."""
        with self.renaming:
            folders = set()
            while self._named:
                path = self._named.popleft()
                folders.add(os.path.dirname(path))
                try:
                    os.rename(path, path + GONE)
                except OSError:
                    remove(path)
                else:
                    self._renamed.append(path + GONE)
            for folder in folders:
                # A missing folder needs no fsync.
                with contextlib.suppress(OSError):
                    sync_folder(folder)

    def sweep(self) -> None:
        """Remove the renamed files."""
        with contextlib.suppress(IndexError):
            while True:
                remove(self._renamed.popleft())


def remove(path: str) -> None:
    """Remove a file; errors are ignored."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def sync_folder(path: str) -> None:
    """Fsync a folder, so that the names in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The suffix of a file that is being written.
PART = ".part"
_LOCK = "lock"
# The digests of a blob's name and alias, and a number that is larger for newer files. Every version of the format has
# these names, because other files are removed.
_FORM = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32}|0)-([0-9a-f]{16})")


@dataclass(frozen=True)
class SpoolFile:
    """A completely written file.

    Attributes:
        key: OWNER/KIND/NAME of its blob; owner and name as digests.
        alias: OWNER/KIND/ALIAS in the same form; empty without an alias.
        number: A number larger than those of all earlier files.
        is_newer: Whether a later version of this program wrote it in a format that cannot be read.
    """

    path: str
    key: str
    alias: str
    number: int
    nbytes: int
    is_newer: bool


def claimed(folder: str) -> int:
    """Create the folder if needed and lock it; returns the descriptor that holds the lock.

    Raises OSError if it belongs to another user or another worker uses it.
    """
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    if not os.path.isdir(folder):
        os.mkdir(folder)
    if os.stat(folder).st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user")
    # Other users must not read tenants' scenes.
    os.chmod(folder, 0o700)
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise OSError(errno.EBUSY, "another worker uses it") from None
    return lock


def path(folder: str, key: str, alias: str, number: int) -> str:
    """Return the path of a new file; creates its folders."""
    owner, kind, name = key.split("/")
    for where in (os.path.join(folder, owner), os.path.join(folder, owner, kind)):
        if not os.path.isdir(where):
            os.makedirs(where, 0o700, exist_ok=True)
            sync_folder(os.path.dirname(where))
    return os.path.join(folder, owner, kind, f"{name}-{alias.rpartition('/')[2] or 0}-{number:016x}")


def files(folder: str, trash: Trash) -> list[SpoolFile]:
    """Return all complete files, the oldest first; partial files left by a crash, and what is no file, are trash."""
    found = []
    for owner in _folders(folder):
        for kind in _folders(owner.path):
            for entry in os.scandir(kind.path):
                form = _FORM.fullmatch(entry.name)
                # Opening a pipe would wait for its writer for ever.
                if form is None or not entry.is_file(follow_symlinks=False):
                    trash.put(entry.path)
                    continue
                where = f"{owner.name}/{kind.name}"
                alias = "" if form[2] == "0" else f"{where}/{form[2]}"
                nbytes = entry.stat(follow_symlinks=False).st_size
                key, number = f"{where}/{form[1]}", int(form[3], 16)
                found.append(SpoolFile(entry.path, key, alias, number, nbytes, _is_newer(entry.path)))
    return sorted(found, key=lambda file: file.number)


def _is_newer(path: str) -> bool:
    # An error that lasts is logged when the file is read.
    with contextlib.suppress(OSError), open(_opened(path), "rb", buffering=0) as file:
        version = _ANY_VERSION.match(file.read(_SIZES.size))
        return version is not None and int(version[1]) > _VERSION
    return False


def _folders(path: str) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
