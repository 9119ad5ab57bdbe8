"""`lumigrad serve` whose workers' engines fail on request."""

from __future__ import annotations

import argparse
import sys

from lumigrad.server.core.config import Config
from lumigrad.server.process.supervisor import Supervisor

parser = argparse.ArgumentParser()
Config.add_arguments(parser)
config = Config.from_arguments(parser.parse_args())
sys.exit(Supervisor(config, (sys.executable, "-m", "support.workers.faulty_engines")).run())
