"""`lumigrad top` as a user runs it, on real workers: in pipes, and in a terminal."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


def shown_as(form: str, process: WorkerProcess) -> str:
    return f"127.0.0.1:{process.metrics_port}" if form == "url" else process.target


@pytest.mark.parametrize("form", ["target", "url", "environment"])
def test_one_look_in_text(worker_process: WorkerProcess, form: str) -> None:
    url = f"http://127.0.0.1:{worker_process.metrics_port}"
    arguments = {"target": (worker_process.target,), "url": (url,), "environment": ()}[form]
    with busy(worker_process.target):
        said = top(*arguments, *ONCE, LUMIGRAD_TARGET=worker_process.target)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["worker", "state"], [shown_as(form, worker_process), "SERVING"]]
    assert max(map(len, lines)) <= 80 and float(lines[1].split()[3]) > 0


def test_several_workers_and_one_that_is_not_there(worker_process: WorkerProcess) -> None:
    said = top(worker_process.target, "localhost:1", f"http://127.0.0.1:{worker_process.metrics_port}/metrics", *ONCE)
    assert said.returncode == 0, said.stderr
    rows = [line.split()[:2] for line in said.stdout.splitlines()]
    assert rows[0] == ["worker", "state"]
    assert rows[1] == [worker_process.target, "SERVING"]
    assert rows[2] == ["localhost:1", "UNREACHABLE"]
    assert rows[3][1] == "SERVING"
    assert "UNREACHABLE for 0:00:0" in said.stdout


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
        assert f"{process.target} " in said.stdout and "SERVING" in said.stdout, said.stderr
        stranger = top(f"https://127.0.0.1:{process.metrics_port}", *ONCE, "--tls-ca", str(authority.certificate))
        assert stranger.returncode == 4


def test_it_goes_on_when_the_worker_is_replaced_says_so_and_ends_cleanly() -> None:
    """By either signal: two look on."""
    with ExitStack() as running:
        process = running.enter_context(worker("--device", "cpu", supervised=True))
        calls = running.enter_context(load(process.target))
        command = [LUMIGRAD, "top", process.target, "--interval", "0.3"]
        shown = [
            running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=PLAIN))
            for _ in range(2)
        ]

        def is_told(text: str) -> bool:
            return all(any(text in line for line in each.stdout) for each in shown)

        try:
            assert is_told("SERVING")
            os.kill(process.worker_pid, signal.SIGSTOP)
            assert is_told("UNREACHABLE for 0:00:0")
            os.kill(process.worker_pid, signal.SIGKILL)
            assert is_told("restarted; the one before ended: killed")
            calls.wait_for_progress()
        finally:
            for each, way in zip(shown, (signal.SIGINT, signal.SIGTERM), strict=True):
                each.send_signal(way)
        for each in shown:
            each.stdout.read()
            assert each.wait(60) == 0
