"""The command `lumigrad`. Its subcommands are entry points, so that those of other layers need no import from here."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from typing import Protocol

from lumigrad.client.errors import LumigradError
from lumigrad.client.shell import exits
from lumigrad.client.shell.complaint import DEBUG_VARIABLE, complaint
from lumigrad.client.shell.files import naming
from lumigrad.client.shell.guess import meant
from lumigrad.client.shell.parser import Parser
from lumigrad.client.shell.settings import Settings

GROUP = "lumigrad.commands"

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

exit status:
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
    options: Mapping[str, str] = {}
    try:
        found = {entry.name: entry for entry in entry_points(group=GROUP)}
        name = next((argument for argument in argv if not argument.startswith("-")), None)
        # Only what is needed is imported: a worker's packages take seconds.
        wanted = {name: found[name]} if name in found else found
        commands = {each: _load(entry, required=each == name) for each, entry in wanted.items()}
        parser, parsers = _parsers(commands, found)
        if name is not None and name not in found:
            parser.error(f"there is no command {name}{meant(name, found)}")
        if name in parsers and not {"-h", "--help"}.intersection(argv):
            Settings.read(found).apply(name, parsers[name])
        arguments, unknown = parser.parse_known_args(argv)
        chosen = parsers[arguments.command]
        if unknown:
            chosen.refuse_unknown(unknown)
        options = chosen.options
        command = commands[arguments.command]
        assert command is not None
        if found[arguments.command].module.startswith("lumigrad.client"):
            # What gRPC has to say to clients is in their errors.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            code = command.run(arguments)
        except ModuleNotFoundError as error:
            raise LumigradError(_missing(found[arguments.command], error)) from error
        # While an error can still be told.
        with naming("standard output"):
            sys.stdout.flush()
        return code
    except (Exception, KeyboardInterrupt) as error:
        return _failed(error, options)


def _failed(error: BaseException, options: Mapping[str, str]) -> int:
    """Says what was wrong; returns the exit status."""
    try:
        sys.stdout.flush()
    except OSError:
        # Python would complain of it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error)
    if not isinstance(error, KeyboardInterrupt | BrokenPipeError):
        print(f"lumigrad: error: {complaint(error, options)}", file=sys.stderr)
    return exits.exit_code(error, options)


def _parsers(
    commands: Mapping[str, Command | None], found: Mapping[str, EntryPoint]
) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the command line, and those of the subcommands."""
    meanings = "".join(f"  {code:<5}{meaning}\n" for code, meaning in exits.MEANINGS.items())
    parser = Parser(
        prog="lumigrad",
        description="Differentiable rendering as a service: pictures and gradients from a worker.",
        epilog=_EPILOG + meanings,
    )
    parser.add_argument("--version", action="version", version=f"lumigrad {version('lumigrad')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = {}
    for name in sorted(commands):
        command = commands[name]
        if command is None:
            subparsers.add_parser(name, help=_hint(found[name]))
            continue
        parsers[name] = subparsers.add_parser(name, help=command.help, description=command.help)
        command.add_arguments(parsers[name])
        parsers[name].add_opposites()
    return parser, parsers


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
