"""What is said of an error at the shell: one line, in the words of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lumigrad.client.channel import TOKEN_VARIABLE
from lumigrad.client.errors import InvalidArgument, LumigradError
from lumigrad.client.remedies import at_the_shell

DEBUG_VARIABLE = "LUMIGRAD_DEBUG"
# Arguments of the client that are called otherwise here.
_CALLED = {"tls": "tls_ca", "timeout_s": "timeout"}
# That in a file is looked at where it is read.
_VARIABLES = {"token": TOKEN_VARIABLE}
# Says only that it is a file, which the rest of the message names.
_FILE = "path"


def complaint(error: BaseException, options: Mapping[str, str]) -> str:
    """One line.

    Args:
        error: what ended the command.
        options: of the command, by the name of the argument: {"sh_degree": "--sh-degree"}.
    """
    if isinstance(error, InvalidArgument) and error.violations:
        text = "; ".join(_named(each.field, options) + each.description for each in error.violations)
    elif isinstance(error, OSError) and not isinstance(error, LumigradError):
        text = _of_system(error)
    elif isinstance(error, LumigradError):
        text = str(error)
    elif isinstance(error, MemoryError):
        text = "this machine has not enough memory for it"
    else:
        text = f"{type(error).__name__}: {error}; this should not happen: {DEBUG_VARIABLE}=1 shows where it did"
    return " ".join(at_the_shell(text).split())


def option_of(field: str, options: Mapping[str, str]) -> str | None:
    """The option that a path in a request is about: "spec.gaussians.sh_degree" is --sh-degree; None: there is none."""
    name = field.rpartition(".")[2]
    return _VARIABLES.get(name) or options.get(_CALLED.get(name, name))


def _named(field: str, options: Mapping[str, str]) -> str:
    return "" if field == _FILE else f"{option_of(field, options) or field.removeprefix('spec.')}: "


def _of_system(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        return reason
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, FileNotFoundError):
        return f"no such file: {path}" if path.parent.is_dir() else f"no such directory: {path.parent}"
    return f"{path}: {reason[:1].lower()}{reason[1:]}"
