"""`lumigrad serve`: run a worker."""

from __future__ import annotations

import argparse
import sys

from lumigrad.server.config import CONFIG_ERROR, Config, ConfigError


class ServeCommand:
    """The subcommand as the `lumigrad` command expects it."""

    help = "run a worker that renders for clients"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the worker's options."""
        Config.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Serve until a signal; returns the exit code."""
        try:
            config = Config.from_arguments(arguments)
        except ConfigError as error:
            sys.stderr.write(f"lumigrad serve: {error}\n")
            return CONFIG_ERROR
        # Imported late: torch takes seconds, and `lumigrad --help` needs none of it.
        from lumigrad.server import process

        return process.run(config)


command = ServeCommand()
