"""`lumigrad serve`: runs a worker for each device, and restarts workers that crash."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.errors import CONFIG_ERROR
from lumigrad.server.process.supervisor import Supervisor

_EXAMPLES = """\
examples:
  lumigrad serve                                         on the first CUDA device, or on the CPU
  lumigrad serve --device cuda:0,cuda:1 --port 50051     two workers, on ports 50051 and 50052
  lumigrad serve --port 0                                a second worker, on a free port
  lumigrad serve --sensorsim scenes/                     driving scenes, for AlpaSim and others
  lumigrad serve --host 0.0.0.0 --tls-cert worker.pem --tls-key worker.key --tokens-file tenants
"""


_THREADS = "LUMIGRAD_NUM_THREADS"
_MOST_THREADS = 256


def _check_threads(text: str) -> None:
    """Raise ConfigError unless the kernels understand the variable: they read as many digits as there are."""
    if text and not (text.isdecimal() and int(text) <= _MOST_THREADS):
        limit = f"a number of threads from 0 (all processors) to {_MOST_THREADS}"
        raise ConfigError(f"{_THREADS}: expected {limit}, got {text!r}")


class ServeCommand:
    """The subcommand as the `lumigrad` command expects it."""

    help = "run rendering workers"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the worker's options."""
        parser.epilog = _EXAMPLES
        Config.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Serve until a signal; returns the exit code."""
        try:
            config = Config.from_arguments(arguments)
            _check_threads(os.environ.get(_THREADS, ""))
            logs.configure(config.log_format, config.log_level)
            # Reported here once, instead of by every worker.
            if find_spec("torch") is None:
                raise ModuleNotFoundError("No module named 'torch'", name="torch")
            if config.sensorsim:
                # Scenes that no worker could serve raise a ConfigError. Imported here, because the packages are needed
                # only for scenes.
                from lumigrad.server.sensorsim.catalog import Catalog

                Catalog.open(config.sensorsim).log_doubts()
            if config.scene_files or config.scene_urls:
                from lumigrad.server.sensorsim.scene_addresses import scene_addresses

                scene_addresses(config)
            # Raises an error here, where torch would end the process without one: its MKL needs the folder.
            os.getcwd()
            supervisor = None if config.no_supervisor else Supervisor(config)
        except ConfigError as error:
            sys.stderr.write(f"lumigrad: error: {error}\n")
            return CONFIG_ERROR
        logs.event("starting: not ready yet", device=config.device)
        # Logged before the workers' ports and shares of memory are chosen.
        if chosen := config.chosen():
            logs.event("options that differ from their defaults", **chosen)
        if supervisor is not None:
            return supervisor.run()
        # Imported late: importing torch takes seconds, and neither `lumigrad --help` nor the supervisor needs it.
        from lumigrad.server.process.main import run

        return run(config.of_worker(0))


command = ServeCommand()
