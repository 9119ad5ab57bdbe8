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
    # Threads inherit the mask, so that the signals wait for this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
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
    sys.stdout.write(f"listening on {config.host}:{worker.port} (metrics {worker.metrics_port})\n")
    sys.stdout.flush()
    logs.event("signal", name=signal.Signals(signal.sigwait(_SIGNALS)).name)
    threading.Thread(target=_force_on_signal, name="force", daemon=True).start()
    worker.stop()
    return 0


def _force_on_signal() -> None:
    number = signal.sigwait(_SIGNALS)
    logs.event("forced to end", logging.WARNING, name=signal.Signals(number).name)
    os._exit(128 + number)
