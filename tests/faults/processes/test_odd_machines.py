"""Tests pass whatever a machine's language, time zone, files and proxies: runs some that might depend on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
SAMPLE = (
    "client/commands/test_cli_help.py::test_help_has_examples_and_fits[render]",
    "client/commands/test_cli_json.py::test_info",
    "client/commands/test_cli_json.py::test_render",
    "client/commands/test_cli.py::test_options_come_before_the_environment",
    "faults/stored/test_spool.py::test_worlds_find_their_meshes_unless_those_were_deleted",
    "server/process/test_logs.py::test_every_line_is_json_whoever_wrote_it",
    "server/process/test_process.py::test_a_call_is_one_plain_line",
    "server/storage/test_spool.py::test_nobody_else_on_the_machine_can_read_it",
    "server/process/test_tokens.py",
)
# An unusual environment: no locale, no home directory, and settings that are meant for other programs.
SAYS = {
    "LC_ALL": "C",
    "TZ": "Asia/Kathmandu",
    "HOME": "/nonexistent",
    "COLUMNS": "20",
    "LUMIGRAD_TARGET": "nowhere:1",
    "OTEL_SDK_DISABLED": "true",
    "http_proxy": "http://127.0.0.1:9",
}
_KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LUMIGRAD_EMULATION", "LUMIGRAD_TEST_DATA", "CI")


def test_other_tests_pass(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment = {**kept, **SAYS, "TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(TESTS / each) for each in SAMPLE)],
        cwd=TESTS.parent, env=environment, umask=0, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
