"""One version everywhere, and reproducible wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from lumigrad.client import Client
from support.deploy.chart import CHART
from support.deploy.history import client_wheel
from support.workers.worker import LUMIGRAD, worker

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
VERSION = re.search(r'^version = "(.*)"', PROJECT, re.MULTILINE)[1]
SOURCES = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "cmake", "protos", "client", "deploy/ray")


def test_the_command_the_worker_and_its_metrics_tell_the_same_version() -> None:
    said = subprocess.run([LUMIGRAD, "--version"], capture_output=True, text=True, timeout=250)
    assert said.stdout == f"lumigrad {VERSION}\n"
    with worker("--device", "cpu") as process, Client(process.target) as client:
        assert client.info().version == VERSION
        assert f'version="{VERSION}"' in process.metrics()


def test_the_changelog_and_the_chart_know_the_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    # A version's section is written before the version is released.
    assert VERSION in headings[:2]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == VERSION


def copy(source: Path, *more: str) -> Path:
    """A copy of the sources, without what a checkout has beside them."""
    for name in (*SOURCES, *more):
        ignored = shutil.ignore_patterns("__pycache__")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    return source


def build(folder: Path, when: int) -> Path:
    """The client's wheel, built from a copy of the sources whose files have the time `when`."""
    source = copy(folder / "source")
    for path in source.rglob("*"):
        os.utime(path, (when, when))
    return client_wheel(source, folder, SOURCE_DATE_EPOCH="1750000000")


@pytest.mark.slow
def test_two_builds_make_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir(), (tmp_path / "second").mkdir()
    first, second = build(tmp_path / "first", 1_700_000_000), build(tmp_path / "second", 1_760_000_000)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_the_sdist_holds_all_that_the_wheel_is_built_from(tmp_path: Path) -> None:
    source = copy(tmp_path / "source", "kernels", "server", ".gitignore")
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    sources = [path for name in (*SOURCES, "kernels", "server") for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    wanted = {str(path.relative_to(ROOT)) for path in sources if path.is_file() and "__pycache__" not in path.parts}
    assert len(wanted) > 300
    assert not wanted - packed
