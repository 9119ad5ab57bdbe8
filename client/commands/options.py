"""Options that several subcommands share, and parsers of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.shell.parser import number, path_of
from lumigrad.client.transport.addresses import DEFAULT_TARGET, TARGET_VARIABLE
from lumigrad.client.transport.channel import TOKEN_VARIABLE, Tls
from lumigrad.client.transport.lanes import LaneMode

# Short, because at a prompt a missing worker should be reported soon.
_RETRY_S = 1.0
AXES = {
    "x": (1.0, 0.0, 0.0),
    "y": (0.0, 1.0, 0.0),
    "z": (0.0, 0.0, 1.0),
    "-x": (-1.0, 0.0, 0.0),
    "-y": (0.0, -1.0, 0.0),
    "-z": (0.0, 0.0, -1.0),
}


def option(group: argparse._ActionsContainer, flag: str, help_text: str, default: Any = None, **settings: Any) -> None:
    """Declares an option. Its help ends with its default, if it has one."""
    if default is not None:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        help_text = f"{help_text} (default: {shown})".lstrip()
    group.add_argument(flag, help=help_text, default=default, **settings)


def add_connection(parser: argparse.ArgumentParser, timeout_s: float = 60.0) -> None:
    """Declares --target, --timeout and the options for secured workers.

    The token itself is not an option, because other users of the machine can read command lines.
    """
    group = parser.add_argument_group("worker")
    help_text = "the worker, or several, separated by commas; dns:///NAME:PORT for all addresses of a name "
    option(group, "--target", f"{help_text}(default: {TARGET_VARIABLE}, else {DEFAULT_TARGET})", metavar="HOST:PORT")
    option(group, "--timeout", "time-out of a call", timeout_s, **SECONDS)
    help_text = "encrypt calls, and trust the system's authorities (default: LUMIGRAD_TLS, else off)"
    option(group, "--tls", help_text, action=argparse.BooleanOptionalAction)
    option(group, "--tls-ca", "encrypt calls, and trust the authorities in this PEM file", metavar="FILE")
    help_text = "this client's certificate and its key, PEM files"
    option(group, "--certificate", help_text, nargs=2, metavar=("FILE", "KEY"))
    option(group, "--token-file", f"file of the token to send (default: {TOKEN_VARIABLE}, else none)", **FILE)


def connect(arguments: argparse.Namespace, lane: LaneMode = "auto", *, retry_s: float = _RETRY_S) -> Client:
    """Returns the client that the options of `add_connection` describe."""
    return Client(
        arguments.target,
        timeout_s=arguments.timeout,
        retry_s=retry_s,
        token=token_of(arguments),
        lane=lane,
        tls=tls_of(arguments),
        certificate=tuple(arguments.certificate) if arguments.certificate else None,
    )


def tls_of(arguments: argparse.Namespace) -> Tls | None:
    """Returns the TLS settings; None means those of the environment."""
    tls: Tls | None = arguments.tls_ca or arguments.tls
    return tls


def token_of(arguments: argparse.Namespace) -> str | None:
    """Returns the token in the file; None means that of the environment."""
    if arguments.token_file is None:
        return None
    token: str = arguments.token_file.read_text(encoding="utf-8-sig").strip()
    if not token or len(token.split()) > 1:
        raise InvalidArgument.of("token_file", f"expected one token and nothing else in {arguments.token_file}")
    return token


def positive_number(text: str) -> float:
    """Parses a number > 0."""
    value = number(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text}")
    return value


def whole(expected: str, least: int, largest: float = float("inf")) -> Callable[[str], int]:
    """Returns a parser of whole numbers within inclusive bounds."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= largest:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
        return int(text)

    return parse


def ending(suffixes: str) -> Callable[[str], Path]:
    """Returns a parser of paths that end in one of the suffixes in a text, like ".png or .npy"."""

    def parse(text: str) -> Path:
        if not Path(text).suffix or Path(text).suffix not in re.findall(r"\.\w+", suffixes):
            raise argparse.ArgumentTypeError(f"expected a file that ends in {suffixes}, got {text}")
        return Path(text)

    return parse


def picture_size(text: str) -> tuple[int, int]:
    """Parses width and height, like "640x480"."""
    width, separator, height = text.partition("x")
    if not (separator and width.isdigit() and height.isdigit() and int(width) > 0 and int(height) > 0):
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT such as 640x480, got {text}")
    return int(width), int(height)


def numbers(text: str) -> tuple[float, ...]:
    """Parses numbers, like "0.1,0.2,0.3"."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None


def direction(text: str) -> tuple[float, float, float]:
    """Parses a direction, like "-y" or "0,-0.9,-0.4"."""
    if text in AXES:
        return AXES[text]
    values = numbers(text) if "," in text else ()
    if len(values) != 3 or not any(values):
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(AXES)}, or X,Y,Z such as 0,-0.9,-0.4, got {text}")
    return values[0], values[1], values[2]


# Settings that options of one kind share.
count = whole("a whole number >= 1", 1)
COUNT: dict[str, Any] = {"type": count, "metavar": "N"}
FILE: dict[str, Any] = {"type": path_of, "metavar": "FILE"}
FOLDER: dict[str, Any] = {"type": path_of, "metavar": "DIR"}
SECONDS: dict[str, Any] = {"type": positive_number, "metavar": "SECONDS"}
SIZE: dict[str, Any] = {"type": picture_size, "metavar": "WxH"}
