"""Tests hold whatever a machine says of language, time, fonts, files and proxies: some that might notice, run there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SAMPLE = (
    "client/commands/test_cli_help.py::test_help_has_examples_and_fits[render]",
    "client/commands/test_cli_json.py::test_info",
    "client/commands/test_cli_json.py::test_render",
    "client/commands/test_cli.py::test_options_come_before_the_environment",
    "end_to_end/test_viewer_robot.py::test_sliders_move_the_robot_into_the_wall",
    "faults/stored/test_spool.py::test_worlds_find_their_meshes_unless_those_were_deleted",
    "server/process/test_logs.py::test_every_line_is_json_whoever_wrote_it",
    "server/process/test_process.py::test_a_call_is_one_plain_line",
    "server/storage/test_spool.py::test_nobody_else_on_the_machine_can_read_it",
    "server/process/test_tokens.py",
)
# No terminal, no locale, no home, files that everybody may read, and a shell that speaks to other programs.
SAYS = {
    "LC_ALL": "C",
    "TZ": "Asia/Kathmandu",
    "HOME": "/nonexistent",
    "COLUMNS": "20",
    "LUMIGRAD_TARGET": "nowhere:1",
    "OTEL_SDK_DISABLED": "true",
    "http_proxy": "http://127.0.0.1:9",
}
# Text that is wider and higher than elsewhere moves what a page shows. (Without any font a browser shows no page.)
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <match target="pattern">
    <edit name="family" mode="assign" binding="strong"><string>monospace</string></edit>
    <edit name="pixelsize" mode="assign"><double>24</double></edit>
  </match>
</fontconfig>
"""
_KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LUMIGRAD_EMULATION", "LUMIGRAD_TEST_DATA", "CI")


@pytest.fixture
def folder() -> Iterator[Path]:
    # The path of a browser's socket, in it, has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="a folder ") as made:
        yield Path(made)


def test_other_tests_pass(folder: Path) -> None:
    fonts = folder / "fonts.conf"
    fonts.write_text(FONTS)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment = {**kept, **SAYS, "FONTCONFIG_FILE": str(fonts), "TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(TESTS / each) for each in SAMPLE)],
        cwd=TESTS.parent, env=environment, umask=0, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
