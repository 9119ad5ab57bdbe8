"""A port that stays its owner's while nobody listens on it, so that clients find the next worker there."""

from __future__ import annotations

import socket

from lumigrad.server.config import ConfigError


class ReservedPort:
    """Bound, but never listened on: a socket that does so beside it may come and go, and strangers get another port."""

    def __init__(self, option: str, host: str, port: int) -> None:
        """Port 0 takes a free one; one on which another process listens is a ConfigError that names `option`."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except OSError:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            what = f"{option}: cannot listen on {where}; is another process using it?"
            raise ConfigError(f"{what} {option} 0 takes a free one") from None
        self.number: int = self._socket.getsockname()[1]
