"""The references of the lanes, in a separate process: copies through a bare socket, and bare gRPC streams."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import grpc
import grpc.experimental

from lumigrad.protos.buffers import keep_free_memory
from lumigrad.protos.chunks import CHUNK_BYTES

# An order to the socket: "d" (down) or "u" (up), and the number of bytes.
_ORDER = struct.Struct("<cQ")
_SERVICE, _ECHO, _DOWN, _UP = "reference", "Echo", "Down", "Up"
_CHUNK = bytes(CHUNK_BYTES)


class References:
    """The process with both references, and their near ends. Use it in a `with` block."""

    def __init__(self, largest: int) -> None:
        """Copies have up to `largest` bytes, in buffers allocated before."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.lanes.references", str(largest)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        copy, calls = map(int, self._process.stdout.readline().split())
        self._socket = socket.create_connection(("127.0.0.1", copy))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = ((grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{calls}", options)
        self._echo = self._channel.unary_unary(f"/{_SERVICE}/{_ECHO}")
        self._down = self._channel.unary_stream(f"/{_SERVICE}/{_DOWN}")
        self._up = self._channel.stream_unary(f"/{_SERVICE}/{_UP}")
        self._buffer = memoryview(bytearray(b"\1") * largest)

    def __enter__(self) -> References:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait()

    def down(self, size: int) -> float:
        """Milliseconds until `size` bytes have arrived."""
        start = time.perf_counter()
        self._socket.sendall(_ORDER.pack(b"d", size))
        _fill(self._socket, self._buffer[:size])
        return (time.perf_counter() - start) * 1e3

    def up(self, size: int) -> float:
        """Milliseconds until the other side reports that it has `size` bytes."""
        start = time.perf_counter()
        self._socket.sendall(_ORDER.pack(b"u", size))
        self._socket.sendall(self._buffer[:size])
        _fill(self._socket, self._buffer[:1])
        return (time.perf_counter() - start) * 1e3

    def grpc_down(self, size: int) -> float:
        """Milliseconds of a stream of chunks with `size` bytes, which are joined."""
        start = time.perf_counter()
        filled = 0
        for chunk in self._down(struct.pack("<Q", size)):
            self._buffer[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        return (time.perf_counter() - start) * 1e3

    def grpc_up(self, size: int) -> float:
        """Milliseconds of a stream of chunks with `size` bytes, which the other side discards."""
        start = time.perf_counter()
        self._up(_chunks(size))
        return (time.perf_counter() - start) * 1e3

    def unary(self, request: bytes) -> float:
        """Milliseconds of a call that sends these bytes and receives them again."""
        start = time.perf_counter()
        self._echo(request)
        return (time.perf_counter() - start) * 1e3


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view:
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]


def _chunks(size: int) -> Iterator[bytes]:
    for start in range(0, size, CHUNK_BYTES):
        yield _CHUNK[: size - start]


def _drained(requests: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
    for _ in requests:
        pass
    return b""


def _serve_copies(connection: socket.socket, largest: int) -> None:
    buffer = memoryview(bytearray(b"\1") * largest)
    order = bytearray(_ORDER.size)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while connection.recv_into(order, flags=socket.MSG_WAITALL):
        direction, size = _ORDER.unpack(order)
        if direction == b"d":
            connection.sendall(buffer[:size])
        else:
            _fill(connection, buffer[:size])
            connection.sendall(b"!")


def main() -> None:
    """Serves both references until the near end is closed."""
    # Like the client at the near end.
    keep_free_memory()
    calls = grpc.server(ThreadPoolExecutor(2))
    handlers = {
        _ECHO: grpc.unary_unary_rpc_method_handler(lambda request, _: request),
        _DOWN: grpc.unary_stream_rpc_method_handler(lambda request, _: _chunks(*struct.unpack("<Q", request))),
        _UP: grpc.stream_unary_rpc_method_handler(_drained),
    }
    calls.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    calls_port = calls.add_insecure_port("127.0.0.1:0")
    calls.start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], calls_port, flush=True)
        connection, _ = server.accept()
    thread = threading.Thread(target=_serve_copies, args=(connection, int(sys.argv[1])), daemon=True)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
