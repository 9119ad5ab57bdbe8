"""The help of every command: examples, a width that terminals have, and options that mean the same everywhere."""

from __future__ import annotations

import argparse
import re

import pytest

from lumigrad.client.shell.catalog import all_parsers, found_commands
from support.workers.forks import lumigrad

COMMANDS = sorted(found_commands())
WITHOUT_WORKER = ("serve", "completion", "convert", "capture", "sample")
# An option takes the same kind of value in every command, except for these.
OWN = {"serve": {"--host", "--port", "--device"}, "view": {"--host", "--port"}, "fit": {"--view"}}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_examples_and_fits(command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = lumigrad(*command.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert "\nexamples:\n" in done.stdout
    assert not [line for line in done.stdout.splitlines() if len(line) > 100]
    assert "e+0" not in done.stdout
    before, _, after = done.stdout.partition("\nexamples:\n")
    examples, _, rest = after.partition("\n\n")
    for line in examples.splitlines():
        assert line.strip().startswith(("lumigrad", "source <(lumigrad", "until lumigrad")), line
    # Words with an underscore are choices, in braces, or in examples.
    assert not re.findall(r"\b[a-z]+_[a-z_]+", re.sub(r"\{[^}]*\}", "", before + rest))


def test_the_help_has_a_line_for_each_command():
    done = lumigrad("--help")
    shown = " ".join(done.stdout.split())
    for name, entry in found_commands().items():
        assert f" {name} {entry.load().help} " in shown


def test_an_option_is_the_same_everywhere():
    seen: dict[str, tuple[str, tuple[object, ...]]] = {}
    for command, parser in all_parsers()[1].items():
        for action in parser._actions:
            for flag in action.option_strings:
                if flag in OWN.get(command, ()) or action.help == argparse.SUPPRESS or not flag.startswith("--"):
                    continue
                metavar = action.metavar if isinstance(action.metavar, str) else None
                what = (
                    action.nargs,
                    metavar if flag in ("--target", "--timeout", "--camera", "--up", "--size") else None,
                )
                first, before = seen.setdefault(flag, (command, what))
                assert before == what, (flag, first, command)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_WORKER])
def test_all_commands_find_their_worker_alike(command: str):
    options = all_parsers()[1][command].options
    assert {"target", "timeout", "tls", "no_tls", "tls_ca", "certificate", "token_file"} <= options.keys()


def test_actions_have_helps_of_their_own():
    check, replay = (lumigrad("sensorsim", action, "--help").stdout for action in ("check", "replay"))
    assert "--target" in replay and "--pictures" in replay
    assert "--target" not in check and "--pictures" not in check and "DIR" in check
