"""Earlier versions of the client and of the protocol, from the history of this repository."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def git(*arguments: str) -> bytes:
    """The output of git; skips the test where the history is missing."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs git")
    if done.returncode != 0:
        pytest.skip(f"needs the history of the repository: {done.stderr.decode().strip()}")
    return done.stdout


def that_added(path: str) -> str:
    found = git("log", "--diff-filter=A", "--format=%H", "--", path).split()
    if not found:
        pytest.skip(f"needs a history that goes back to the commit that added {path}")
    return found[-1].decode()


def tree(commit: str, folder: Path, *paths: str) -> Path:
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *paths))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def client_wheel(source: Path, folder: Path, **variables: str) -> Path:
    """The client's wheel, built into a folder, with the environment's variables and these."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "LUMIGRAD_CLIENT_ONLY": "1", "PATH": path, **variables}
    # The backend that the project names, which pip would also call.
    build = "import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, folder]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def client_of(commit: str, folder: Path) -> Path:
    """The client of a commit, built as a wheel and unpacked; returns the folder for PYTHONPATH."""
    with zipfile.ZipFile(client_wheel(tree(commit, folder / "source"), folder)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run_with(site: Path, script: str, *arguments: str) -> str:
    """Run a program with an old client and the installed versions of its dependencies; returns its output."""
    # -S, because the module site would put the current client first.
    path = os.pathsep.join((str(site), sysconfig.get_path("purelib")))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-S", "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout
