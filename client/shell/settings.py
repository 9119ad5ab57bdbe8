"""The configuration file: defaults of options, for the worker and for each command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lumigrad.client.channel import TLS_VARIABLE, TOKEN_VARIABLE
from lumigrad.client.errors import LumigradError
from lumigrad.client.shell.guess import meant
from lumigrad.client.shell.option_value import option_value
from lumigrad.client.targets import TARGET_VARIABLE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_VARIABLE = "LUMIGRAD_CONFIG"
WORKER = "worker"
# Options of every command that talks to a worker, and the variables that come before the file.
WORKER_OPTIONS = {
    "target": TARGET_VARIABLE,
    "timeout": None,
    "tls": TLS_VARIABLE,
    "tls-ca": TLS_VARIABLE,
    "certificate": None,
    "token-file": TOKEN_VARIABLE,
}

_NOT_KEPT = ("help", "version")


class SettingsError(LumigradError):
    """The configuration file is wrong."""


@dataclass(frozen=True)
class Settings:
    """What a configuration file says.

    Attributes:
        path: the file; None: there is none.
        tables: its tables by name, as they were read.
    """

    path: Path | None
    tables: Mapping[str, Mapping[str, Any]]

    @staticmethod
    def read(commands: Collection[str]) -> Settings:
        """Reads the file that LUMIGRAD_CONFIG names, or ~/.config/lumigrad/config.toml if it is there.

        Raises:
            SettingsError: it is not TOML, or has other tables than one for the worker and one for each command.
        """
        path = _path()
        if path is None:
            return Settings(None, {})
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: expected TOML: {error}") from error
        except OSError as error:
            text = f"expected a file of settings, got {path}: {error.strerror}"
            raise SettingsError(f"{FILE_VARIABLE}: {text}; set it to nothing to do without") from error
        known = (WORKER, *commands)
        for name, table in tables.items():
            if name not in known:
                guess = meant(name, known) or f"; there may be [{WORKER}], and one for each command"
                raise SettingsError(f"{path}: [{name}]: there is no such table{guess}")
            if not isinstance(table, dict):
                raise SettingsError(f"{path}: {name}: expected a table [{name}], got {table!r}")
        return Settings(path, tables)

    def apply(self, command: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
        """Makes what the file says the defaults of a command's options.

        Returns:
            The values by the names of their arguments; without those that a variable of the environment overrules.

        Raises:
            SettingsError: there is no such option, or it cannot have this value.
        """
        options = _options(parser)
        # [worker] is for options of these names only where they mean the worker that is called.
        of_worker = {name: options[name] for name in WORKER_OPTIONS} if WORKER_OPTIONS.keys() <= options.keys() else {}
        defaults = self._values(WORKER, of_worker, WORKER_OPTIONS) | self._values(command, options, options)
        for name, variable in WORKER_OPTIONS.items():
            if of_worker and variable is not None and os.environ.get(variable):
                defaults.pop(of_worker[name].dest, None)
        parser.set_defaults(**defaults)
        return defaults

    def _values(self, table: str, options: Mapping[str, argparse.Action], known: Collection[str]) -> dict[str, Any]:
        values = {}
        for key, value in self.tables.get(table, {}).items():
            where = f"{self.path}: [{table}] {key}"
            if key not in known:
                guess = meant(key, known) or f"; it has {', '.join(known)}"
                raise SettingsError(f"{where}: there is no such option{guess}")
            if key in options:
                assert self.path is not None
                try:
                    values[options[key].dest] = option_value(options[key], value, self.path.parent)
                except ValueError as error:
                    raise SettingsError(f"{where}: {error}") from error
        return values


def _path() -> Path | None:
    named = os.environ.get(FILE_VARIABLE)
    if named is not None:
        # Empty: none.
        return Path(named) if named else None
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    # Path's own method raises where a user has no home; there is no file then.
    path = Path(os.path.expanduser(base)) / "lumigrad" / "config.toml"
    return path if path.is_file() else None


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """What may stand in the file: options that can be left out, by their names without dashes."""
    found = {}
    for action in parser._actions:
        names = [flag[2:] for flag in action.option_strings if flag.startswith("--")]
        if names and not action.required and action.help != argparse.SUPPRESS and action.dest not in _NOT_KEPT:
            found[names[0]] = action
    return found
