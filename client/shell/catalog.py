"""Finds the subcommands of `lumigrad` as entry points, so that this layer need not import others."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec

from lumigrad.client.errors import LumigradError
from lumigrad.client.shell import exits
from lumigrad.client.shell.parser import Parser

GROUP = "lumigrad.commands"

_EPILOG = """\
examples:
  lumigrad serve                                        start a worker on localhost:50051
  lumigrad info                                         ask it for its device and load
  lumigrad render sample:vase -o vase.png               a picture of the sample
  lumigrad render scene.ply -o scene.png                a picture of Gaussians, or of a point cloud
  lumigrad render scene.ply --orbit 120 -o turn.mp4     a turn around them
  lumigrad capture photographs/ -o capture/             cameras of photographs
  lumigrad fit capture/ -o scene.ply                    Gaussians from photographs

exit status:
"""


@dataclass(frozen=True)
class Command:
    """A subcommand. Its entry point refers to an instance, or to any object with these attributes.

    Attributes:
        help: a one-line description.
        add_arguments: declares options on the subcommand's parser.
        run: runs the command; returns the exit status.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def found_commands() -> dict[str, EntryPoint]:
    """Returns all installed commands by name."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def loaded(entry: EntryPoint, *, required: bool) -> Command | None:
    """Loads a command; returns None if it needs a missing package and is not `required`."""
    try:
        command: Command = entry.load()
        return command
    except ImportError as error:
        if required:
            raise missing(entry, error) from error
        return None


def missing(entry: EntryPoint, error: ImportError) -> LumigradError:
    """Returns the error for a missing package of a command."""
    return LumigradError(f"`lumigrad {entry.name}` {_hint(entry)} ({error})")


def parsers_of(
    commands: Mapping[str, Command | None], found: Mapping[str, EntryPoint]
) -> tuple[Parser, dict[str, Parser]]:
    """Returns the parser of the command line, and the parsers of the loaded subcommands."""
    meanings = "".join(f"  {code:<5}{meaning}\n" for code, meaning in exits.MEANINGS.items())
    parser = Parser(
        prog="lumigrad",
        description="Differentiable rendering as a service: pictures and gradients from a worker.",
        epilog=_EPILOG + meanings,
    )
    parser.add_argument("--version", action="version", version=f"lumigrad {version('lumigrad')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    parsers = {}
    for name, command in commands.items():
        if command is None:
            subparsers.add_parser(name, help=_hint(found[name]))
            continue
        parsers[name] = subparsers.add_parser(name, help=command.help, description=command.help)
        command.add_arguments(parsers[name])
    return parser, parsers


def all_parsers() -> tuple[Parser, dict[str, Parser]]:
    """Returns the parser of the command line, and the parsers of all installed commands."""
    found = found_commands()
    return parsers_of({name: loaded(entry, required=False) for name, entry in found.items()}, found)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return True


def _hint(entry: EntryPoint) -> str:
    layer = entry.module.split(".")[1]
    if not _installed(f"lumigrad.{layer}"):
        return (
            "is not part of the client alone; install a wheel for this platform, or build without LUMIGRAD_CLIENT_ONLY"
        )
    return f'needs more packages; install them with: pip install "lumigrad[{layer}]"'
