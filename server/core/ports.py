"""Reserves the ports that workers listen on, and says why an address cannot be used."""

from __future__ import annotations

import errno
import socket

from lumigrad.server.core.config import A_HOST, ConfigError

# Errors of addresses that this machine does not have; names that lead to none have no number.
_OF_HOSTS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)


def reserved(option: str, host: str, port: int) -> socket.socket:
    """Bind a port, 0 for a free one, without listening; raises ConfigError if it is in use or cannot be bound.

    Workers can bind it one after the other, and the system gives it to no other process.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        raise unusable(option, host, port, error) from None
    return bound


def unusable(option: str, host: str, port: int, error: OSError | UnicodeError) -> ConfigError:
    """Return the error of an address on which nothing can listen; `option` is that of its port."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    if number == errno.EADDRINUSE:
        what = f"{option}: cannot listen on {where}; is another process using it?"
        return ConfigError(f"{what} {option} 0 takes a free one")
    why = (error.strerror if isinstance(error, OSError) else None) or error
    if number is not None and number not in _OF_HOSTS:
        return ConfigError(f"{option}: cannot listen on {where}: {why}")
    return ConfigError(f"{option.replace('port', 'host')}: {A_HOST}, got {host!r} ({why})")
