"""The configuration file of the command line: what it may say, and what comes before it."""

from __future__ import annotations

import argparse
import json
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from lumigrad.client.commands.options import connect, tls_of, token_of
from lumigrad.client.shell.catalog import GROUP
from lumigrad.client.shell.parser import Parser
from lumigrad.client.shell.settings import Settings, SettingsError
from support.worker import LUMIGRAD, WorkerProcess

COMMANDS = sorted(entry.name for entry in entry_points(group=GROUP))


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LUMIGRAD_TARGET", "LUMIGRAD_TOKEN", "LUMIGRAD_TLS", "LUMIGRAD_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def settings(text: str, path: Path) -> Settings:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Settings.read(COMMANDS)


def parsed(command: str, *words: str) -> argparse.Namespace:
    """What a command makes of its options, with the file."""
    (entry,) = (entry for entry in entry_points(group=GROUP) if entry.name == command)
    parser = Parser(prog=command)
    entry.load().add_arguments(parser)
    parser.add_opposites()
    Settings.read(COMMANDS).apply(command, parser)
    return parser.parse_args(words)


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / ".config" / "lumigrad").mkdir(parents=True)
    (tmp_path / ".config" / "lumigrad" / "config.toml").write_text(text)


def test_without_a_file_nothing_is_set():
    assert Settings.read(COMMANDS) == Settings(None, {})
    assert parsed("info").target is None and parsed("info").timeout == 60.0


def test_a_command_comes_before_the_worker_and_the_command_line_before_both(tmp_path: Path):
    write(tmp_path, '[worker]\ntarget = "a:1"\ntimeout = 5\n[render]\ntimeout = 7\nsize = "64x48"\nfov = 30\n')
    assert (parsed("info").target, parsed("info").timeout) == ("a:1", 5.0)
    found = parsed("render", "scene.ply", "-o", "out.png", "--fov", "50")
    assert (found.target, found.timeout, found.size, found.fov) == ("a:1", 7.0, (64, 48), 50.0)
    assert parsed("info", "--target", "b:2", "--timeout", "9").target == "b:2"


def test_the_environment_comes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, '[worker]\ntarget = "a:1"\ntls-ca = "ca.pem"\ntoken-file = "token"\n[render]\ntarget = "c:3"\n')
    (tmp_path / ".config" / "lumigrad" / "token").write_text("secret\n")
    assert token_of(parsed("info")) == "secret"
    monkeypatch.setenv("LUMIGRAD_TARGET", "b:2")
    monkeypatch.setenv("LUMIGRAD_TLS", "0")
    monkeypatch.setenv("LUMIGRAD_TOKEN", "other")
    for found in (parsed("info"), parsed("render", "scene.ply", "-o", "out.png")):
        assert (found.target, tls_of(found), token_of(found)) == (None, None, None)
    with connect(parsed("info", "--target", "d:4")) as client:
        assert client.target == "d:4"


def test_flags_can_be_unset(tmp_path: Path):
    write(tmp_path, "[worker]\ntls = true\n[top]\njson = true\n[serve]\ninsecure = true\nno-spare = true\n")
    assert tls_of(parsed("info")) is True and tls_of(parsed("info", "--no-tls")) is False
    assert parsed("top").json is True and parsed("top", "--no-json").json is False
    assert parsed("serve").insecure is True and parsed("serve", "--no-insecure").insecure is False
    assert parsed("serve").no_spare is True and parsed("serve", "--spare").no_spare is False


def test_files_are_found_from_where_the_file_is(tmp_path: Path):
    write(tmp_path, '[worker]\ntls-ca = "ca.pem"\ncertificate = ["~/own.pem", "/keys/own.key"]\n')
    found = parsed("info")
    assert found.tls_ca == str(tmp_path / ".config" / "lumigrad" / "ca.pem")
    assert found.certificate == [str(tmp_path / "own.pem"), "/keys/own.key"]


def test_the_worker_is_not_that_which_is_served(tmp_path: Path):
    write(tmp_path, '[worker]\ntarget = "a:1"\ntls = true\n[serve]\nport = 50061\nlog-format = "json"\n')
    found = parsed("serve")
    assert (found.port, found.log_format) == (50061, "json")
    assert not hasattr(found, "target")


def test_other_places_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, "[info]\ntimeout = 1\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert Settings.read(COMMANDS).path is None
    assert settings("[info]\ntimeout = 2\n", tmp_path / "xdg" / "lumigrad" / "config.toml").tables["info"] == {
        "timeout": 2
    }
    monkeypatch.setenv("LUMIGRAD_CONFIG", str(tmp_path / "own.toml"))
    with pytest.raises(SettingsError, match=r"^LUMIGRAD_CONFIG: expected a file of settings, got .*own\.toml: No such"):
        Settings.read(COMMANDS)
    monkeypatch.setenv("LUMIGRAD_CONFIG", "")
    assert Settings.read(COMMANDS).path is None


def test_users_without_a_home_have_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # As for a number that no user has, in an environment that says nothing.
    monkeypatch.setenv("HOME", "~nobody-of-this-name")
    assert Settings.read(COMMANDS).path is None
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_to = tmp_path / "lumigrad" / "config.toml"
    assert settings('[worker]\ntls-ca = "~/ca.pem"\n', write_to).path == write_to
    assert parsed("info").tls_ca == str(write_to.parent / "~nobody-of-this-name" / "ca.pem")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_may_stand_in_the_file_is_what_it_is_by_default(command: str, tmp_path: Path):
    """What a user copies from the help has the type that the option has."""
    (entry,) = (entry for entry in entry_points(group=GROUP) if entry.name == command)
    parser = Parser(prog=command)
    entry.load().add_arguments(parser)
    plain = {
        action.option_strings[-1][2:]: action.default
        for action in parser._actions
        if isinstance(action.default, int | float | str) and action.option_strings and not action.required
        and action.dest not in ("help",) and not isinstance(action, argparse.BooleanOptionalAction)
    }  # fmt: skip
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in plain.items() if value != "==SUPPRESS==")
    write(tmp_path, f"[{command}]\n{lines}")
    Settings.read(COMMANDS).apply(command, parser)


def test_a_worker_is_found_through_the_file(worker_process: WorkerProcess, tmp_path: Path):
    file = tmp_path / "own.toml"
    file.write_text(f'[worker]\ntarget = "{worker_process.target}"\n[info]\njson = true\n')
    done = subprocess.run(
        [LUMIGRAD, "info"], capture_output=True, text=True, timeout=60, env={"LUMIGRAD_CONFIG": str(file)}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"] == worker_process.target


def test_help_is_shown_in_spite_of_a_broken_file(tmp_path: Path):
    write(tmp_path, "[worker")
    assert subprocess.run([LUMIGRAD, "info", "--help"], capture_output=True, timeout=60).returncode == 0
