"""`lumigrad config`: what is in effect without options, and where that comes from."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

from lumigrad.client.channel import TLS_VARIABLE, TOKEN_VARIABLE
from lumigrad.client.shell.catalog import all_parsers, found_commands
from lumigrad.client.shell.json_text import json_text
from lumigrad.client.shell.settings import WORKER, WORKER_OPTIONS, Settings
from lumigrad.client.targets import DEFAULT_TARGET, TARGET_VARIABLE

_EXAMPLES = """\
examples:
  lumigrad config                               the file, and every value in it; checks them all
  lumigrad config | grep target                 where a value comes from
  lumigrad config --json | jq .file             for scripts
"""
_VARIABLES = {"target": TARGET_VARIABLE, "tls": TLS_VARIABLE, "token": TOKEN_VARIABLE}
_SECRET = "(not shown)"


@dataclass(frozen=True)
class Entry:
    """One value in effect.

    Attributes:
        table: "worker", or a command.
        option: without dashes.
        value: as it was written, but for secrets.
        source: "file", "default", or the variable of the environment that comes before the file.
    """

    table: str
    option: str
    value: Any
    source: str


class ConfigCommand:
    """Reads the configuration file as every command would."""

    help = "check the configuration file, and show what is in effect"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the option."""
        parser.epilog = _EXAMPLES
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")

    def run(self, arguments: argparse.Namespace) -> int:
        """Checks all tables, and prints them."""
        settings = Settings.read(found_commands())
        for name, parser in all_parsers()[1].items():
            settings.apply(name, parser)
        entries = _entries(settings)
        if arguments.json:
            print(json_text({"file": settings.path and str(settings.path), "values": entries}))
            return 0
        print(f"file  {settings.path or 'none'}")
        for entry in entries:
            print(f"[{entry.table}] {entry.option} = {entry.value}  ({entry.source})")
        return 0


def _entries(settings: Settings) -> list[Entry]:
    overruled = {option for option, variable in WORKER_OPTIONS.items() if variable and os.environ.get(variable)}
    entries = [
        Entry(WORKER, option, _SECRET if variable == TOKEN_VARIABLE else os.environ[variable], variable)
        for option, variable in _VARIABLES.items()
        if os.environ.get(variable)
    ]
    entries += [
        Entry(table, option, value, "file")
        for table, values in settings.tables.items()
        for option, value in values.items()
        if option not in overruled
    ]
    if not any((entry.table, entry.option) == (WORKER, "target") for entry in entries):
        entries.insert(0, Entry(WORKER, "target", DEFAULT_TARGET, "default"))
    return entries


command = ConfigCommand()
