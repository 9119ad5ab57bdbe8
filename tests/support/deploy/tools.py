"""Programs that tests of the deployment use: found, or a reason not to run; required where the project is checked."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest


def need(program: str, package: str) -> str:
    """The path of a program; skips the test where there is none, and fails it in CI."""
    found = shutil.which(program)
    if found is None:
        miss(f"needs {program}: {package}")
    assert found is not None
    return found


def need_module(name: str, package: str) -> None:
    """Likewise for a Python package."""
    if importlib.util.find_spec(name) is None:
        miss(f"needs the package {package}: pip install -e '.[dev]'")


def miss(text: str) -> None:
    """Skip for want of something; fails in CI, where everything has been installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text, allow_module_level=True)
