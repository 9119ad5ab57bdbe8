"""The metrics port: encrypted on request, and not blocked by silent callers."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from prometheus_client import CollectorRegistry

from lumigrad.client import Client
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.process import metrics_port
from support.deploy.certificates import Authority, Identity
from support.workers.worker import WorkerProcess, worker

TIMEOUT = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def context(authority: Authority, shown: Identity | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.certificate))
    if shown is not None:
        made.load_cert_chain(shown.certificate, shown.key)
    return made


def read(port: int, tls: ssl.SSLContext | None = None) -> str:
    url = f"http{'s' if tls else ''}://localhost:{port}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT, context=tls) as response:
        return response.read().decode()


@contextmanager
def encrypting(authority: Authority, own: Identity) -> Iterator[WorkerProcess]:
    """A worker whose metrics are encrypted with these files."""
    options = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--metrics-tls")
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    settings = {"credentials": credentials, "metrics_context": context(authority)}
    with worker("--device", "cpu", *options, **settings) as process:
        yield process


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Iterator[WorkerProcess]:
    with encrypting(authority, authority.sign("worker")) as process:
        yield process


def test_metrics_are_where_the_option_says_and_nowhere_else() -> None:
    with worker("--device", "cpu", "--metrics-host", "127.0.0.2", is_balanced=False) as process:
        url = f"http://127.0.0.2:{process.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            assert "lumigrad_calls_total" in response.read().decode()
        # Another program may use the same port of another address.
        sockets = psutil.Process(process.process.pid).net_connections("inet")
        hosts = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN and s.laddr.port == process.metrics_port}
        assert hosts == {"127.0.0.2"}


def test_metrics_are_encrypted_and_info_says_so(encrypted: WorkerProcess, authority: Authority) -> None:
    assert "lumigrad_up 1.0" in read(encrypted.metrics_port, context(authority))
    with pytest.raises(OSError):
        read(encrypted.metrics_port)
    with Client(f"localhost:{encrypted.port}", tls=authority.certificate) as client:
        assert client.info().metrics_url == f"https://localhost:{encrypted.metrics_port}/metrics"


def test_health_is_told_by_http_too(encrypted: WorkerProcess, authority: Authority) -> None:
    url = f"https://localhost:{encrypted.metrics_port}/health"
    with urllib.request.urlopen(url, timeout=TIMEOUT, context=context(authority)) as response:
        assert (response.status, response.read()) == (200, b"SERVING\n")


def test_ill_health_is_an_error_of_http() -> None:
    port = metrics_port.MetricsPort(Config(metrics_port=0), CollectorRegistry(), lambda: False).port
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://localhost:{port}/health", timeout=TIMEOUT)
    with refused.value as answer:
        assert (answer.code, answer.read()) == (503, b"NOT_SERVING\n")


def test_a_worker_that_is_about_to_stop_is_in_ill_health() -> None:
    process = WorkerProcess("--device", "cpu", "--lame-duck-seconds", "600")
    url = f"http://127.0.0.1:{process.metrics_port}/health"
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
        assert response.status == 200
    process.signal()
    process.wait_for_log("draining")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=TIMEOUT)
    with refused.value as answer:
        assert (answer.code, answer.read()) == (503, b"NOT_SERVING\n")
    # A second signal ends it at once.
    process.signal()
    assert process.wait() == 128 + signal.SIGTERM


def test_callers_who_say_nothing_keep_nobody_from_the_metrics(encrypted: WorkerProcess, authority: Authority) -> None:
    silent = [socket.create_connection(("127.0.0.1", encrypted.metrics_port)) for _ in range(20)]
    try:
        assert "lumigrad_up 1.0" in read(encrypted.metrics_port, context(authority))
    finally:
        for connection in silent:
            connection.close()


def test_a_replaced_certificate_is_used_and_a_broken_one_is_not(authority: Authority, tmp_path: Path) -> None:
    own, newer = authority.sign("replaced"), Authority(tmp_path, "newer")
    with encrypting(authority, own) as process:
        own.key.write_text("broken")
        process.wait_for_log("cannot read the metrics' certificate; the previous one stays in use")
        assert "lumigrad_up" in read(process.metrics_port, context(authority))
        other = newer.sign("worker")
        shutil.copy(other.certificate, own.certificate)
        shutil.copy(other.key, own.key)
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                read(process.metrics_port, context(newer))
                process.metrics_context = context(newer)
                break
            except urllib.error.URLError:
                assert time.monotonic() < until
                time.sleep(0.05)


def in_process(silent_seconds: float, monkeypatch: pytest.MonkeyPatch, **settings: object) -> metrics_port.MetricsPort:
    monkeypatch.setattr(metrics_port, "_SILENT_SECONDS", silent_seconds)
    return metrics_port.MetricsPort(Config(metrics_port=0, **settings), CollectorRegistry(), lambda: True)


def test_readers_show_a_certificate_where_callers_must(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    own, reader = authority.sign("other"), authority.sign("reader")
    files = {"tls_cert": str(own.certificate), "tls_key": str(own.key), "tls_client_ca": str(authority.certificate)}
    port = in_process(TIMEOUT, monkeypatch, metrics_tls=True, **files).port
    assert read(port, context(authority, reader)) == ""
    with pytest.raises(OSError):
        read(port, context(authority))


def test_a_caller_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    port = in_process(0.2, monkeypatch).port
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        assert connection.recv(1) == b""


def test_errors_of_requests_for_metrics_are_logged_as_others_are_and_callers_that_vanish_are_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    port = in_process(TIMEOUT, monkeypatch).port
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        connection.sendall(b"GET /metrics")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    odd = urllib.request.Request(f"http://localhost:{port}/metrics")
    odd.add_header("Accept", "application/openmetrics-text; version=x")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(odd, timeout=TIMEOUT)
    with refused.value as answer:
        assert answer.code == 500 and b"the log says why" in answer.read()
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(TIMEOUT)
    assert [record.message for record in caplog.records if record.name == "lumigrad"] == [
        "a request for metrics failed"
    ]
    written = capfd.readouterr().err
    assert "Exception occurred" not in written and "wsgiref" not in written


def test_encrypted_metrics_need_a_certificate() -> None:
    with pytest.raises(ConfigError, match="--metrics-tls: expected --tls-cert and --tls-key too"):
        Config(metrics_tls=True)
