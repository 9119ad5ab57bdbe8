"""Hand-written HTTP/2: resets streams faster than a gRPC client can, and leaves replies unread."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from lumigrad.protos.service import RENDER_SERVICE, methods

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Kinds of frames.
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_FRAME_BYTES = 16 << 10
_INITIAL_WINDOW = 4
_RESETS_PER_SECOND = 25_000
_RENDER = next(method.path for method in methods(RENDER_SERVICE) if method.name == "Render")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame as in section 4.1 of RFC 9113."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _header_block(path: str) -> bytes:
    """Headers in HPACK, without indexing and Huffman coding."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "worker",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    words = [(bytes([len(word)]) + word.encode()) for field in fields.items() for word in field]
    return b"".join(b"\0" + name + value for name, value in zip(words[::2], words[1::2], strict=True))


def reset_rapidly(port: int, resets: int, has_ended: threading.Event) -> None:
    """Open `resets` streams and reset each at once, on one connection after another, until `has_ended` is set."""
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


class Unread:
    """A call that sends its whole request and keeps its windows at 0, so that the worker can send none of the reply."""

    def __init__(self, port: int, path: str, messages: Sequence[bytes]) -> None:
        """Send the request to the method at `path`."""
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._connection.sendall(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, 0)))
        self._stream = self._connection.makefile("rb")
        # Windows of the connection and of the stream.
        self._windows = {0: 65535, 1: 65535}
        self._has_settings = False
        while not self._has_settings:
            self._read_frame()
        self._connection.sendall(frame(HEADERS, 4, 1, _header_block(path)))
        self._send(b"".join(struct.pack(">?I", False, len(message)) + message for message in messages))
        # Answers the worker's frames meanwhile.
        threading.Thread(target=self._read_all, daemon=True).start()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send(self, body: bytes) -> None:
        sent = 0
        while sent < len(body):
            piece = body[sent : sent + min(_FRAME_BYTES, *self._windows.values())]
            if not piece:
                self._read_frame()
                continue
            self._connection.sendall(frame(DATA, 0, 1, piece))
            sent += len(piece)
            self._windows = {stream: window - len(piece) for stream, window in self._windows.items()}
        self._connection.sendall(frame(DATA, 1, 1))

    def _read_frame(self) -> None:
        high, low, kind, flags, stream = struct.unpack(">BHBBI", self._stream.read(9))
        payload = self._stream.read(high << 16 | low)
        if kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == PING and not flags & 1:
            self._connection.sendall(frame(PING, 1, 0, payload))
        elif kind == SETTINGS and not flags & 1:
            settings = dict(struct.iter_unpack(">HI", payload))
            self._windows[1] += settings.get(_INITIAL_WINDOW, 65535) - 65535
            self._has_settings = True
            self._connection.sendall(frame(SETTINGS, 1, 0))

    def _read_all(self) -> None:
        with suppress(OSError, ValueError, struct.error):
            while True:
                self._read_frame()


def _drain(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1 << 16):
            pass
