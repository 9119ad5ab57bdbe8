"""Parses and resolves addresses of workers, and words the advice in errors when no worker answers."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lumigrad.client.errors import InvalidArgument, Unavailable, shortened


@dataclass(frozen=True)
class Remedy:
    """Advice in an error, in terms of Python arguments and of shell options.

    `str` gives the advice for Python; `at_the_shell` replaces it in a text by the advice for the shell.
    """

    python: str
    shell: str

    def __str__(self) -> str:
        return self.python


LARGER_TIMEOUT = Remedy("pass a larger timeout_s", "pass a larger --timeout SECONDS")
TOKEN = Remedy(
    "pass token=… to Client, or set LUMIGRAD_TOKEN", "set LUMIGRAD_TOKEN, or name its file with --token-file FILE"
)
PLAIN_TEXT = Remedy("omit tls", "omit --tls, or pass --no-tls")
AUTHORITY = Remedy(
    "pass tls=FILE with the authority's certificate", "pass the authority's certificate by --tls-ca FILE"
)
TLS = Remedy("pass tls=True or tls=FILE", "use --tls or --tls-ca FILE")
CERTIFICATE = Remedy("certificate=(FILE, KEY)", "--certificate FILE KEY")
TLS_TOO = Remedy("expected tls=True or tls=FILE with it, got tls=False", "expected --tls or --tls-ca FILE with it")
TARGET = Remedy("name another with LUMIGRAD_TARGET", "name another with --target or LUMIGRAD_TARGET")
TARGETS = Remedy("name others with LUMIGRAD_TARGET", "name others with --target or LUMIGRAD_TARGET")

_ALL = (LARGER_TIMEOUT, TOKEN, PLAIN_TEXT, AUTHORITY, TLS, CERTIFICATE, TLS_TOO, TARGET, TARGETS)


def at_the_shell(text: str) -> str:
    """Returns a message with its advice in terms of command-line options."""
    for remedy in _ALL:
        text = text.replace(remedy.python, remedy.shell)
    return text


TARGET_VARIABLE = "LUMIGRAD_TARGET"
DEFAULT_TARGET = "localhost:50051"
DEFAULT_PORT = 50051

# Addresses, separated by commas or in a sequence; or a function that returns them, called repeatedly.
WorkerTargets: TypeAlias = "str | Sequence[str] | Callable[[], Sequence[str]]"

_DNS = ("dns:///", "dns:")
_NUMERIC = ("ipv4:", "ipv6:")
# Schemes that users of URLs put before an address.
_WEB = re.compile(r"^(https?|grpcs?|tcp|tls)://([^/]*)/?", re.IGNORECASE)
# Schemes of gRPC targets that need not be "host:port".
_OTHERS = ("unix:", "unix-abstract:", "vsock:", "xds:", "google-c2p:")
_HOST_PORT = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:/\[\]]+)(?::(?P<port>\d{1,5}))?")
_SOCKETS = ("unix:", "unix-abstract:")
# Variables that name a proxy, and those that list hosts without one, in the order in which gRPC reads them.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_UNPROXIED = ("no_grpc_proxy", "no_proxy")


@dataclass(frozen=True)
class Address:
    """The address of a worker: "host:port", or any other target that gRPC resolves.

    `server_name` is the name in the worker's certificate, if the target does not contain it.
    """

    target: str
    server_name: str | None = None


class Targets:
    """The workers that a user named.

    Attributes:
        text: what the user wrote, for messages.
        is_lone: whether there is a single address, which never changes.
        is_fixed: whether the addresses never change: none is a name to look up, and none comes from a function.
    """

    def __init__(self, targets: WorkerTargets | None) -> None:
        """Parses what a user passes; None means LUMIGRAD_TARGET, else localhost:50051."""
        self._ask = targets if callable(targets) else None
        self._entries = () if callable(targets) else _entries(targets)
        self.text = getattr(targets, "__name__", "a function") if callable(targets) else ",".join(self._entries)
        self.is_lone = self._ask is None and len(self._entries) == 1 and not _is_name(self._entries[0])
        self.is_fixed = self._ask is None and not any(map(_is_name, self._entries))

    def addresses(self) -> tuple[Address, ...]:
        """Returns the workers' addresses, each once; looks up names anew.

        Raises:
            Unavailable: no name could be resolved to an address, or the user's function failed.
            InvalidArgument: the function returned something other than addresses.
        """
        entries = self._entries if self._ask is None else self._asked(self._ask)
        found: dict[Address, None] = {}
        failures: list[str] = []
        for entry in entries:
            try:
                found.update(dict.fromkeys(_looked_up(entry) if _is_name(entry) else (Address(entry),)))
            except (OSError, UnicodeError) as error:
                failures.append(f"{entry} cannot be resolved ({error})")
        if not found:
            why = "; ".join(failures) or "the look-up returned no address"
            raise Unavailable(f"no worker at {self.text}: {why}; {TARGETS}")
        return tuple(found)

    def _asked(self, ask: Callable[[], Sequence[str]]) -> tuple[str, ...]:
        """Calls the user's function and returns its addresses."""
        try:
            found = ask()
            named = found if isinstance(found, str) else tuple(found)
        except Exception as error:
            why = f"{type(error).__name__}: {shortened(str(error), 200)}"
            raise Unavailable(f"no worker at {self.text}, which failed to return addresses ({why})") from error
        return _parsed(named) if named else ()


def split_target(target: str) -> tuple[str, int | None]:
    """Splits a target into its name or address and its port, None if it has none."""
    host, _, port = target.removeprefix("dns:///").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else (target, None)


def is_loopback(target: str) -> bool:
    """Whether an address is this machine's loopback address or name."""
    host = host_of(target)
    if target.startswith(_SOCKETS) or host.lower() == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    # The unspecified address, on which a worker may listen, also leads to this machine.
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_loopback or ip.is_unspecified


def proxy_of(address: Address) -> str | None:
    """Returns the variable of the environment whose HTTP proxy a worker is reached through, or None without a proxy."""
    name = next((name for name in _PROXIES if os.environ.get(name)), None)
    if name is None or is_loopback(address.target) or address.target.startswith("vsock:"):
        return None
    listed = next(filter(None, map(os.environ.get, _UNPROXIED)), "")
    hosts = (host_of(address.target), address.server_name or "")
    return None if any(_covers(entry.strip(), host) for entry in listed.split(",") for host in hosts) else name


def host_of(target: str) -> str:
    """Returns the name or address of a target."""
    scheme = next((scheme for scheme in _NUMERIC if target.startswith(scheme)), "")
    return split_target(target.removeprefix(scheme))[0]


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of no_proxy covers a host: "*", a network, an address, or a name with all names below it."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        name = entry.lower().removeprefix("*").removeprefix(".")
        return entry == "*" or (bool(name) and (host.lower() == name or host.lower().endswith(f".{name}")))


def resolve_name(host: str, port: int) -> tuple[str, ...]:
    """Resolves a name to addresses "ip:port": only IPv4 if there are any, since a worker may have one of each kind."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    four = [f"{where[0]}:{port}" for family, *_, where in found if family is socket.AF_INET]
    six = [f"[{where[0]}]:{port}" for family, *_, where in found if family is socket.AF_INET6]
    return tuple(dict.fromkeys(four or six))


def _entries(targets: Any) -> tuple[str, ...]:
    if targets is None:
        named = os.environ.get(TARGET_VARIABLE, DEFAULT_TARGET)
        if not named:
            raise InvalidArgument.of(TARGET_VARIABLE, f"expected an address, got ''; unset it for {DEFAULT_TARGET}")
        return _parsed(named, TARGET_VARIABLE)
    if not isinstance(targets, Iterable):
        text = f'expected "host:port", several of them, or a function that returns them, got {type(targets).__name__}'
        raise InvalidArgument.of("target", text)
    given = targets if isinstance(targets, str) else tuple(targets)
    if not given:
        text = (
            f"expected at least one address, got {given!r}; leave it out for {TARGET_VARIABLE}, else {DEFAULT_TARGET}"
        )
        raise InvalidArgument.of("target", text)
    return _parsed(given)


def _parsed(named: str | Sequence[str], name: str = "target") -> tuple[str, ...]:
    """Returns the addresses, each once; errors call them `name`."""
    if isinstance(named, str):
        scheme = next((scheme for scheme in _NUMERIC if named.startswith(scheme)), "")
        parts = named.removeprefix(scheme).split(",")
        # A single address is passed to gRPC unchanged.
        named = [named] if len(parts) == 1 else parts
    return tuple(dict.fromkeys(_checked(named, name)))


def _checked(entries: Sequence[str], name: str) -> Sequence[str]:
    for entry in entries:
        if not isinstance(entry, str) or not entry or any(character.isspace() for character in entry):
            text = f'expected addresses such as "{DEFAULT_TARGET}", "a:50051,b:50051" or "dns:///name:50051", got'
            raise InvalidArgument.of(name, f"{text} {entry!r}")
        web = _WEB.match(entry)
        if web is not None:
            meant = web[2] if split_target(web[2])[1] else f"{web[2]}:{DEFAULT_PORT}"
            tls = f"; {TLS} for a worker with TLS" if web[1].lower() in ("https", "grpcs", "tls") else ""
            raise InvalidArgument.of(name, f'expected "host:port", such as "{meant}", got {entry!r}{tls}')
        _check_port(entry, name)
    return entries


def _check_port(entry: str, name: str) -> None:
    """Raises InvalidArgument if an address has no valid port; gRPC would take 443 if there is none."""
    is_name = _is_name(entry)
    if entry.startswith(_OTHERS) or (entry.startswith(_DNS) and not is_name):
        return
    scheme = next((scheme for scheme in (*_DNS, *_NUMERIC) if entry.startswith(scheme)), "")
    rest = entry.removeprefix(scheme)
    parsed = _HOST_PORT.fullmatch(rest)
    if parsed is None or not (is_name if parsed["port"] is None else 0 < int(parsed["port"]) < 1 << 16):
        begin = _HOST_PORT.match(rest)
        host = begin["host"] if begin and "/" not in rest else "localhost"
        host = "[::1]" if rest.count(":") > 1 and "/" not in rest else host
        text = f'expected "host:port", such as "{scheme}{host}:{DEFAULT_PORT}", got {entry!r}'
        raise InvalidArgument.of(name, text)


def _is_name(entry: str) -> bool:
    """Whether `entry` is a name that the system's DNS resolves, not another DNS server or a resolver of gRPC."""
    return entry.startswith(_DNS) and not (entry.startswith("dns://") and not entry.startswith("dns:///"))


def _looked_up(entry: str) -> tuple[Address, ...]:
    rest = entry.removeprefix("dns:///" if entry.startswith("dns:///") else "dns:")
    host, port = split_target(rest)
    found = resolve_name(host, port or DEFAULT_PORT)
    return tuple(Address(address, host) for address in found)
