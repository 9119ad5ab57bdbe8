"""Parses the command line: help texts, errors, suggestions for misspelt words."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from lumigrad.client.errors import shortened
from lumigrad.client.shell.exits import USAGE

_COLUMNS = 100
# The column of option texts.
_INDENT = 30
# The beginning of argparse's error for missing arguments.
_MISSING = "the following arguments are required"
# The options that have other names in other programs; the first that a command has is meant.
_ELSEWHERE = {
    **dict.fromkeys(("width", "height", "resolution"), ("size", "max_size")),
    **{"iterations": ("steps",), "downscale_factor": ("max_size",), "data_factor": ("max_size",)},
}


class Help(argparse.RawDescriptionHelpFormatter):
    """Formats help; wraps texts but not examples."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _COLUMNS)
        super().__init__(prog, max_help_position=_INDENT, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wraps paragraphs and leaves examples unchanged."""
        paragraphs = text.strip().split("\n\n")
        wrapped = [each if "\n  " in each else fill(" ".join(each.split()), width) for each in paragraphs]
        return "\n\n".join(wrapped) + "\n"

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Shows only required arguments, because the options are listed below."""
        if usage is None and prefix is None:
            actions = [action for action in actions if action.required or not action.option_strings]
            self._prog = f"{self._prog} [options]"
        super().add_usage(usage, actions, groups, prefix)


class Parser(argparse.ArgumentParser):
    """The parser of `lumigrad` and of each subcommand."""

    def __init__(self, **settings: Any) -> None:
        # A misspelt option is never taken for one that begins like it.
        super().__init__(**{"formatter_class": Help, "allow_abbrev": False, **settings})
        # The errors of `int` and `float` name Python types.
        self.register("type", int, whole_number)
        self.register("type", float, number)
        # Values such as -z or -0.3,0,1 count as numbers too, since they would otherwise be parsed as options.
        self._negative_number_matcher = re.compile(r"-([xyz]|\.?\d.*)$")
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses arguments; returns those that are unknown, too."""
        self._given = args or ()
        return super().parse_known_args(args, namespace)

    @property
    def options(self) -> dict[str, str]:
        """The long options by argument name, including those of subcommands: {"sh_degree": "--sh-degree"}."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        inner = {name: flag for parser in self.nested for name, flag in parser.options.items()}
        return inner | {flag[2:].replace("-", "_"): flag for flag in flags}

    @property
    def nested(self) -> list[Parser]:
        """The parsers of subcommands."""
        groups = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return [parser for group in groups for parser in group.choices.values()]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            text = f"expected one of {', '.join(known)}, got {value}{meant(str(value), known)}"
            raise argparse.ArgumentError(action, text)

    def error(self, message: str) -> NoReturn:
        """Prints two lines on standard error and exits with the code for wrong usage."""
        flags = [argument.partition("=")[0] for argument in self._given if argument.startswith("--")]
        unknown = next((flag for flag in flags if flag not in self._option_string_actions), "")
        # A required option may be missing because it is misspelt.
        if message.startswith(_MISSING) and (suggestion := self._meant(unknown)):
            message = f"unknown option: {unknown}{suggestion}"
        self.exit(USAGE, f"lumigrad: error: {_plain(message)}\nsee `{self.prog} --help`\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints help and versions such that an error of standard output can be reported; argparse would ignore it."""
        if file is sys.stdout:
            print(message, end="", flush=True)
        else:
            super()._print_message(message, file)

    def refuse_unknown(self, unknown: Sequence[str], arguments: Sequence[str]) -> NoReturn:
        """Exits with an error for the unknown ones among the arguments."""
        first = unknown[0]
        if first.startswith("-"):
            self.error(f"unknown option: {first}{self._meant(first.partition('=')[0])}")
        before = next((one for one, after in pairwise(arguments) if after == first and one.startswith("--")), None)
        self.error(f"unexpected argument: {first}" + (f"; {before} takes no value" if before in self._flags else ""))

    def _meant(self, flag: str) -> str:
        """Returns the suggestion for an unknown option: what it is called here, or one that is spelt alike."""
        called, elsewhere = self.options, {}
        for name, options in _ELSEWHERE.items():
            here = next((called[each] for each in options if each in called), None)
            if here is not None and name not in called:
                elsewhere[name] = here
        name = flag.lstrip("-").replace("-", "_")
        close = _closest(name, [*called, *elsewhere])
        if close in elsewhere:
            return f"; {'it' if close == name else '--' + close.replace('_', '-')} is {elsewhere[close]} here"
        return f"; did you mean {called[close]}?" if close else ""

    @property
    def _flags(self) -> set[str]:
        """The options without a value."""
        return {flag for action in self._actions if action.nargs == 0 for flag in action.option_strings}


def whole_number(text: str) -> int:
    """Parses an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text}") from None


def number(text: str) -> float:
    """Parses a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text}") from None


def path_of(text: str) -> Path:
    """Parses a path, which must not be empty: pathlib reads that as the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return Path(text)


def written_path(text: str) -> Path:
    """Parses the path of a file or folder to write, which is never standard output, as - would be elsewhere."""
    if text == "-":
        said = "expected a path, got -: files are not written to standard output; name a file or folder"
        raise argparse.ArgumentTypeError(f"{said} (./- if that is its name)")
    return path_of(text)


def written_folder(text: str) -> Path:
    """Parses the path of a folder to write, which need not exist."""
    path = written_path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder, got the file {path}")
    return path


def _plain(message: str) -> str:
    """Removes argparse's "argument " before the name of an option."""
    return shortened(" ".join(message.removeprefix("argument ").split()))


def meant(text: str, known: Iterable[str]) -> str:
    """Returns e.g. "; did you mean --target?", or nothing if no known word is close."""
    # The dashes that all options share do not make them alike.
    return suggested(text.lstrip("-"), {each.lstrip("-"): each for each in known})


def suggested(text: str, called: Mapping[str, str]) -> str:
    """Returns the suggestion for a misspelt word; `called` are the known words with what they are called here."""
    close = _closest(text, called)
    return f"; did you mean {called[close]}?" if close else ""


def _closest(text: str, words: Iterable[str]) -> str:
    """Returns the word that is spelt most alike; empty if none is close. Numbers are not alike."""
    close = get_close_matches(text, [word for word in words if not word.isdecimal()], 1)
    return close[0] if close else ""
