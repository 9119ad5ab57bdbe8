"""How a client connects: deadlines, retries, credentials, lanes and priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import grpc

from lumigrad.client.base.arguments import one_of
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.transport.channel import Certificate, Tls, credentials_of, resolve_tls, resolve_token
from lumigrad.client.transport.lanes import LaneMode

# "interactive" for people who wait, "batch" for what may wait.
Priority = Literal["interactive", "normal", "batch"]
_KEY = "lumigrad-priority"


def priority_metadata(priority: Priority | None) -> tuple[tuple[str, str], ...]:
    """What calls say of it; None: nothing, which is "normal"."""
    if priority is None:
        return ()
    one_of("priority", priority, get_args(Priority), suffix=", or None")
    return ((_KEY, priority),)


@dataclass(frozen=True)
class Access:
    """What all connections of a client share.

    Attributes:
        timeout_s: default time-out of a call, seconds.
        retry_s: how long a connection repeats a call while no worker answers, seconds.
        metadata: goes with each call.
        credentials: of encrypted channels; None: plain text.
        lane: how large payloads travel.
        keepalive_s: of a connection that says nothing for so long it is found out whether it still leads anywhere.
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
        """Checks what `Client` is given."""
        for name, seconds, least in (("timeout_s", timeout_s, 0.001), ("retry_s", retry_s, 0.0)):
            if not seconds >= least:
                raise InvalidArgument.of(name, f"expected seconds >= {least:g}, got {seconds}")
        token = resolve_token(token)
        authorization = (("authorization", f"Bearer {token}"),) if token else ()
        metadata = (*authorization, *priority_metadata(priority))
        return Access(timeout_s, retry_s, metadata, credentials_of(resolve_tls(tls), certificate), lane)
