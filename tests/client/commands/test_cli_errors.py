"""A transcript of the errors that `lumigrad` prints for mistakes at a shell, so that every change of them is seen.

To add a line, write "$ lumigrad …" into the transcript; then, as after each intended change, run:
LUMIGRAD_UPDATE=1 pytest tests/client/commands/test_cli_errors.py
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from lumigrad.client import Mesh, Spheres
from lumigrad.client.cli import main
from lumigrad.client.errors import Cancelled, InvalidArgument, LumigradError, ResourceExhausted
from lumigrad.client.shell import exits
from support.deploy.certificates import Authority
from support.files.dataset_files import shots, transforms
from support.gaussians.clouds import post
from support.workers.forks import lumigrad
from support.workers.worker import LUMIGRAD, WorkerProcess, worker

ROOT = Path(__file__).parents[3]
TRANSCRIPT = Path(__file__).with_name("cli_errors.txt")
IS_UPDATE = os.environ.get("LUMIGRAD_UPDATE", "0") != "0"
TOKEN = "a-token-for-the-tests"
# Messages of gRPC and TLS about a connection depend on the machine and on their versions.
FOREIGN = re.compile(r"((?:worker|connection) at (?:once|\S+)|to the worker at \S+) \(.*\)(?=[;:] )")
# Lines with shell syntax run in a shell, lines with a worker in a process of their own. The others run in this process,
# which is quicker.
OF_SHELL, OF_WORKER = re.compile(r"[|>=]"), re.compile(r"{")


def blocks() -> dict[str, str]:
    """The errors that each command line prints, followed by its exit status in brackets."""
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", TRANSCRIPT.read_text(encoding="utf-8"), re.M)
    return {line: said.rstrip("\n") for line, said in found}


BLOCKS = blocks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the command lines run, with intact and broken files."""
    folder = tmp_path_factory.mktemp("shell")
    post().save(folder / "scene.ply")
    content = (folder / "scene.ply").read_bytes()
    (folder / "half.ply").write_bytes(content[: len(content) // 2])
    for name in ("empty.ply", "notes", "taken.fit"):
        (folder / name).touch()
    (folder / "notes.ply").write_text("buy milk\n")
    Spheres(np.zeros((2, 3)), np.zeros((2, 7)), np.ones(2)).save(folder / "seven.ply")
    corners = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    Mesh(corners, [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]).save(folder / "pyramid.ply")
    (folder / "broken.json").write_text('{"eye": }')
    (folder / "eyes.json").write_text('{"eyes": [0, 0, 0]}')
    (folder / "short.json").write_text('{"eye": [0, 0], "target": [0, 0, 0]}')
    (folder / "transforms.json").write_text(json.dumps(transforms(shots(), w=64, h=48, fl_x=60)))
    (folder / "empty").mkdir()
    for name in ("full.png", "full.npy"):
        (folder / name).symlink_to("/dev/full")
    for name, text in {"right": TOKEN, "wrong": "another", "two": "one\ntwo"}.items():
        (folder / f"{name}.token").write_text(f"{text}\n")
    return folder


@pytest.fixture(scope="module")
def targets(folder: Path, worker_process: WorkerProcess) -> Iterator[dict[str, str]]:
    """Targets by their names in the lines: a plain worker, one with TLS and tokens, one that is silent, and none."""
    authority = Authority(folder)
    own = authority.sign("worker")
    (folder / "tenants").write_text(f"lab: {TOKEN}\n")
    options = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--tokens-file", str(folder / "tenants"))
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        found = {"plain": worker_process.target}
        found |= {name: f"127.0.0.1:{it.getsockname()[1]}" for name, it in {"silent": silent, "nobody": nobody}.items()}
        with worker("--device", "cpu", *options, credentials=credentials) as secure:
            yield found | {"secure": secure.target}


@pytest.fixture(scope="module")
def transcript() -> Iterator[dict[str, str]]:
    """Collects what the lines print now, and rewrites the transcript if asked to."""
    said = dict(BLOCKS)
    yield said
    if IS_UPDATE:
        TRANSCRIPT.write_text("".join(f"$ {line}\n{text}\n\n" for line, text in said.items()), encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    """The environment of a user who has set no variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LUMIGRAD_", "XDG_", "PYTHON"))}
    path = f"{Path(LUMIGRAD).parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "HOME": str(folder), "COLUMNS": "100"}


def elsewhere(line: str, folder: Path, targets: dict[str, str]) -> str:
    """The output of a line in a shell or in another process, with this process's environment."""
    is_of_shell = OF_SHELL.search(line)
    for name, target in targets.items():
        line = line.replace(f"{{{name}}}", target)
    if is_of_shell:
        script = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(script, capture_output=True, text=True, timeout=250, cwd=folder)
    else:
        done = lumigrad(*shlex.split(line)[1:], folder=folder)
    said = done.stderr
    for name, target in targets.items():
        said = said.replace(target, f"{{{name}}}")
    assert done.stdout == ""
    return FOREIGN.sub(r"\1 (…)", said) + f"[{done.returncode}]"


def here(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code: object = main(shlex.split(line)[1:])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert said.out == ""
    return f"{said.err}[{code}]"


@pytest.mark.parametrize("line", BLOCKS)
def test_what_is_said(line, folder, transcript, capsys, monkeypatch, request):
    if OF_SHELL.search(line) or OF_WORKER.search(line):
        targets = request.getfixturevalue("targets")
        for name in set(os.environ) - set(environment(folder)):
            monkeypatch.delenv(name)
        for name, value in environment(folder).items():
            monkeypatch.setenv(name, value)
        said = elsewhere(line, folder, targets)
    else:
        for name in ("LUMIGRAD_TARGET", "LUMIGRAD_TOKEN", "LUMIGRAD_TLS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.chdir(folder)
        said = here(line, capsys)
    transcript[line] = said
    assert IS_UPDATE or said == BLOCKS[line]
    *lines, code = said.splitlines()
    assert len(lines) <= 2 and "Traceback" not in said
    # Advice in Python's syntax is of no use at a shell.
    assert not re.search(r"\w=(?:True|…|FILE|\()|Client\(|timeout_s", said)
    assert int(code.strip("[]")) in {*exits.MEANINGS}


def test_every_exit_status_has_a_line():
    seen = {int(re.search(r"\[(\d+)\]$", said)[1]) for said in BLOCKS.values()}
    assert {*exits.MEANINGS} - seen <= {exits.NOT_SO, exits.BUSY, exits.INTERRUPTED, exits.TERMINATED}


def test_a_full_worker_has_a_status_of_its_own():
    assert exits.exit_code(ResourceExhausted("full")) == exits.BUSY
    assert exits.exit_code(LumigradError("odd")) == exits.exit_code(Cancelled("by the worker")) == exits.FAILED


def test_a_limit_of_threads_is_no_fault_of_lumigrad():
    # No address space has room for such a stack, even where the system promises more memory than it has.
    before = threading.stack_size(1 << 62)
    try:
        with pytest.raises(RuntimeError) as refused:
            threading.Thread(target=int).start()
    finally:
        threading.stack_size(before)
    assert "refuses another thread: see its limits of processes" in exits.error_message(refused.value, {})


def test_an_argument_is_wrong_usage_only_where_it_is_an_option():
    refusal = InvalidArgument.of("sh_degree", "expected at most 0")
    assert exits.exit_code(refusal, {"sh_degree": "--sh-degree"}) == exits.USAGE
    assert exits.exit_code(refusal, {"steps": "--steps"}) == exits.FAILED


def test_control_c_ends_a_call_that_is_waiting(folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [LUMIGRAD, "info", "--target", f"127.0.0.1:{silent.getsockname()[1]}"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(folder))
        silent.settimeout(150)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            assert process.wait(150) == exits.INTERRUPTED
        assert process.stderr.read() == ""


# Some packages, such as trimesh, catch everything that is raised while they import others.
CATCHES = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except BaseException:
    pass
"""


# The client imports gRPC, and a command imports viser.
@pytest.mark.parametrize("package", ["grpc", "viser"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_imports_is_not_lost(tmp_path: Path, number: signal.Signals, package: str):
    (tmp_path / f"{package}.py").write_text(CATCHES)
    variables = {**environment(tmp_path), "PYTHONPATH": str(tmp_path)}
    command = [LUMIGRAD, "view", "sample:vase"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    try:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        assert process.wait(150) == -number
        assert process.stderr.read() == ""
    finally:
        process.kill()


def test_a_traceback_is_shown_to_who_asks_for_it(folder: Path):
    for asked, count in (("0", 0), ("1", 1)):
        command = [LUMIGRAD, "render", "absent.ply", "-o", "out.png"]
        variables = {**environment(folder), "LUMIGRAD_DEBUG": asked}
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder, env=variables)
        assert done.returncode == exits.FAILED
        assert done.stderr.count("Traceback (most recent call last)") == count
        assert done.stderr.endswith("lumigrad: error: no such file: absent.ply\n")


def test_the_document_has_the_exit_statuses():
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8"), re.M)
    assert {int(code): meaning for code, meaning in rows} == exits.MEANINGS
