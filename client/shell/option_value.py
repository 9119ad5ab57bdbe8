"""Values that a configuration file has for options of the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

# What the values of options that name files and folders are called in the help.
PATHS = frozenset({"FILE", "KEY", "DIR"})
_FLAGS = (argparse._StoreTrueAction, argparse._StoreFalseAction, argparse.BooleanOptionalAction)


def option_value(action: argparse.Action, value: Any, folder: Path) -> Any:
    """The value as the option has it.

    Args:
        action: the option.
        value: as the file has it.
        folder: of the file, which relative paths in it start from.

    Raises:
        ValueError: another type or value was expected; says which.
    """
    if isinstance(action, _FLAGS):
        return _of_type(value, bool, "true or false")
    if isinstance(action.nargs, int):
        texts = _of_type(value, list, f"a list of {action.nargs} texts")
        if len(texts) != action.nargs:
            raise ValueError(f"expected a list of {action.nargs} texts, got {len(texts)}")
        return [_one(action, text, folder) for text in texts]
    return _one(action, value, folder)


def _one(action: argparse.Action, value: Any, folder: Path) -> Any:
    read = action.type or str
    if read is int:
        found: Any = _of_type(value, int, "a whole number")
    elif read is float:
        found = float(_of_type(value, (int, float), "a number"))
    elif read is str:
        found = _path(action, _of_type(value, str, "a text"), folder)
    else:
        text = _path(action, str(_of_type(value, (str, int, float), "a text or a number")), folder)
        assert callable(read)
        try:
            found = read(text)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise ValueError(str(error)) from error
    if action.choices is not None and found not in action.choices:
        raise ValueError(f"expected one of {', '.join(map(str, action.choices))}, got {found}")
    return found


def _of_type(value: Any, kind: type | tuple[type, ...], name: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected {name}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _path(action: argparse.Action, text: str, folder: Path) -> str:
    names = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
    return str(folder / os.path.expanduser(text)) if text and PATHS.issuperset(names) else text
