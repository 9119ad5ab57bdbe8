"""Options that several subcommands share."""

from __future__ import annotations

import argparse

from lumigrad.client.channel import DEFAULT_TARGET, TARGET_VARIABLE
from lumigrad.client.client import Client

# At a prompt it is better to hear soon that there is no worker.
_RETRY_S = 1.0


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Declares --target and --timeout."""
    parser.add_argument(
        "--target", metavar="HOST:PORT", help=f"the worker (default: {TARGET_VARIABLE}, else {DEFAULT_TARGET})"
    )
    parser.add_argument(
        "--timeout", type=positive_number, default=60.0, metavar="SECONDS", help="time-out of a call (default: 60)"
    )


def connect(arguments: argparse.Namespace) -> Client:
    """The client that the options of `add_connection` describe."""
    return Client(arguments.target, timeout_s=arguments.timeout, retry_s=_RETRY_S)


def positive_number(text: str) -> float:
    """A number > 0."""
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text}")
    return value


def picture_size(text: str) -> tuple[int, int]:
    """Width and height from "640x480"."""
    width, separator, height = text.partition("x")
    if not (separator and width.isdigit() and height.isdigit() and int(width) > 0 and int(height) > 0):
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT such as 640x480, got {text}")
    return int(width), int(height)


def numbers(text: str) -> tuple[float, ...]:
    """Numbers from "0.1,0.2,0.3"."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None
