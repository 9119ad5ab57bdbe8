"""Lets the tests run another build of the native module: LUMIGRAD_TEST_NATIVE names its folder.

The sanitizers' build is not installed, so that it is used only on request.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_NAME = "lumigrad.kernels._native"


def _load(folder: Path) -> None:
    files = list(folder.glob("_native*.so"))
    if len(files) != 1:
        raise RuntimeError(f"LUMIGRAD_TEST_NATIVE: expected one _native module in {folder}, found {len(files)}")
    if _NAME in sys.modules:
        raise RuntimeError("LUMIGRAD_TEST_NATIVE: the installed native module was imported before the one to be tested")
    spec = importlib.util.spec_from_file_location(_NAME, files[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    # The package imports the native module itself, so it comes second and finds the one above.
    importlib.import_module("lumigrad.kernels")._native = module


if "LUMIGRAD_TEST_NATIVE" in os.environ:
    _load(Path(os.environ["LUMIGRAD_TEST_NATIVE"]))
