"""Imports optional packages on demand; the error for a missing package names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from lumigrad.client.errors import LumigradError


class MissingPackage(LumigradError, ImportError):
    """A package of an extra is not installed."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Imports `module`; if it is missing, the error names the `purpose` and the `extra` of Lumigrad that has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackage(
            f'{purpose} needs the package "{package}"; install it with: pip install "lumigrad[{extra}]"'
        ) from error
