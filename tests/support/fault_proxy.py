"""A TCP proxy in front of a worker that injects network faults; it runs in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import math
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

_RECEIVE_BYTES = 256 << 10
# The maximum number of delayed pieces per direction.
_MOST_PIECES = 32
# The approximate accuracy of sleeps; rates hold on average over this time.
_TICK_SECONDS = 0.005
_LINGER_SECONDS = 1.0


class End(enum.Enum):
    """How a connection ends."""

    # Both sides get a reset at once; data in transit is lost.
    RESET = enum.auto()
    # Both sides get an end of file after the data in transit.
    CLOSE = enum.auto()
    # Neither side is notified, as when a cable is pulled: the connection is half-open.
    SILENCE = enum.auto()


@dataclass
class Way:
    """The faults in one direction, for all connections; every field may be changed at any time."""

    # Latency in seconds; it does not limit the rate.
    delay: float = 0.0
    bytes_per_second: float = math.inf
    # The number of bytes per write, each in its own packet.
    piece_bytes: int = _RECEIVE_BYTES
    # Reads and forwards nothing: senders block once the system's buffers are full.
    frozen: bool = False
    # Bytes are read and discarded: to senders they seem to arrive.
    dropped: bool = False
    # After this number of bytes the connection that transfers them ends; applies once.
    cut_after: int | None = None
    cut_end: End = End.RESET
    # The number of bytes forwarded so far.
    passed: int = 0

    def cut(self, after: int, end: End = End.RESET) -> None:
        """End a connection after `after` more bytes."""
        self.cut_end, self.cut_after = end, after

    def heal(self) -> None:
        """Remove all faults."""
        for field in dataclasses.fields(self):
            if field.name != "passed":
                setattr(self, field.name, field.default)

    def take(self, length: int) -> tuple[int, bool]:
        """The number of bytes to forward of `length`, and whether the connection ends after them."""
        if self.cut_after is None:
            return length, False
        passing = min(length, self.cut_after)
        is_last = passing == self.cut_after
        self.cut_after = None if is_last else self.cut_after - passing
        return passing, is_last


class FaultProxy:
    """Forwards connections from `target` to `worker`; a context manager.

    `up` is the direction of requests, `down` that of replies.
    """

    def __init__(self, worker: str) -> None:
        self._worker = _address(worker)
        self.up, self.down = Way(), Way()
        # New connections are reset while this is False.
        self.accepts = True
        # Times of connections by the monotonic clock, refused ones included.
        self.arrivals: list[float] = []
        self._connections: set[_Connection] = set()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._listener = self._socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(1024)
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def lead_to(self, worker: str) -> None:
        """End every connection, and forward new ones to another worker."""
        self._worker = _address(worker)
        self.end_all()

    def end_all(self, end: End = End.RESET, *, heal: bool = False) -> None:
        """End every connection that is open; with `heal` the next ones have no faults."""

        def work() -> None:
            for connection in list(self._connections):
                connection.end(end)
            # Removed before, a fault would no longer apply to what the connections still carry.
            if heal:
                self.heal()
            done.set()

        done = threading.Event()
        self._loop.call_soon_threadsafe(work)
        assert done.wait(60), "the proxy's thread does not answer"

    def heal(self) -> None:
        """Remove all faults; connections that have ended stay closed."""
        self.up.heal()
        self.down.heal()
        self.accepts = True

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        accepting.cancel()
        for connection in list(self._connections):
            connection.end(End.RESET)
        # Lets cancelled tasks run to their end.
        self._loop.run_until_complete(asyncio.sleep(2 * _TICK_SECONDS))
        for one in list(self._sockets):
            one.close()
        self._loop.close()

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            self._sockets.add(client)
            self.arrivals.append(time.monotonic())
            if self.accepts:
                _start(self._connect(client))
            else:
                _reset(client)

    async def _connect(self, client: socket.socket) -> None:
        worker = self._socket()
        try:
            await self._loop.sock_connect(worker, self._worker)
        except OSError:
            _reset(client)
            _reset(worker)
            return
        connection = _Connection(client, worker, self._connections.discard)
        self._connections.add(connection)
        connection.carry(client, worker, self.up)
        connection.carry(worker, client, self.down)

    def _socket(self) -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        self._sockets.add(made)
        return made


class _Connection:
    """A client's connection and the corresponding connection to the worker."""

    def __init__(self, client: socket.socket, worker: socket.socket, on_end: Callable[[_Connection], None]) -> None:
        self._sockets = client, worker
        self._on_end = on_end
        self._is_silent = False
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        for one in self._sockets:
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def carry(self, source: socket.socket, sink: socket.socket, way: Way) -> None:
        """Start forwarding bytes in one direction."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_PIECES)
        self._tasks.append(_start(self._receive(source, way, under_way)))
        self._tasks.append(_start(self._deliver(sink, way, under_way)))

    def end(self, end: End) -> None:
        """End both sides."""
        if end is End.SILENCE:
            self._is_silent = True
            return
        self._on_end(self)
        for task in self._tasks:
            task.cancel()
        for one in self._sockets:
            if end is End.RESET:
                # The tasks must have released the socket before.
                self._loop.call_soon(_reset, one)
            else:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                # Closing at once would send a reset if data is unread.
                self._loop.call_later(_LINGER_SECONDS, one.close)

    async def _receive(self, source: socket.socket, way: Way, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"?"
        while data:
            await self._thaw(way)
            try:
                data = await self._loop.sock_recv(source, _RECEIVE_BYTES)
            except OSError:
                self.end(End.RESET)
                return
            delay = way.delay
            await under_way.put((self._loop.time() + delay, data))
            if not delay:
                # Reads no further ahead, so that senders block as without a proxy.
                await under_way.join()

    async def _deliver(self, sink: socket.socket, way: Way, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        free = 0.0
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(due - self._loop.time())
            rest = memoryview(data)
            while rest and not way.dropped:
                await self._thaw(way)
                length, is_last = way.take(min(rest.nbytes, way.piece_bytes))
                free = max(free, self._loop.time() - _TICK_SECONDS) + length / way.bytes_per_second
                await asyncio.sleep(free - self._loop.time())
                # Counted before the receiver has them, so that it does not run ahead of the count.
                way.passed += length
                try:
                    await self._loop.sock_sendall(sink, rest[:length])
                except OSError:
                    self.end(End.RESET)
                if is_last:
                    self.end(way.cut_end)
                rest = rest[length:]
            if not data:
                with contextlib.suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
            under_way.task_done()

    async def _thaw(self, way: Way) -> None:
        while way.frozen or self._is_silent:
            await asyncio.sleep(_TICK_SECONDS)


def _address(worker: str) -> tuple[str, int]:
    host, _, port = worker.rpartition(":")
    return host.strip("[]"), int(port)


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
