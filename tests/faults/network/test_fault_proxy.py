"""The proxy that other tests rely on does to bytes what it says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from support.fault_proxy import End, FaultProxy

KIB = 1 << 10


@pytest.fixture
def echo() -> Iterator[str]:
    """Where all that is sent comes back."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(peer: socket.socket) -> None:
            with peer:
                try:
                    while data := peer.recv(KIB):
                        peer.sendall(data)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo: str) -> Iterator[FaultProxy]:
    with FaultProxy(echo) as started:
        yield started


def connect(proxy: FaultProxy, seconds: float = 10) -> socket.socket:
    host, _, port = proxy.target.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=seconds)
    assert exchange(connection, b"hello") == b"hello"
    return connection


def exchange(connection: socket.socket, data: bytes) -> bytes:
    def send() -> None:
        with contextlib.suppress(OSError):
            connection.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    received = b""
    while len(received) < len(data):
        piece = connection.recv(len(data))
        if not piece:
            break
        received += piece
    return received


def timed(connection: socket.socket, data: bytes) -> float:
    started = time.monotonic()
    assert exchange(connection, data) == data
    return time.monotonic() - started


def test_bytes_pass_as_they_are(proxy: FaultProxy) -> None:
    data = bytes(range(256)) * (16 * KIB)
    with connect(proxy) as one, connect(proxy) as other:
        assert exchange(one, data) == data
        assert exchange(other, data[1:]) == data[1:]
        assert proxy.connections == 2
        assert len(proxy.arrivals) == 2


def test_the_end_of_one_side_is_passed_on(proxy: FaultProxy) -> None:
    with connect(proxy) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


@pytest.mark.parametrize("way", ["up", "down"])
def test_delay(proxy: FaultProxy, way: str) -> None:
    with connect(proxy) as connection:
        getattr(proxy, way).delay = 0.2
        assert timed(connection, b"x") >= 0.2
        # Later, not slower.
        assert timed(connection, bytes(1000 * KIB)) < 5


@pytest.mark.parametrize("way", ["up", "down"])
def test_rate(proxy: FaultProxy, way: str) -> None:
    with connect(proxy) as connection:
        getattr(proxy, way).bytes_per_second = 1000 * KIB
        assert timed(connection, bytes(500 * KIB)) >= 0.45


@pytest.mark.parametrize("way", ["up", "down"])
def test_trickle(proxy: FaultProxy, way: str) -> None:
    with connect(proxy) as connection:
        getattr(proxy, way).piece_bytes = 1
        assert exchange(connection, bytes(range(256))) == bytes(range(256))


@pytest.mark.parametrize("way", ["up", "down"])
def test_frozen(proxy: FaultProxy, way: str) -> None:
    with connect(proxy, 0.3) as connection:
        getattr(proxy, way).frozen = True
        time.sleep(0.05)
        connection.sendall(b"x")
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.heal()
        connection.settimeout(10)
        assert connection.recv(1) == b"x"


@pytest.mark.parametrize("way", ["up", "down"])
def test_dropped(proxy: FaultProxy, way: str) -> None:
    with connect(proxy) as connection:
        getattr(proxy, way).dropped = True
        connection.sendall(bytes(1000 * KIB))
        time.sleep(0.3)
        proxy.heal()
        assert exchange(connection, b"after") == b"after"


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("after", [0, 1, 1500])
def test_cut(proxy: FaultProxy, way: str, after: int) -> None:
    with connect(proxy) as connection:
        getattr(proxy, way).cut(after, End.CLOSE)
        received = exchange(connection, bytes(3000))
        assert len(received) <= after
        assert way == "up" or len(received) == after
    with connect(proxy) as connection:
        assert exchange(connection, b"once") == b"once"


def test_reset_and_silence(proxy: FaultProxy) -> None:
    with connect(proxy) as connection:
        proxy.end_all()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(proxy, 0.2) as connection:
        proxy.end_all(End.SILENCE)
        connection.sendall(b"x")
        with pytest.raises(TimeoutError):
            connection.recv(1)
    proxy.accepts = False
    with socket.socket() as connection, pytest.raises(ConnectionResetError):
        connection.connect(("127.0.0.1", int(proxy.target.rpartition(":")[2])))
        connection.recv(1)
    assert len(proxy.arrivals) == 3
