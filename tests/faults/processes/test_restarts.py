"""Edited or replaced files and unexpected errors do not end a service that has served."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2

from lumigrad.client import Client
from support.deploy.certificates import Authority
from support.workers.forks import lumigrad
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

# Restarts that wait for a valid configuration come this often, not every ten seconds.
QUICK = ("from lumigrad.server.process import slot", "slot._LARGEST_DELAY_SECONDS = 0.5")
TOKEN = "a" * 32
RETRIES = "the configuration, which was valid before, is not now"


def kill_worker(process: WorkerProcess) -> None:
    os.kill(process.worker_pid, signal.SIGKILL)


def assert_goes_on(
    process: WorkerProcess, client: Client, spoil: Callable[[], object], mend: Callable[[], object]
) -> None:
    """Spoil the configuration, kill the worker, and mend the configuration after some restarts have failed."""
    assert client.info().version
    retries = process.log.count(RETRIES)
    spoil()
    kill_worker(process)
    assert_serves_again(process, client, retries, mend)


def assert_serves_again(process: WorkerProcess, client: Client, retries: int, mend: Callable[[], object]) -> None:
    """Mend what keeps the killed worker from starting after some restarts have failed."""
    process.wait_for_log(RETRIES, count=retries + 2)
    assert process.process.poll() is None
    served = process.log.count(" serving ")
    mend()
    wait_until(lambda: process.log.count(" serving ") > served, "a worker that serves again")
    assert client.info(timeout_s=150).version


def test_a_bad_line_in_the_tokens_file_only_delays_a_restart(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    good = f"alice: {TOKEN}\n"
    tokens.write_text(good)
    with (
        worker("--device", "cpu", "--tokens-file", str(tokens), supervised=True, before=QUICK) as process,
        Client(process.target, token=TOKEN, retry_s=60) as client,
    ):
        for text in ("c: short\n", "\x00"):
            bad = good + text
            assert_goes_on(process, client, lambda bad=bad: tokens.write_text(bad), lambda: tokens.write_text(good))


def test_a_certificate_that_is_being_replaced_only_delays_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.sign("own"), authority.sign("other")
    key = own.key.read_bytes()
    options = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key))
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with (
        worker("--device", "cpu", *options, supervised=True, before=QUICK, credentials=credentials) as process,
        Client(process.target, tls=authority.certificate, retry_s=60) as client,
    ):
        assert_goes_on(
            process, client, lambda: own.key.write_bytes(other.key.read_bytes()), lambda: own.key.write_bytes(key)
        )


def test_a_port_that_another_process_has_for_a_while_only_delays_a_restart(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    before = (
        *QUICK,
        "import os, time",
        "record_exit = slot.Slot.record_exit",
        "def after_others(self, *arguments, **named):",
        "    until = time.monotonic() + 150",
        f"    while not os.path.exists({str(taken)!r}) and time.monotonic() < until: time.sleep(0.01)",
        "    record_exit(self, *arguments, **named)",
        "slot.Slot.record_exit = after_others",
    )
    with (
        worker("--device", "cpu", supervised=True, before=before) as process,
        Client(process.target, retry_s=60) as client,
        socket.socket() as held,
    ):
        assert client.info().version
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def is_taken() -> bool:
            with suppress(OSError):
                held.bind(("127.0.0.1", process.metrics_port))
                held.listen()
                return True
            return False

        assert not is_taken()
        kill_worker(process)
        wait_until(is_taken, "the port that the worker had")
        taken.touch()
        assert_serves_again(process, client, 0, held.close)


def test_a_worker_that_does_not_end_when_it_is_killed_keeps_no_other_from_being_replaced() -> None:
    # A driver holds such a process in the kernel.
    before = (
        "import signal",
        "from lumigrad.server.process.child import WorkerProcess",
        "send = WorkerProcess._send_signal",
        "def send_all_but_kill(self, number):",
        "    if number != signal.SIGKILL: send(self, number)",
        "WorkerProcess._send_signal = send_all_but_kill",
    )
    with worker("--device", "cpu,cpu", "--hang-seconds", "3", supervised=True, before=before) as process:
        process.wait_for_log(" serving ", count=2)
        stuck, other = (int(pid) for pid in re.findall(r"worker started .*pid=(\d+)", process.log))
        os.kill(stuck, signal.SIGSTOP)
        try:
            process.wait_for_log("the worker does not respond: killing it")
            for restarts in (1, 2):
                os.kill(other, signal.SIGKILL)
                process.wait_for_log(f"restarts={restarts}")
                process.wait_for_log(" serving ", count=2 + restarts)
                other = process.worker_pid
            assert psutil.Process(stuck).status() == psutil.STATUS_STOPPED
        finally:
            os.kill(stuck, signal.SIGKILL)
        process.wait_for_log(" serving ", count=5)


def test_an_invalid_configuration_at_the_first_start_ends_the_service(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice\n")
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 2 .*--tokens-file: line 1"):
        WorkerProcess("--device", "cpu", "--tokens-file", str(tokens), supervised=True, before=QUICK)


def test_a_device_that_cannot_work_ends_the_service_although_another_serves_already() -> None:
    before = (
        "from lumigrad.server.process.supervisor import Supervisor",
        "check = Supervisor._check_process",
        "def late(self, slot):",
        "    if slot is self._slots[0] or self._slots[0].has_served: check(self, slot)",
        "Supervisor._check_process = late",
    )
    options = ("--device", "cpu,tpu", "--port", "0", "--metrics-port", "0", "--lame-duck-seconds", "0")
    done = lumigrad("serve", *options, timeout=200, before=before)
    assert done.returncode == 2, done.stderr
    assert "listening on" in done.stdout
    assert done.stderr.count("worker started") == 2


def test_housekeeping_goes_on_after_an_error() -> None:
    before = (
        "from lumigrad.server.storage.tenants import Tenants",
        "def expire(self): raise ValueError('an error nobody expects')",
        "Tenants.expire = expire",
    )
    with worker("--device", "cpu", before=before) as process:
        process.wait_for_log("an error of housekeeping", count=3)
        process.wait_for_log("an error nobody expects")
        assert process.health() == health_pb2.HealthCheckResponse.SERVING


def test_the_supervisor_looks_after_workers_after_an_error() -> None:
    before = (
        "from lumigrad.server.process.slot import Slot",
        "record, calls = Slot.record_exit, []",
        "def record_exit(self, *arguments, **named):",
        "    calls.append(1)",
        "    if len(calls) == 1: raise ValueError('an error nobody expects')",
        "    record(self, *arguments, **named)",
        "Slot.record_exit = record_exit",
    )
    with (
        worker("--device", "cpu", supervised=True, before=before) as process,
        Client(process.target, retry_s=60) as client,
    ):
        kill_worker(process)
        process.wait_for_log("cannot look after a worker")
        process.wait_for_log("worker started", count=2)
        assert client.info(timeout_s=150).version
