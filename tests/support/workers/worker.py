"""Real worker processes for tests: started on free ports, waited for, stopped, and their logs kept."""

from __future__ import annotations

import os
import re
import select
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.ports import bound_socket, reserved_port
from support.workers.balance import wait_until_released
from support.workers.forks import EMULATED, FAULTS, ForkedProcess

LUMIGRAD = str(Path(sys.executable).with_name("lumigrad"))
START_SECONDS = 150.0
_LISTENING = re.compile(r"listening on (\S+):(\d+) \(metrics (\d+)\)")


class WorkerProcess:
    """A `lumigrad serve` process, which listens on `target` once the constructor returns."""

    # All started processes.
    all: ClassVar[weakref.WeakSet[WorkerProcess]] = weakref.WeakSet()

    def __init__(
        self,
        *options: str,
        port: int = 0,
        metrics_port: int = 0,
        environment: dict[str, str] | None = None,
        variables: dict[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metrics_context: ssl.SSLContext | None = None,
        supervised: bool = False,
        faults: Path | None = None,
        emulated: bool = False,
        command: Sequence[str] = (LUMIGRAD, "serve"),
        before: Sequence[str] = (),
    ):
        """Start the process and wait until it answers; raises a RuntimeError with its log if it ends instead.

        `variables` are added to its environment. A separate `environment`, for variables that matter when modules are
        loaded, delays the start by seconds. `credentials` are for a worker with TLS, `metrics_context` for one whose
        metrics have TLS. `process` is the worker or, if `supervised`, its supervisor. Faults armed in the folder
        `faults` occur in the supervisor's workers, or in an `emulated` worker, which has no supervisor and runs on the
        emulation of CUDA. The statements `before` change the process before it serves, and those that it forks.
        """
        self.options = options
        self._credentials = credentials
        self.metrics_context = metrics_context
        alone = () if supervised else ("--no-supervisor",)
        # A supervisor keeps the ports that it chooses; those of another worker are free once it ends.
        ports = [str(given if supervised else given or self._reserve()) for given in (port, metrics_port)]
        arguments = [*command, "--port", ports[0], "--metrics-port", ports[1], *alone, *options]
        is_plain = environment is None and arguments[0] == LUMIGRAD
        assert is_plain or not before, "only a forked process runs statements before it serves"
        told = dict(variables or {})
        if faults is not None:
            told[FAULTS] = str(faults)
        if emulated:
            told[EMULATED] = "1"
        self.process = (
            ForkedProcess(arguments[1:], environment={**os.environ, **told}, before=before)
            if is_plain
            else subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
        self._log = bytearray()
        self._log_has_ended = False
        self._reading = threading.Lock()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        host, self.port, self.metrics_port = self._wait_until_listening()
        self.target = f"{host}:{self.port}"
        self.wait_for_health(health_pb2.HealthCheckResponse.SERVING)
        self.all.add(self)

    def _reserve(self) -> int:
        """A port for the life of this object: clients would take another test's worker there for this one."""
        bound = bound_socket()
        weakref.finalize(self, bound.close)
        return int(bound.getsockname()[1])

    @property
    def log(self) -> str:
        """The lines of standard error so far: all that were written before this is asked for."""
        self._read()
        end = len(self._log) if self._log_has_ended else self._log.rfind(b"\n") + 1
        return self._log[:end].decode(errors="replace")

    @property
    def worker_pid(self) -> int:
        """The newest process that serves under the supervisor."""
        return int(re.findall(r"worker started .*pid=(\d+)", self.log)[-1])

    def metrics(self) -> str:
        """The text of the metrics."""
        scheme, host = ("http", "127.0.0.1") if self.metrics_context is None else ("https", "localhost")
        url = f"{scheme}://{host}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60, context=self.metrics_context) as response:
            return response.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels; 0 if there are none yet."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        found = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", self.metrics(), re.M)
        return sum(float(value) for each, given, value in found if each == name and wanted <= set(given.split(",")))

    def processor_seconds(self) -> float:
        """The processor time of the process so far, which, unlike elapsed time, does not depend on other work here."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def channel(self) -> grpc.Channel:
        """A channel to the worker."""
        if self._credentials is None:
            return grpc.insecure_channel(self.target)
        return grpc.secure_channel(self.target, self._credentials)

    def health(self, service: str = "") -> int:
        """The serving status of a service."""
        with self.channel() as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            return health_pb2_grpc.HealthStub(channel).Check(request, timeout=150, wait_for_ready=True).status

    def wait_for_health(self, status: int, seconds: float = 150.0) -> None:
        """Wait until the worker reports a serving status."""
        until = time.monotonic() + seconds
        while self.health() != status:
            if time.monotonic() > until:
                raise TimeoutError(f"the worker did not report status {status}; its log:\n{self.log}")
            time.sleep(0.02)

    def wait_for_log(self, text: str, seconds: float = 150.0, count: int = 1) -> None:
        """Wait until the log contains a text `count` times."""
        until = time.monotonic() + seconds
        while self.log.count(text) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"{text!r} did not appear in the log:\n{self.log}")
            time.sleep(0.02)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float = 150.0) -> int:
        """Wait for the end; returns the exit code."""
        code = self.process.wait(seconds)
        # Processes that outlive a killed supervisor may hold the other end for a while.
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def stop(self) -> int:
        """Terminate the process and wait; returns the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def _collect(self) -> None:
        """Empty the pipe of standard error, or the process would wait for room in it."""
        assert self.process.stderr is not None
        is_readable = select.poll()
        is_readable.register(self.process.stderr, select.POLLIN)
        while not self._log_has_ended:
            is_readable.poll()
            self._read()
        self.process.stderr.close()

    def _read(self) -> None:
        """Read what the pipe of standard error holds now."""
        assert self.process.stderr is not None
        is_readable = select.poll()
        with self._reading:
            if not self._log_has_ended:
                is_readable.register(self.process.stderr, select.POLLIN)
            while not self._log_has_ended and is_readable.poll(0):
                read = os.read(self.process.stderr.fileno(), 1 << 16)
                self._log += read
                self._log_has_ended = not read

    def _wait_until_listening(self) -> tuple[str, int, int]:
        assert self.process.stdout is not None
        timer = threading.Timer(START_SECONDS, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                match = _LISTENING.search(line)
                if match:
                    return match[1], int(match[2]), int(match[3])
        finally:
            timer.cancel()
        raise RuntimeError(f"the worker ended with code {self.wait()} before it served; its log:\n{self.log}")


@contextmanager
def worker(
    *options: str, tokens: Mapping[str, str] | None = None, is_balanced: bool = True, **settings: Any
) -> Iterator[WorkerProcess]:
    """A worker that drains fast, for the length of a `with` block.

    `tokens` are those of its tenants, by name. If it still runs at the end of the block, all calls must have released
    their resources; pass `is_balanced=False` if the metrics are not at 127.0.0.1.
    """
    with tempfile.TemporaryDirectory() as folder:
        if tokens is not None:
            file = Path(folder) / "tokens"
            file.write_text("".join(f"{tenant}: {token}\n" for tenant, token in tokens.items()), encoding="utf-8")
            options = (*options, "--tokens-file", str(file))
        process = WorkerProcess("--lame-duck-seconds", "0", *options, **settings)
        try:
            yield process
            if is_balanced:
                wait_until_released([process])
        finally:
            process.stop()


def worker_fixture(*options: str, **settings: Any) -> Any:
    """Returns a fixture: a `worker` on the CPU with these options and settings, which the tests of a module share."""

    @pytest.fixture(scope="module")
    def shared() -> Iterator[WorkerProcess]:
        with worker("--device", "cpu", *options, **settings) as process:
            yield process

    return shared


@contextmanager
def replaceable_worker(*options: str) -> Iterator[tuple[WorkerProcess, Callable[[], None]]]:
    """A worker for the length of a `with` block, and a function that drains it and starts another on its port."""
    with reserved_port() as port:
        running = [WorkerProcess(*options, port=port)]

        def replace() -> None:
            assert running[-1].stop() == 0
            running.append(WorkerProcess(*options, port=port))

        try:
            yield running[0], replace
        finally:
            running[-1].stop()
