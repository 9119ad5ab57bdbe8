"""How a client calls its workers, whichever they are: as whom, trusting whom, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from lumigrad.client.channel import Certificate, Tls, credentials_of, resolve_tls, resolve_token
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.lanes import LaneMode
from lumigrad.client.priority import Priority, priority_metadata


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
