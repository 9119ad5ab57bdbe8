"""Parses the options of a deployment with the parser of `lumigrad serve`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lumigrad.server.core.config import Config

# The time after lame duck and drain after which the supervisor kills a worker.
SUPERVISOR_SECONDS = 15


def config_of(options: Sequence[str]) -> Config:
    """The configuration; unknown options end the process, invalid values raise a ConfigError."""
    parser = argparse.ArgumentParser()
    Config.add_arguments(parser)
    return Config.from_arguments(parser.parse_args(options))
