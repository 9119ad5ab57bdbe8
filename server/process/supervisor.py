"""The supervisor: runs one worker for each device and restarts it when it dies."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.errors import CONFIG_ERROR, STOPPED
from lumigrad.server.core.link import signal_pipe
from lumigrad.server.process.child import COMMAND, WorkerProcess
from lumigrad.server.process.slot import Slot


def each(device: str) -> list[str]:
    """One name per worker; "all" are the CUDA devices, or the CPU if there is none."""
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
    """The number of CUDA devices, after CUDA_VISIBLE_DEVICES; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _reserved(option: str, host: str, port: int) -> socket.socket:
    """Bind a port, 0 for a free one, without listening; ConfigError, which names `option`, if it is in use.

    Workers can bind it in turn, and the system gives it to no one else.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        what = f"{option}: cannot listen on {where}; is another process using it?"
        raise ConfigError(f"{what} {option} 0 takes a free one") from None
    return bound


_LONGEST_PAUSE_SECONDS = 0.5
# The pause before the next attempt if the system cannot start a process.
_NO_PROCESS_SECONDS = 1.0
# The pause after a spare has ended by itself, because the next one would probably too.
_SPARE_PAUSE_SECONDS = 10.0
# Added to the time that workers have to drain.
_STOP_SECONDS = 10.0


class Supervisor:
    """Starts workers, restarts them when they die, and forwards signals; all in one thread."""

    def __init__(self, config: Config, command: Sequence[str] = COMMAND) -> None:
        """Reserve the ports; ConfigError if one is in use. `command` starts a worker's process."""
        self._config = config
        self._command = command
        self._ports: list[socket.socket] = []
        devices = each(config.device)
        self._slots = [Slot(self._for(device, index, len(devices))) for index, device in enumerate(devices)]
        self._spare: WorkerProcess | None = None
        self._spare_at = 0.0
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until no worker can be restarted; returns the exit code."""
        logs.configure(self._config.log_format)
        self._listen_to_signals()
        while True:
            number = self._wait()
            if number is not None:
                if self._kill_at is not None:
                    return self._force(number)
                logs.event("signal", name=number.name)
                self._stop()
            self._check_workers()
            code = self._final_code()
            if code is not None:
                self._drop_spare()
                return code

    def _for(self, device: str, index: int, count: int) -> Config:
        """The configuration of one worker: its device and reserved ports."""
        config = self._config
        port = self._reserve("--port", config.host, config.port, index)
        metrics_port = self._reserve("--metrics-port", config.metrics_address, config.metrics_port, index)
        return dataclasses.replace(config.of_worker(index, count), device=device, port=port, metrics_port=metrics_port)

    def _reserve(self, option: str, host: str, first: int, index: int) -> int:
        if first and first + index >= 1 << 16:
            raise ConfigError(f"{option}: expected room for one port per device below 65536, got {first}")
        self._ports.append(_reserved(option, host, first and first + index))
        return int(self._ports[-1].getsockname()[1])

    def _listen_to_signals(self) -> None:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        self._selector.register(signal_pipe(numbers), selectors.EVENT_READ)

    def _wait(self) -> signal.Signals | None:
        """Wait for the next event; returns the signal to stop, if one arrived."""
        next_start = min(slot.start_at for slot in self._slots)
        pause = max(0.0, min(_LONGEST_PAUSE_SECONDS, next_start - time.monotonic()))
        asked = None
        for key, _ in self._selector.select(pause):
            if isinstance(key.data, WorkerProcess):
                self._forward_announcements(key.data)
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
            # The reader of standard output may have gone, which must not end the supervisor.
            with contextlib.suppress(OSError):
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()

    def _check_workers(self) -> None:
        for slot in self._slots:
            if slot.is_silent and self._kill_at is None:
                slot.end_silent()
            code = None if slot.process is None else slot.process.poll()
            if slot.process is not None and code is not None:
                self._disconnect(slot.process)
                slot.record_exit(code, is_stopping=self._kill_at is not None)
            if self._kill_at is None and slot.exit_code is None and time.monotonic() >= slot.start_at:
                self._start(slot)
        self._check_spare()
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for process in self._processes():
                process.kill()

    def _check_spare(self) -> None:
        """Keep one loaded process ready for all devices, so that a dead worker is replaced quickly."""
        if self._spare is not None and self._spare.poll() is not None:
            logs.event("the spare process ended", logging.WARNING, code=self._spare.poll())
            self._spare.close()
            self._spare = None
            self._spare_at = time.monotonic() + _SPARE_PAUSE_SECONDS
        is_wanted = self._spare is None and self._kill_at is None
        # Not before the workers serve, because loading would slow their start.
        if is_wanted and time.monotonic() >= self._spare_at and all(slot.is_settled for slot in self._slots):
            self._spare = self._new_process()
            self._spare_at = time.monotonic() + _SPARE_PAUSE_SECONDS

    def _new_process(self) -> WorkerProcess | None:
        """Create a process; None if the system cannot, which must not affect running workers."""
        try:
            return WorkerProcess(self._command)
        except OSError as error:
            logs.event("cannot start a process", logging.ERROR, error=error)
            return None

    def _start(self, slot: Slot) -> None:
        process, self._spare = self._spare or self._new_process(), None
        if process is None:
            slot.start_at = time.monotonic() + _NO_PROCESS_SECONDS
            return
        self._spare_at = 0.0
        self._selector.register(process.line, selectors.EVENT_READ, process)
        slot.start(process)

    def _stop(self) -> None:
        self._kill_at = time.monotonic() + self._config.lame_duck_seconds + self._config.drain_seconds + _STOP_SECONDS
        self._drop_spare()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.terminate()
            elif slot.exit_code is None:
                slot.exit_code = STOPPED

    def _force(self, number: signal.Signals) -> int:
        logs.event("killing all workers", logging.WARNING, name=number.name)
        for process in self._processes():
            process.kill()
        return 128 + number

    def _final_code(self) -> int | None:
        """The supervisor's exit code, once no worker runs or will run."""
        is_misconfigured = any(slot.exit_code == CONFIG_ERROR and not slot.has_served for slot in self._slots)
        if is_misconfigured and self._kill_at is None:
            # No worker has ever served with this configuration.
            self._stop()
        codes = [slot.exit_code for slot in self._slots]
        if any(code is None for code in codes):
            return None
        return next((code for code in codes if code), STOPPED)

    def _processes(self) -> Iterator[WorkerProcess]:
        yield from (slot.process for slot in self._slots if slot.process is not None)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare.close()
            self._spare = None

    def _disconnect(self, process: WorkerProcess) -> None:
        if process.line.fileno() in self._selector.get_map():
            self._forward_announcements(process)
        if process.line.fileno() in self._selector.get_map():
            self._selector.unregister(process.line)
