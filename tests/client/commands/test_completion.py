"""Completions, as a real bash offers them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from lumigrad.client.shell.catalog import found_commands
from support.workers.forks import lumigrad

pytest.importorskip("shtab", reason="needs the extra completion")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "lumigrad.bash"
    path.write_text(lumigrad("completion", "bash").stdout)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name in ("scene.ply", "second.ply", "other.txt"):
        (folder / name).touch()
    (folder / "scenes").mkdir()
    return folder


def completed(script: Path, folder: Path, line: str) -> list[str]:
    """The words that bash offers for the last word of a line."""
    words = line.split(" ")
    quoted = " ".join(shlex.quote(word) for word in words)
    program = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        f"COMP_LINE={shlex.quote(line)}; "
        'COMP_POINT=${#COMP_LINE}; entry=$(complete -p lumigrad); name=${entry##*-F }; ${name%% *} lumigrad "" ""; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=250, cwd=folder)
    assert done.returncode == 0, done.stderr
    return sorted(set(filter(None, (word.strip() for word in done.stdout.split("\n")))))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lumigrad re", ["render"]),
        ("lumigrad render --si", ["--size"]),
        ("lumigrad render scene.ply --ta", ["--target"]),
        ("lumigrad render --as sp", ["spheres"]),
        ("lumigrad fit --strategy ", ["adaptive", "mcmc", "none"]),
        ("lumigrad serve --log-format j", ["json"]),
        ("lumigrad completion z", ["zsh"]),
    ],
)
def test_commands_options_and_choices(script: Path, folder: Path, line: str, expected: list[str]):
    assert completed(script, folder, line) == expected


def test_all_commands(script: Path, folder: Path):
    assert set(found_commands()) <= set(completed(script, folder, "lumigrad "))


@pytest.mark.parametrize("line", ["lumigrad render s", "lumigrad info --tls-ca s", "lumigrad render -o s"])
def test_files_are_completed_as_files(script: Path, folder: Path, line: str):
    found = completed(script, folder, line)
    assert {"scene.ply", "second.ply"} <= set(found) and "other.txt" not in found


def test_folders_are_completed_as_folders(script: Path, folder: Path):
    assert [word.rstrip("/") for word in completed(script, folder, "lumigrad serve --spool s")] == ["scenes"]


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_other_shells_get_a_script_of_all_commands(shell: str):
    done = lumigrad("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in found_commands())
