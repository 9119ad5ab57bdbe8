"""What the real parser of `lumigrad serve` makes of the options that a deployment gives it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lumigrad.server.core.config import Config

# What the supervisor may take beyond lame duck and drain before it kills.
SUPERVISOR_SECONDS = 15


def config_of(options: Sequence[str]) -> Config:
    """The configuration; options that do not exist end the process, those that make no sense are a ConfigError."""
    parser = argparse.ArgumentParser()
    Config.add_arguments(parser)
    return Config.from_arguments(parser.parse_args(options))
