"""`lumigrad completion`: prints a completion script for a shell."""

from __future__ import annotations

import argparse
import re

from lumigrad.client.base.extras import require
from lumigrad.client.shell.catalog import Command, all_parsers
from lumigrad.client.shell.parser import Parser

_SHELLS = ("bash", "zsh", "fish", "tcsh")
# The metavars of options and arguments that name files and folders.
_FILES = re.compile(r"\b(FILE|KEY|SCENE|DATASET|MESH|AIM)\b")
_FOLDERS = re.compile(r"\bDIR\b")
_EXAMPLES = """\
examples:
  source <(lumigrad completion bash)                                               in this shell
  lumigrad completion bash > ~/.local/share/bash-completion/completions/lumigrad   in all later ones
  lumigrad completion zsh > ~/.zfunc/_lumigrad                                     a folder of fpath
  lumigrad completion fish > ~/.config/fish/completions/lumigrad.fish
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help="bash, zsh, fish or tcsh")


def _run(arguments: argparse.Namespace) -> int:
    shtab = require("shtab", "completion", "lumigrad completion")
    parser, parsers = all_parsers()
    for each in parsers.values():
        _mark_files(each, shtab.FILE, shtab.DIRECTORY)
    print(shtab.complete(parser, arguments.shell))
    return 0


def _mark_files(parser: Parser, file: object, folder: object) -> None:
    for each in parser.nested:
        _mark_files(each, file, folder)
    for action in parser._actions:
        names = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar or ""
        if _FILES.search(names):
            action.complete = file  # type: ignore[attr-defined]
        elif _FOLDERS.search(names):
            action.complete = folder  # type: ignore[attr-defined]


command = Command("print a completion script for a shell", _add_arguments, _run)
