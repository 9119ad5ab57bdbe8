"""Finds the modules that `make test` builds: the CUDA kernels compiled for the host."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def load(name: str) -> ModuleType:
    """Imports the emulation module `name`; skips the test where it was not built, or fails if it must have been."""
    if name in sys.modules:
        return sys.modules[name]
    folder = Path(os.environ.get("LUMIGRAD_EMULATION", ROOT / "build" / "emulation")) / "modules"
    found = sorted(folder.glob(f"{name}.*.so"))
    if not found:
        message = f"{name} was not found in {folder}; build it with `make emulation`"
        if "LUMIGRAD_EMULATION" in os.environ:
            pytest.fail(message)
        pytest.skip(message)
    spec = importlib.util.spec_from_file_location(name, found[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
