"""Ports on which programs of a test listen one after another, or that are known before a program starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections until the program that it is passed to listens there.

    The system gives it to no other program meanwhile. The program must set SO_REUSEADDR, as workers, Prometheus and
    gRPC servers do.
    """
    with bound_socket() as bound:
        yield bound.getsockname()[1]


def bound_socket() -> socket.socket:
    """Reserves a port as `reserved_port` does, until the socket is closed."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound
