"""HTTP/2 written by hand: streams that are opened and reset faster than a client of gRPC can."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from lumigrad.protos.service import RENDER_SERVICE, methods

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Kinds of frames.
HEADERS, RESET, SETTINGS = 1, 3, 4
_RESETS_PER_SECOND = 25_000
_RENDER = next(method.path for method in methods(RENDER_SERVICE) if method.name == "Render")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, by section 4.1 of RFC 9113."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _header_block(path: str) -> bytes:
    """HPACK without an index and without Huffman's code."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "worker",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    words = [(bytes([len(word)]) + word.encode()) for field in fields.items() for word in field]
    return b"".join(b"\0" + name + value for name, value in zip(words[::2], words[1::2], strict=True))


def reset_rapidly(port: int, resets: int, has_ended: threading.Event) -> None:
    """Open so many streams and reset each at once, on one connection after the other, unless `has_ended` is set."""
    block, number, started = _header_block(_RENDER), 0, time.monotonic()
    while number < resets and not has_ended.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(5)
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
            threading.Thread(target=_drain, args=(connection,), daemon=True).start()
            for stream in range(1, 4000, 2):
                number += 1
                opened = frame(HEADERS, 4, stream, block)
                connection.sendall(opened + frame(RESET, 0, stream, (8).to_bytes(4, "big")))
                if number % 100 == 0:
                    has_ended.wait(max(0, started + number / _RESETS_PER_SECOND - time.monotonic()))


def _drain(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1 << 16):
            pass
