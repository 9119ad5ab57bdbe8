"""Formats the output of commands: results as JSON, error messages and exit codes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, TextIO

from lumigrad.client.errors import (
    DeadlineExceeded,
    InvalidArgument,
    LumigradError,
    PrecisionWarning,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    shortened,
)
from lumigrad.client.transport.addresses import at_the_shell
from lumigrad.client.transport.channel import TOKEN_VARIABLE

DEBUG_VARIABLE = "LUMIGRAD_DEBUG"
# Arguments of the client whose options have different names.
_CALLED = {
    **{"tls": "tls_ca", "timeout_s": "timeout", "fov_degrees": "fov"},
    **{"cameras": "size", "width": "size", "height": "size", "mcmc": "cap", "adaptive": "cap"},
}
# Arguments that come from the environment. Tokens from files are checked where the file is read.
_VARIABLES = {"token": TOKEN_VARIABLE}
# Python's message if the system starts no thread, for lack of memory or because of a limit.
_NO_THREAD = "can't start new thread"
# The argument that messages do not name, because they name the file itself.
_FILE = "path"


def error_message(error: BaseException, options: Mapping[str, str]) -> str:
    """Returns the error message, on one line.

    Args:
        error: the error that ended the command.
        options: the command's options by argument name: {"sh_degree": "--sh-degree"}.
    """
    if isinstance(error, InvalidArgument) and error.violations:
        text = "; ".join(_named(each.field, options) + each.description for each in error.violations)
    elif isinstance(error, OSError) and not isinstance(error, LumigradError):
        text = _of_system(error)
    elif isinstance(error, LumigradError):
        text = str(error)
    elif isinstance(error, MemoryError):
        text = "not enough memory on this machine"
    elif isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        text = "the system refuses another thread: see its limits of processes and memory, or the container's"
    else:
        text = f"{type(error).__name__}: {error}; this is a fault of lumigrad: set {DEBUG_VARIABLE}=1 to see where"
    return shortened(" ".join(at_the_shell(text).split()))


def option_of(field: str, options: Mapping[str, str]) -> str | None:
    """Returns the option for an argument, e.g. --sh-degree for "sh_degree", or None if there is none.

    Errors of commands name positional arguments as their help does, e.g. OUTPUT.
    """
    name = field.rpartition(".")[2]
    if name.isupper():
        return name
    return _VARIABLES.get(name) or options.get(_CALLED.get(name, name))


def _named(field: str, options: Mapping[str, str]) -> str:
    return "" if field == _FILE else f"{option_of(field, options) or field}: "


def _of_system(error: OSError) -> str:
    reason = error.strerror or str(error)
    path = Path("" if error.filename is None else os.fsdecode(error.filename))
    if isinstance(error, FileNotFoundError) and not path.is_absolute() and _is_nowhere():
        return "the working directory was removed; change to one that exists"
    if error.filename is None:
        return reason
    if isinstance(error, FileNotFoundError):
        return f"no such file: {path}" if path.parent.is_dir() else f"no such directory: {path.parent}"
    return f"{path}: {reason[:1].lower()}{reason[1:]}"


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds the file's name to an OSError that has none, such as that of a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def told_warnings(options: Mapping[str, str]) -> Iterator[None]:
    """Shows the client's own warnings like messages of commands: one line on standard error, without a source line.

    Options are named as by `error_message`.
    """
    usual, own = warnings.showwarning, Path(__file__).parents[1]
    # Warnings that name the line which called Lumigrad have this file name.
    script = getattr(sys.modules["__main__"], "__file__", None)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        is_own = issubclass(category, UserWarning) and (filename == script or Path(filename).is_relative_to(own))
        if is_own or issubclass(category, PrecisionWarning):
            field, colon, text = str(message).partition(": ")
            text = f"{_named(field, options)}{text}" if colon and field.isidentifier() else str(message)
            say(" ".join(text.split()))
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM, which ends a command like Ctrl-C, so that no unfinished file is left behind."""


@contextmanager
def terminable() -> Iterator[None]:
    """Makes the first SIGTERM raise Terminated; a second one ends the process at once. In the main thread only."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        # Workers install their own handlers, which stay.
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Makes Ctrl-C and SIGTERM kill the process during imports, since packages may catch what handlers raise.

    In the main thread only; ignored signals stay ignored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """Tells the user something on standard error, beside the results on standard output."""
    print(f"lumigrad: {text}", file=sys.stderr, flush=True)


def json_text(value: Any) -> str:
    """Returns a result as JSON; NaN and infinity become null."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


OK = 0
FAILED = 1
USAGE = 2
NOT_SO = 3
UNREACHABLE = 4
REFUSED = 5
BUSY = 6
TIMED_OUT = 7
INTERRUPTED = 130
# The shell's codes for processes that these signals ended.
CLOSED_PIPE = 141
TERMINATED = 143

MEANINGS = {
    OK: "done",
    FAILED: "failed: a file, scene or package is invalid, or the worker failed",
    USAGE: "wrong usage: an option is wrong, or does not apply",
    NOT_SO: "done, and the answer is no: a collision (`query --check`), or not serving (`health`)",
    UNREACHABLE: "no worker answers, or its TLS settings and the caller's do not match",
    REFUSED: "the worker refused the caller: a token or a certificate",
    BUSY: "the worker is full, or short of memory (a call over one of its declared limits exits with 1)",
    TIMED_OUT: "no answer within the time-out",
    INTERRUPTED: "ended by Ctrl-C; `view`, and a `fit` that can write its scene, exit with 0 at the first one",
    CLOSED_PIPE: "the reader of the output has closed it",
    TERMINATED: "ended by SIGTERM; `view`, and a `fit` that can write its scene, exit with 0",
}

_BY_KIND: tuple[tuple[type[BaseException], int], ...] = (
    (Unavailable, UNREACHABLE),
    (Unauthenticated, REFUSED),
    (ResourceExhausted, BUSY),
    (DeadlineExceeded, TIMED_OUT),
    (Terminated, TERMINATED),
    (KeyboardInterrupt, INTERRUPTED),
    (BrokenPipeError, CLOSED_PIPE),
)


def exit_code(error: BaseException, options: Mapping[str, str] = MappingProxyType({})) -> int:
    """Returns the exit code for an error of a command; `options` as in `error_message`."""
    if isinstance(error, InvalidArgument) and any(option_of(each.field, options) for each in error.violations):
        return USAGE
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), FAILED)
