"""`lumigrad top` as a user runs it, on real workers: in pipes, and in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import ssl
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from lumigrad.client import Client
from support.deploy.certificates import Authority
from support.workers.client_load import load
from support.workers.forks import lumigrad
from support.workers.mixed_load import CAMERA, spheres
from support.workers.worker import LUMIGRAD, WorkerProcess, worker

ONCE = ("--once", "--interval", "1")
PLAIN = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR", "LUMIGRAD_TARGET")}


def top(*arguments: str, columns: int = 80, **variables: str) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(PLAIN):
            patch.delenv(name)
        for name, value in {"COLUMNS": str(columns), **variables}.items():
            patch.setenv(name, value)
        return lumigrad("top", *arguments, timeout=60)


@contextmanager
def busy(target: str) -> Iterator[None]:
    """A worker that is asked the same short things again and again, some fifty times a second."""
    enough = threading.Event()

    def run() -> None:
        with Client(target) as client:
            while not enough.wait(0.02):
                client.render(client.put(spheres()), CAMERA)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(60)


def test_one_look_in_json(worker_process: WorkerProcess) -> None:
    with busy(worker_process.target):
        said = top(worker_process.target, *ONCE, "--json")
    assert said.returncode == 0, said.stderr
    (line,) = said.stdout.splitlines()
    (report,) = json.loads(line)["workers"]
    assert (report["target"], report["state"]) == (worker_process.target, "SERVING")
    assert 0.9 < report["interval_s"] < 30
    identity, loads = report["identity"], report["load"]
    assert (identity["device"], identity["restarts"], identity["last_exit"]) == ("cpu", 0, "none")
    assert identity["uptime_s"] > 0
    assert loads["calls_per_s"] > 0
    assert 0 < loads["device_busy"] <= 1
    assert 0 < loads["p50_ms"] <= loads["p95_ms"]
    methods = {method["method"]: method for method in report["methods"]}
    assert methods["RenderService.Render"]["sent_bytes_per_s"] > 0
    assert sum(method["calls_per_s"] for method in methods.values()) == pytest.approx(loads["calls_per_s"])
    assert {"decode", "queue"} <= {stage["name"] for stage in report["stages"]}
    assert any(kernel["name"].startswith("spheres forward") for kernel in report["kernels"])
    assert report["process"]["resident_bytes"] > 50 << 20
    assert {store["name"] for store in report["stores"]} == {"scene", "context", "training", "transit"}


@pytest.mark.parametrize("form", ["target", "url", "environment"])
def test_one_look_in_text(worker_process: WorkerProcess, form: str) -> None:
    url = f"http://127.0.0.1:{worker_process.metrics_port}"
    arguments = {"target": (worker_process.target,), "url": (url,), "environment": ()}[form]
    with busy(worker_process.target):
        said = top(*arguments, *ONCE, LUMIGRAD_TARGET=worker_process.target)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith(f"{url if form == 'url' else worker_process.target}  SERVING  up ")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in said.stdout
    for text in ("device busy", "RenderService.Render", "all  ", "decode", "spheres forward blend", "scenes put"):
        assert text in said.stdout


def test_several_workers_and_one_that_is_not_there(worker_process: WorkerProcess) -> None:
    said = top(worker_process.target, "localhost:1", f"http://127.0.0.1:{worker_process.metrics_port}/metrics", *ONCE)
    assert said.returncode == 0, said.stderr
    rows = [line.split()[:2] for line in said.stdout.splitlines()]
    assert rows[0] == ["worker", "state"]
    assert rows[1] == [worker_process.target, "SERVING"]
    assert rows[2] == ["localhost:1", "UNREACHABLE"]
    assert rows[3][1] == "SERVING"
    assert "localhost:1: for " in said.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("localhost:1",), 4, "lumigrad: error: no worker at localhost:1 ("),
        (("http://localhost:1",), 4, "lumigrad: error: no metrics at http://localhost:1/metrics: "),
        (
            ("ftp://localhost",),
            2,
            "lumigrad: error: --target: expected HOST:PORT, or http(s)://HOST:PORT/metrics, got 'ftp:",
        ),
    ],
)
def test_no_worker_is_one_line_and_a_status(arguments: tuple[str, ...], code: int, text: str) -> None:
    said = top(*arguments, *ONCE)
    assert (said.returncode, said.stdout) == (code, "")
    assert said.stderr.startswith(text)
    assert said.stderr.count("\n") == 1


def test_a_page_of_something_else_is_named(worker_process: WorkerProcess) -> None:
    # A worker's own port speaks no HTTP.
    said = top(f"http://{worker_process.target}", *ONCE)
    assert said.returncode == 4
    assert said.stderr.count("\n") == 1
    assert "lumigrad: error: " in said.stderr


def test_encrypted_metrics(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, reader = authority.sign("worker"), authority.sign("reader")
    options = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--metrics-tls")
    mutual = ("--tls-client-ca", str(authority.certificate))
    shown = ("--certificate", str(reader.certificate), str(reader.key))
    keys = (reader.key.read_bytes(), reader.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes(), *keys)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(reader.certificate, reader.key)
    with worker("--device", "cpu", *options, *mutual, credentials=credentials, metrics_context=context) as process:
        said = top(process.target, *ONCE, "--tls-ca", str(authority.certificate), *shown)
        assert said.stdout.startswith(f"{process.target}  SERVING"), said.stderr
        stranger = top(f"https://127.0.0.1:{process.metrics_port}", *ONCE, "--tls-ca", str(authority.certificate))
        assert stranger.returncode == 4


def test_the_missing_package_is_named(worker_process: WorkerProcess) -> None:
    script = (
        "import sys\nclass Absent:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'rich': raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Absent())\nfrom lumigrad.client.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "top", worker_process.target, "--once", "--interval", "0.1"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.returncode == 1
    assert 'lumigrad top needs the package "rich"; install it with: pip install "lumigrad[top]"' in said.stderr


# Makes standard input the controlling terminal of a new session, then runs a command in it.
IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """`lumigrad top` in a terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str) -> None:
        self.master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.settings = termios.tcgetattr(self._slave)
        self.shown = ""
        environment = {**{name: value for name, value in PLAIN.items() if name != "NO_COLOR"}, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", IN_TERMINAL, LUMIGRAD, "top", *arguments, "--interval", "0.3"],
            stdin=self._slave, stdout=self._slave, stderr=subprocess.PIPE, env=environment, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        """Wait until something is shown that was not before."""
        self.shown, until = "", time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < until, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                self.shown += os.read(self.master, 1 << 16).decode("utf-8", "replace")

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        """Wait for the end; what is shown until then is not lost."""
        until = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < until
            if select.select([self.master], [], [], 0.05)[0]:
                self.shown += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        while select.select([self.master], [], [], 0)[0]:
            self.shown += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        return self.process.returncode

    def is_as_before(self) -> bool:
        """Whether the terminal shows its first screen again, and echoes what is typed."""
        return "\x1b[?1049l" in self.shown and termios.tcgetattr(self._slave) == self.settings

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in (self.master, self._slave):
            os.close(end)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    made = Terminal(*arguments)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("how", ["q", "control-c", "sigterm"])
def test_it_ends_cleanly(worker_process: WorkerProcess, how: str) -> None:
    with terminal(worker_process.target) as shown:
        shown.wait_for("SERVING")
        if how == "sigterm":
            shown.process.send_signal(signal.SIGTERM)
        else:
            shown.type(b"xq" if how == "q" else b"\x03")
        assert shown.end() == 0
        assert shown.is_as_before()


def test_it_goes_on_when_the_worker_is_replaced_and_says_so() -> None:
    with (
        worker("--device", "cpu", supervised=True) as process,
        load(process.target) as calls,
        terminal(process.target) as shown,
    ):
        shown.wait_for("restarts 0")
        os.kill(process.worker_pid, signal.SIGSTOP)
        shown.wait_for("UNREACHABLE")
        os.kill(process.worker_pid, signal.SIGKILL)
        shown.wait_for("the one before ended: killed")
        calls.wait_for_progress()
        shown.wait_for("RenderService.Render")
        shown.type(b"q")
        assert shown.end() == 0
