"""The command `lumigrad`: finds the subcommand, runs it, and reports errors."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial

from lumigrad.client.shell import exits
from lumigrad.client.shell.catalog import found_commands, loaded, missing, parsers_of
from lumigrad.client.shell.exits import DEBUG_VARIABLE, ending_at_once, error_message, naming, terminable, told_warnings
from lumigrad.client.shell.parser import meant


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    options: dict[str, str] = {}
    _open_closed_streams()
    _prepare_output()
    try:
        return _run(argv, options)
    except (Exception, KeyboardInterrupt) as error:
        return _failed(error, options)


def _open_closed_streams() -> None:
    """Opens closed standard streams on the null device, before other files take their descriptors.

    Child processes inherit them, as they inherit other standard streams. Results cannot be written to a closed standard
    output: that is an error, as of other programs.
    """
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115


def _prepare_output() -> None:
    """Makes errors of standard output name it, and escapes what its encoding lacks, as standard error does.

    Names of files may have bytes that are no text. Messages that cannot be written to standard error end no work.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    for stream, write in ((sys.stdout, naming("standard output")(io.FileIO.write)), (sys.stderr, _write_if_possible)):
        binary = getattr(stream, "buffer", None)
        raw = getattr(binary, "raw", binary)
        if isinstance(raw, io.FileIO):
            raw.write = partial(write, raw)  # type: ignore[method-assign]


def _write_if_possible(raw: io.FileIO, data: memoryview) -> int | None:
    try:
        return io.FileIO.write(raw, data)
    except BrokenPipeError:
        raise
    except OSError:
        return len(data)


def _run(argv: Sequence[str], options: dict[str, str]) -> int:
    """Runs the command line, raising its errors; adds the command's options to `options`."""
    found = found_commands()
    name = next((argument for argument in argv if not argument.startswith("-")), None)
    # Importing all commands would be slow: a worker's packages take seconds.
    wanted = {name: found[name]} if name in found else found
    with ending_at_once():
        commands = {each: loaded(entry, required=each == name) for each, entry in wanted.items()}
    parser, parsers = parsers_of(commands, found)
    if name is not None and name not in found:
        parser.error(f"unknown command: {name}{meant(name, found)}")
    arguments, unknown = parser.parse_known_args(argv)
    chosen, entry = parsers[arguments.command], found[arguments.command]
    if unknown:
        chosen.refuse_unknown(unknown, argv)
    options |= chosen.options
    command = commands[arguments.command]
    assert command is not None
    try:
        with told_warnings(options), terminable():
            code = command.run(arguments)
    except ModuleNotFoundError as error:
        raise missing(entry, error) from error
    # Flushed here, where an error can still be reported.
    sys.stdout.flush()
    return code


def _failed(error: BaseException, options: Mapping[str, str]) -> int:
    """Prints the error; returns the exit status."""
    try:
        sys.stdout.flush()
    except OSError:
        # Otherwise Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error)
    if not isinstance(error, KeyboardInterrupt | BrokenPipeError):
        exits.say(f"error: {error_message(error, options)}")
    return exits.exit_code(error, options)
