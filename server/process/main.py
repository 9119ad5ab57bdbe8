"""The life of the worker process: its start, signals and exit code."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable

import torch

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.errors import CONFIG_ERROR, DEVICE_ERROR, STOPPED
from lumigrad.server.core.link import History, WorkerEnd, announce, signal_pipe
from lumigrad.server.process.worker import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: Config, history: History | None = None, supervisor: WorkerEnd | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Without a supervisor, a second signal ends the process at once.

    Once calls are answered, prints one line to standard output, or has the supervisor print it: "listening on HOST:PORT
    (metrics PORT)".
    """
    logs.configure(config.log_format, config.log_level)
    # A crash, or SIGQUIT, writes the stacks of all threads to standard error.
    faulthandler.enable()
    faulthandler.register(signal.SIGQUIT)
    # The kernels have their own threads, with which torch's threads would compete.
    torch.set_num_threads(1)
    signals = signal_pipe(_SIGNALS)
    try:
        worker = Worker(config, history or History(), supervisor.beat if supervisor else lambda: None)
    except ConfigError as error:
        logs.event(str(error), logging.ERROR)
        return CONFIG_ERROR
    # Objects that live as long as the process are excluded from garbage collection: scanning all of them took 0.1 s,
    # during which no other Python thread ran.
    gc.collect()
    gc.freeze()
    try:
        worker.start()
    except Exception as error:
        logs.event("the device failed its first render", logging.ERROR, error=error)
        return DEVICE_ERROR
    # Loading runs on its own thread, so that a signal can end the worker meanwhile.
    tell = supervisor.announce if supervisor else announce
    threading.Thread(target=_load, args=(worker, config, tell), name="loading", daemon=True).start()
    logs.event("signal", name=_next(signals).name)
    # Under a supervisor the second signal may be the forwarded first one; the supervisor forces an exit with SIGKILL.
    if supervisor is None:
        threading.Thread(target=_force, args=(signals, worker), name="force", daemon=True).start()
    worker.stop()
    logging.shutdown()
    # A normal exit would first shut down gRPC, which would cancel calls.
    os._exit(STOPPED)


def _load(worker: Worker, config: Config, tell: Callable[[str], None]) -> None:
    """Load scenes, then announce that the worker serves; ends the process if its configuration cannot work."""
    try:
        worker.load()
    except ConfigError as error:
        if worker.is_stopping:
            return
        logs.event(str(error), logging.ERROR)
        os._exit(CONFIG_ERROR)
    tell(f"listening on {config.url_host}:{worker.port} (metrics {worker.metrics_port})")


def _next(signals: int) -> signal.Signals:
    return signal.Signals(os.read(signals, 1)[0])


def _force(signals: int, worker: Worker) -> None:
    number = _next(signals)
    worker.write_notes()
    logs.event("exiting without waiting for calls", logging.WARNING, name=number.name)
    os._exit(128 + number)
