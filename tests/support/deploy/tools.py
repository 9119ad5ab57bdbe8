"""Finds the programs that tests of the deployment use; a missing one skips the test, and fails it in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest


def need(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        miss(f"needs {program}: {package}")
    assert found is not None
    return found


def need_module(name: str, package: str) -> None:
    """Imports a Python package; skips the test if it is missing, and fails it in CI."""
    if importlib.util.find_spec(name) is None:
        miss(f"needs the package {package}: pip install -e '.[dev]'")


def miss(text: str) -> None:
    """Skips the test with a reason; fails it in CI, where everything is installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text, allow_module_level=True)
