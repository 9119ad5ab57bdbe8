"""Opens gRPC channels to workers: their credentials and options, and the settings that a client's channels share."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import grpc
import grpc.experimental

from lumigrad.client.base.arguments import one_of, seconds
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.transport.addresses import TLS_TOO, Address, proxy_of
from lumigrad.client.transport.lanes import LaneMode

TOKEN_VARIABLE = "LUMIGRAD_TOKEN"
TLS_VARIABLE = "LUMIGRAD_TLS"

# Message sizes stay at gRPC's defaults (payloads come in chunks) and compression stays off (floats do not shrink).
_OPTIONS = (
    # A connection is closed if the network does not acknowledge a keepalive probe within this time,
    ("grpc.keepalive_timeout_ms", 10_000),
    # or if the worker does not acknowledge it within this time.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Short, so that retried calls soon find a restarted worker.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The waiting thread receives the reply itself, without a hand-over between threads.
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
)

# Connections to this machine, and those that no_proxy excludes, bypass the HTTP proxy that the environment names.
_DIRECT_OPTIONS = (*_OPTIONS, ("grpc.enable_http_proxy", 0))

File = str | PathLike[str]
Tls = bool | File
# The client's own certificate and its key.
Certificate = tuple[File, File]


# "interactive" for calls that a person waits for, "batch" for calls that may wait.
Priority = Literal["interactive", "normal", "batch"]
_KEY = "lumigrad-priority"


def priority_metadata(priority: Priority | None) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a priority; None adds none, which means "normal"."""
    if priority is None:
        return ()
    one_of("priority", priority, get_args(Priority), suffix=", or None")
    return ((_KEY, priority),)


def resolve_token(token: str | None) -> str:
    """Returns the token to use: the argument, else LUMIGRAD_TOKEN; empty means none."""
    resolved = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
    if not re.fullmatch(r"[\x21-\x7e]*", resolved):
        # gRPC would print the token in an error at every call.
        raise InvalidArgument.of("token", "expected printable ASCII without spaces; does it end with a newline?")
    return resolved


def resolve_tls(tls: Tls | None) -> Tls:
    """Returns the TLS setting: the argument, else LUMIGRAD_TLS ("1" or the path of a PEM file), else False."""
    if tls is not None:
        return tls
    named = os.environ.get(TLS_VARIABLE, "")
    return {"": False, "0": False, "1": True}.get(named, named)


def credentials_of(tls: Tls, certificate: Certificate | None = None) -> grpc.ChannelCredentials | None:
    """Returns the credentials of an encrypted channel; None for plain text.

    Args:
        tls: False: plain text; True: TLS with the system's certificate authorities; a path: TLS with the authorities
            in this PEM file.
        certificate: PEM files of the client's certificate chain and of its key, for workers that require them.
    """
    if tls is False:
        if certificate is not None:
            raise InvalidArgument.of("certificate", str(TLS_TOO))
        return None
    roots = None if tls is True else _read_authorities(tls)
    chain = key = None
    if certificate is not None:
        if isinstance(certificate, str) or not isinstance(certificate, Sequence) or len(certificate) != 2:
            raise InvalidArgument.of("certificate", f"expected two files, (certificate, key), got {certificate!r}")
        chain, key = _read_pair(*certificate)
    return grpc.ssl_channel_credentials(roots, key, chain)


@dataclass(frozen=True)
class Access:
    """The settings that all connections of a client share.

    Attributes:
        timeout_s: default time-out of a call, seconds.
        retry_s: how long a connection repeats a call while no worker answers, seconds.
        metadata: sent with each call.
        credentials: credentials of encrypted channels; None: plain text.
        lane: the transport of large payloads.
        keepalive_s: how long a connection may be without traffic before it is probed, seconds.
    """

    timeout_s: float
    retry_s: float
    metadata: tuple[tuple[str, str], ...]
    credentials: grpc.ChannelCredentials | None
    lane: LaneMode
    keepalive_s: float = 30.0

    @staticmethod
    def of(
        timeout_s: float,
        retry_s: float,
        token: str | None,
        tls: Tls | None,
        certificate: Certificate | None,
        priority: Priority | None,
        lane: LaneMode,
    ) -> Access:
        """Checks the arguments of `Client` and returns its access settings."""
        timeout_s, retry_s = seconds("timeout_s", timeout_s, 0.001), seconds("retry_s", retry_s, 0.0)
        token = resolve_token(token)
        authorization = (("authorization", f"Bearer {token}"),) if token else ()
        metadata = (*authorization, *priority_metadata(priority))
        return Access(timeout_s, retry_s, metadata, credentials_of(resolve_tls(tls), certificate), lane)


def open_channel(
    address: Address, credentials: grpc.ChannelCredentials | None, keepalive_s: float = 30.0
) -> grpc.Channel:
    """Returns a channel that connects on first use; without `credentials` it is plain text.

    A connection without received data for `keepalive_s` is probed while calls wait for it.
    """
    options: tuple[tuple[str, Any], ...] = _OPTIONS if proxy_of(address) else _DIRECT_OPTIONS
    options = (*options, ("grpc.keepalive_time_ms", round(keepalive_s * 1000)))
    if address.server_name is not None:
        # The client has resolved the name itself, but the certificate is for the name.
        options = (*options, ("grpc.default_authority", address.server_name))
    if credentials is None:
        return grpc.insecure_channel(address.target, options=options)
    if address.server_name is not None:
        options = (*options, ("grpc.ssl_target_name_override", address.server_name))
    return grpc.secure_channel(address.target, credentials, options=options)


def _read_authorities(path: File) -> bytes:
    content = _read("tls", "certificate authorities", path)
    try:
        # gRPC itself would only report, at every call, that the handshake failed.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        text = f"expected a PEM file of certificate authorities, got {path}, which holds no certificate"
        raise InvalidArgument.of("tls", text) from None
    return content


def _read_pair(certificate: File, key: File) -> tuple[bytes, bytes]:
    contents = _read("certificate", "the client's certificate", certificate), _read("certificate", "its key", key)
    try:
        # gRPC itself would only report, at every call, that the handshake failed.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError:
        text = f"expected a certificate and its key without a password, both PEM, got {certificate} and {key}"
        raise InvalidArgument.of("certificate", text) from None
    return contents


def _read(argument: str, what: str, path: File) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument.of(
            argument, f"expected a PEM file of {what}, got {path}: {error.strerror or error}"
        ) from error
