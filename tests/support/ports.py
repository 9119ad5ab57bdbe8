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
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
