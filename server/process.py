"""The life of the worker process: start, signals, exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

import torch

from lumigrad.server import logs
from lumigrad.server.config import CONFIG_ERROR, Config, ConfigError
from lumigrad.server.worker import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
DEVICE_ERROR = 1


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends the process at once.

    Prints one line to standard output when calls are answered:
    "listening on HOST:PORT (metrics PORT)".
    """
    logs.configure(config.log_format)
    # The kernels have threads of their own; torch does odd jobs here, and its threads only get in their way.
    torch.set_num_threads(1)
    signals = _listen()
    try:
        worker = Worker(config)
    except ConfigError as error:
        logs.event(str(error), logging.ERROR)
        return CONFIG_ERROR
    logs.event("configuration", **vars(config))
    try:
        worker.start()
    except Exception as error:
        logs.event("the device does not work", logging.ERROR, error=error)
        return DEVICE_ERROR
    sys.stdout.write(f"listening on {config.url_host}:{worker.port} (metrics {worker.metrics_port})\n")
    sys.stdout.flush()
    logs.event("signal", name=_next(signals).name)
    threading.Thread(target=_force, args=(signals,), name="force", daemon=True).start()
    worker.stop()
    return 0


def _listen() -> int:
    """Have the signals written to a pipe, whichever thread they meet; returns its reading end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    return reading


def _next(signals: int) -> signal.Signals:
    return signal.Signals(os.read(signals, 1)[0])


def _force(signals: int) -> None:
    number = _next(signals)
    logs.event("forced to end", logging.WARNING, name=number.name)
    os._exit(128 + number)
