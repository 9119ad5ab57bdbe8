"""A gRPC channel to a worker: its address, credentials and options."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

import grpc

from lumigrad.client.errors import InvalidArgument

TARGET_VARIABLE = "LUMIGRAD_TARGET"
DEFAULT_TARGET = "localhost:50051"

# Message sizes stay at gRPC's defaults (payloads come in chunks) and compression stays off (floats do not shrink).
_OPTIONS = (
    # Notice a worker that vanished without closing the connection, while calls wait for it.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A worker that is restarted should be found again in the time that calls are retried for.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

# A proxy that the environment names for the web does not lead to this machine.
_LOOPBACK_OPTIONS = (*_OPTIONS, ("grpc.enable_http_proxy", 0))
_LOOPBACK = ("localhost:", "127.", "[::1]:")

Tls = bool | str | PathLike[str]


def resolve_target(target: str | None) -> str:
    """The address meant: the argument, else LUMIGRAD_TARGET, else localhost:50051."""
    resolved = target or os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET
    if any(character.isspace() for character in resolved):
        raise InvalidArgument.of("target", f'expected an address such as "{DEFAULT_TARGET}", got {resolved!r}')
    return resolved


def open_channel(target: str, tls: Tls) -> grpc.Channel:
    """A channel that connects when it is first used.

    Args:
        target: "host:port" or any other gRPC name.
        tls: False: plain text; True: TLS with the system's certificate authorities; a path: TLS with those in this
            PEM file.
    """
    options = _LOOPBACK_OPTIONS if target.startswith(_LOOPBACK) else _OPTIONS
    if tls is False:
        return grpc.insecure_channel(target, options=options)
    roots = None if tls is True else _read_roots(tls)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(root_certificates=roots), options=options)


def _read_roots(path: str | PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument.of(
            "tls", f"expected a PEM file of certificate authorities, got {path}: {error}"
        ) from error
