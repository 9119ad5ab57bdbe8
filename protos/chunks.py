"""Payloads <-> chunks: cut buffers into messages of about 1 MiB, and collect them into one buffer again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from lumigrad.protos.errors import ProtocolError

# Measured best between 256 KiB and 4 MiB, and far below gRPC's default limit of 4 MiB per message.
CHUNK_BYTES = 1 << 20
# Up to this length the payload travels in the header's own message.
SHORT_BYTES = 64 << 10
# Up to this length, header included, a reply is one message if its caller accepts that: gRPC limits received messages
# to 4 MiB by default, and several messages cost the worker more than copying into one.
LARGEST_MESSAGE_BYTES = 7 << 19


def split(buffers: Iterable[memoryview], chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Cut the concatenation of byte buffers into chunks of `chunk_bytes`, the last one shorter.

    A chunk inside one buffer is a view of it; only chunks that cross a border between buffers are copied.
    """
    pending: list[memoryview] = []
    missing = chunk_bytes
    for buffer in buffers:
        start = 0
        while start < buffer.nbytes:
            piece = buffer[start : start + missing]
            start += piece.nbytes
            missing -= piece.nbytes
            pending.append(piece)
            if not missing:
                yield _joined(pending)
                pending, missing = [], chunk_bytes
    if pending:
        yield _joined(pending)


def _joined(pieces: list[memoryview]) -> memoryview:
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def allocate_bytes(length: int) -> memoryview:
    """Return a fresh, uninitialised buffer."""
    return np.empty(length, np.uint8).data if length else memoryview(bytearray())


class PayloadAssembler:
    """A buffer of the length in the header, which the chunks of a stream fill in order."""

    def __init__(
        self,
        payload_bytes: int,
        limit_bytes: int,
        allocate: Callable[[int], memoryview] = allocate_bytes,
    ) -> None:
        """Check the length against the limit and only then allocate."""
        if payload_bytes > limit_bytes:
            raise ProtocolError("payload_bytes", f"at most {limit_bytes} bytes", payload_bytes)
        self._buffer = allocate(payload_bytes)
        self._filled = 0

    @property
    def is_full(self) -> bool:
        """Whether all bytes have arrived."""
        return self._filled == self._buffer.nbytes

    def add(self, data: memoryview) -> None:
        """Append one chunk."""
        end = self._filled + data.nbytes
        if end > self._buffer.nbytes:
            raise ProtocolError("data", f"payload_bytes = {self._buffer.nbytes} bytes in all", f"at least {end}")
        self._buffer[self._filled : end] = data
        self._filled = end

    def finish(self) -> memoryview:
        """Return the complete payload; raises ProtocolError if bytes are missing."""
        if not self.is_full:
            raise ProtocolError("data", f"payload_bytes = {self._buffer.nbytes} bytes in all", self._filled)
        return self._buffer
