"""The supervisor: runs one worker for each device, and restarts workers that die."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Sequence

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError, PreferredPort
from lumigrad.server.core.errors import CONFIG_ERROR, STOPPED
from lumigrad.server.core.link import announce, signal_pipe
from lumigrad.server.core.ports import reserved
from lumigrad.server.process.child import WorkerProcess
from lumigrad.server.process.fork_server import COMMAND, ForkServer, name_process
from lumigrad.server.process.slot import Crashes, Slot


def each(device: str) -> list[str]:
    """Return a device name for each worker; "all" stands for the CUDA devices, or the CPU if there is none."""
    names = [name.strip() for name in device.split(",")]
    if names == ["all"]:
        return [f"cuda:{index}" for index in range(_cuda_count())] or ["cpu"]
    if "all" in names or "" in names:
        raise ConfigError(f"--device: expected one device, several with commas between, or all, got {device!r}")
    gpus = ["cuda:0" if name == "cuda" else name for name in names if name != "cpu"]
    for name in gpus:
        if gpus.count(name) > 1:
            raise ConfigError(f"--device: expected each GPU once, as each worker takes a whole one, got {name} twice")
    return names


def _cuda_count() -> int:
    """Return the number of CUDA devices, after CUDA_VISIBLE_DEVICES; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


_LONGEST_PAUSE_SECONDS = 0.5
# The pause before the next attempt if the system cannot start a process.
_NO_PROCESS_SECONDS = 1.0
# The pause after several fork servers have crashed, while workers serve.
_FORK_SERVER_PAUSE_SECONDS = 10.0
# Added to the time that workers have to drain.
_STOP_SECONDS = 10.0
# The time for a killed process to end; a process that a driver holds in the kernel does not end.
_END_SECONDS = 5.0
# The pause after an unexpected error.
_ERROR_SECONDS = 0.5


class Supervisor:
    """Starts workers, restarts them when they die, and forwards signals; all in one thread."""

    def __init__(self, config: Config, command: Sequence[str] = COMMAND) -> None:
        """Reserve the ports; raises ConfigError if one is in use. `command` starts the fork server."""
        self._config = config
        self._command = command
        self._ports: list[socket.socket] = []
        devices = each(config.device)
        self._slots = [Slot(self._for(device, index, len(devices))) for index, device in enumerate(devices)]
        self._fork_server: ForkServer | None = None
        self._fork_server_at = 0.0
        self._fork_server_crashes = Crashes(config.max_crashes, config.crash_seconds)
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until no worker can be restarted; returns the exit code."""
        logs.configure(self._config.log_format, self._config.log_level)
        name_process("lumigrad-super")
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        self._selector.register(signal_pipe(numbers), selectors.EVENT_READ)
        while True:
            code = None
            with self._surviving("an error of the supervisor"):
                code = self._step()
            if code is not None:
                self._end_fork_server()
                return code

    def _step(self) -> int | None:
        """Handle the next event; returns the exit code at the end."""
        number = self._wait()
        if number is not None:
            if self._kill_at is not None:
                return self._force(number)
            logs.event("signal", name=number.name)
            self._stop()
        self._check_workers()
        return self._final_code()

    @contextlib.contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        """Log an unexpected error of the `with` block, so that it does not end other workers."""
        try:
            yield
        except Exception as error:
            logs.event(what, logging.ERROR, error=error)
            time.sleep(_ERROR_SECONDS)

    def _for(self, device: str, index: int, count: int) -> Config:
        """Return the configuration of one worker, with its device and reserved ports."""
        config = self._config
        port = self._reserve("--port", config.host, config.port, index)
        metrics_port = self._reserve_metrics(config, index)
        return dataclasses.replace(config.of_worker(index, count), device=device, port=port, metrics_port=metrics_port)

    def _reserve_metrics(self, config: Config, index: int) -> int:
        """Reserve the metrics port. If the default port is in use, take another, so that a second worker can start."""
        option, host, first = "--metrics-port", config.metrics_address, config.metrics_port
        try:
            return self._reserve(option, host, first, index)
        except ConfigError:
            if not isinstance(first, PreferredPort):
                raise
        port = self._reserve(option, host, 0, index)
        logs.event("the default port of the metrics is in use: another one", logging.WARNING, metrics_port=port)
        return port

    def _reserve(self, option: str, host: str, first: int, index: int) -> int:
        if first and first + index >= 1 << 16:
            raise ConfigError(f"{option}: expected room for one port per device below 65536, got {first}")
        self._ports.append(reserved(option, host, first and first + index))
        return int(self._ports[-1].getsockname()[1])

    def _wait(self) -> signal.Signals | None:
        """Wait for the next event; returns a signal to stop, if one arrived."""
        pause = _LONGEST_PAUSE_SECONDS
        if self._fork_server is not None and self._fork_server.is_loaded:
            next_start = min(slot.start_at for slot in self._slots)
            pause = max(0.0, min(pause, next_start - time.monotonic()))
        asked = None
        for key, _ in self._selector.select(pause):
            if isinstance(key.data, WorkerProcess):
                self._forward_announcements(key.data)
                continue
            if isinstance(key.data, ForkServer):
                if not key.data.receive():
                    self._selector.unregister(key.data.line)
                continue
            for number in map(signal.Signals, os.read(key.fd, 64)):
                asked = asked if number == signal.SIGCHLD else number
        return asked

    def _forward_announcements(self, process: WorkerProcess) -> None:
        texts = process.announcements()
        if texts is None:
            self._selector.unregister(process.line)
            return
        for text in texts:
            announce(text)

    def _check_workers(self) -> None:
        for slot in self._slots:
            with self._surviving("cannot look after a worker"):
                self._check_process(slot)
        self._check_fork_server()
        for slot in self._slots:
            if self._kill_at is None and slot.exit_code is None and time.monotonic() >= slot.start_at:
                with self._surviving("cannot start a worker"):
                    self._start(slot)
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for process in self._processes():
                process.kill()

    def _check_process(self, slot: Slot) -> None:
        """Kill a worker that is silent, and record the exit of one that has ended."""
        if slot.is_silent and self._kill_at is None:
            slot.end_silent()
        code = None if slot.process is None else slot.process.poll()
        if slot.process is not None and code is not None:
            if slot.process.line.fileno() in self._selector.get_map():
                self._forward_announcements(slot.process)
            if slot.process.line.fileno() in self._selector.get_map():
                self._selector.unregister(slot.process.line)
            slot.record_exit(code, is_stopping=self._kill_at is not None)

    def _check_fork_server(self) -> None:
        """Keep one fork server running."""
        server = self._fork_server
        if server is not None and (server.is_overdue or server.poll() is not None):
            self._end_fork_server()
            logs.event("the fork server ended", logging.ERROR, code=server.poll(), loaded=server.is_loaded)
            # Without a fork server, no worker can be restarted.
            pause = self._fork_server_crashes.add()
            self._fork_server_at = time.monotonic() + (_FORK_SERVER_PAUSE_SECONDS if pause is None else pause)
            if pause is None and not any(self._processes()):
                for slot in self._slots:
                    slot.give_up("the fork server")
        if self._fork_server is None and self._kill_at is None and time.monotonic() >= self._fork_server_at:
            try:
                self._fork_server = ForkServer(self._command)
                self._selector.register(self._fork_server.line, selectors.EVENT_READ, self._fork_server)
            except OSError as error:
                # Failing to start a process must not affect running workers.
                logs.event("cannot start a process", logging.ERROR, error=error)
                self._fork_server_at = time.monotonic() + _NO_PROCESS_SECONDS

    def _start(self, slot: Slot) -> None:
        if self._fork_server is None or not self._fork_server.is_loaded:
            return
        try:
            process = self._fork_server.fork()
        except OSError as error:
            logs.event("cannot start a process", logging.ERROR, error=error)
            slot.start_at = time.monotonic() + _NO_PROCESS_SECONDS
            return
        self._selector.register(process.line, selectors.EVENT_READ, process)
        slot.start(process, was_valid=any(other.has_served for other in self._slots))

    def _stop(self) -> None:
        self._kill_at = time.monotonic() + self._config.lame_duck_seconds + self._config.drain_seconds + _STOP_SECONDS
        self._end_fork_server()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.terminate()
            elif slot.exit_code is None:
                slot.exit_code = STOPPED

    def _force(self, number: signal.Signals) -> int:
        logs.event("killing all workers", logging.WARNING, name=number.name)
        until = time.monotonic() + _END_SECONDS
        for process in self._processes():
            process.kill()
        while any(process.poll() is None for process in self._processes()) and time.monotonic() < until:
            time.sleep(0.01)
        return 128 + number

    def _final_code(self) -> int | None:
        """Return the supervisor's exit code, once no worker runs or will run."""
        if any(slot.exit_code == CONFIG_ERROR for slot in self._slots) and self._kill_at is None:
            # No worker had served with this configuration.
            self._stop()
        if self._kill_at is not None and time.monotonic() > self._kill_at + _END_SECONDS:
            for slot in self._slots:
                if slot.process is not None:
                    logs.event("a killed worker does not end", logging.ERROR, pid=slot.process.pid)
                    slot.exit_code = 128 + signal.SIGKILL
        codes = [slot.exit_code for slot in self._slots]
        if any(code is None for code in codes):
            return None
        return next((code for code in codes if code), STOPPED)

    def _processes(self) -> Iterator[WorkerProcess]:
        yield from (slot.process for slot in self._slots if slot.process is not None)

    def _end_fork_server(self) -> None:
        server, self._fork_server = self._fork_server, None
        if server is not None:
            if server.line.fileno() in self._selector.get_map():
                self._selector.unregister(server.line)
            server.end()
