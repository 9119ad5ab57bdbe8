"""Raw calls of authenticated callers."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from support.calls.raw_calls import RawClient
from support.workers.worker import WorkerProcess


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Sends a token with each call."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def _send(self, proceed: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), self._header]
        return proceed(_Details(details.method, details.timeout, metadata, details.credentials), request)

    intercept_unary_unary = _send
    intercept_unary_stream = _send
    intercept_stream_unary = _send
    intercept_stream_stream = _send


class _Details(
    collections.namedtuple("_Details", ("method", "timeout", "metadata", "credentials")), grpc.ClientCallDetails
):
    pass


def tenant_client(channel: grpc.Channel, token: str) -> RawClient:
    """A client that sends the token with each call."""
    return RawClient("", channel=grpc.intercept_channel(channel, _Bearer(token)))


def tenant_fixture(token: str) -> Any:
    """Returns a fixture: a client of the worker `process` with this token, which the tests of a module share."""

    @pytest.fixture(scope="module")
    def client(process: WorkerProcess) -> Iterator[RawClient]:
        with process.channel() as channel:
            yield tenant_client(channel, token)

    return client
