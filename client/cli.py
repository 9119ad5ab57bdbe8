"""The command `lumigrad`. Its subcommands are entry points, so that those of other layers need no import from here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from lumigrad.client.errors import LumigradError

GROUP = "lumigrad.commands"
OK, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130

_EPILOG = """\
examples:
  lumigrad serve                                        start a worker on localhost:50051
  lumigrad info                                         ask it for its device and load
  lumigrad top                                          watch it at work
  lumigrad render scene.ply -o scene.png                a picture of Gaussians, or of a point cloud
  lumigrad render scene.ply --orbit 120 -o turn.mp4     a turn around them
  lumigrad view scene.ply                               orbit them in the browser
  lumigrad fit capture/ -o scene.ply                    Gaussians from photographs
  lumigrad query part.stl --spheres points.npy          distances and collisions

exit status: 0 done, 1 failed, 2 wrong usage
"""


class Command(Protocol):
    """What an entry point of the group refers to."""

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares options on the subcommand's parser."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it; returns the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    chosen = next((argument for argument in argv if not argument.startswith("-")), None)
    try:
        # Only what is needed is imported: a worker's packages take seconds.
        wanted = {chosen: found[chosen]} if chosen in found else found
        commands = {name: _load(entry, required=name == chosen) for name, entry in wanted.items()}
        arguments = _parser(commands, found).parse_args(argv)
        command = commands[arguments.command]
        assert command is not None
        return command.run(arguments)
    except ModuleNotFoundError as error:
        print(f"lumigrad: error: {_missing(found[arguments.command], error)}", file=sys.stderr)
        return FAILURE
    except BrokenPipeError:
        # The reader of a pipe has seen enough; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except FileNotFoundError as error:
        print(f"lumigrad: error: {_absent(error)}", file=sys.stderr)
        return FAILURE
    except (LumigradError, OSError) as error:
        print(f"lumigrad: error: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser(commands: dict[str, Command | None], found: dict[str, EntryPoint]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lumigrad",
        description="Differentiable rendering as a service: pictures and gradients from a worker.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lumigrad {version('lumigrad')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in sorted(commands):
        command = commands[name]
        if command is None:
            subparsers.add_parser(name, help=_hint(found[name]))
            continue
        subparser = subparsers.add_parser(
            name, help=command.help, description=command.help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_arguments(subparser)
    return parser


def _load(entry: EntryPoint, *, required: bool) -> Command | None:
    """The command, or None if a package that it needs is missing and it is not the one asked for."""
    try:
        command: Command = entry.load()
        return command
    except ImportError as error:
        if required:
            raise LumigradError(_missing(entry, error)) from error
        return None


def _missing(entry: EntryPoint, error: ImportError) -> str:
    return f"`lumigrad {entry.name}` {_hint(entry)} ({error})"


def _absent(error: FileNotFoundError) -> str:
    if error.filename is None:
        return str(error)
    path = Path(os.fsdecode(error.filename))
    return f"no such file: {path}" if path.parent.is_dir() else f"no such directory: {path.parent}"


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return True


def _hint(entry: EntryPoint) -> str:
    layer = entry.module.split(".")[1]
    if not _installed(f"lumigrad.{layer}"):
        return "is not part of a client-only install; install lumigrad without LUMIGRAD_CLIENT_ONLY"
    return f'needs more packages; install them with: pip install "lumigrad[{layer}]"'
