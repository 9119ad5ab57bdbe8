"""Errors of the kernels about arguments that make no sense."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lumigrad.kernels.errors import ArgumentError


def refused(call: Callable[[], object], argument: str, *words: str) -> None:
    """Fails unless a call is refused by the name of an argument, with what was expected and came, and these words."""
    with pytest.raises(ArgumentError) as caught:
        call()
    error = caught.value
    assert argument in error.argument, f"names the argument {error.argument!r}: {error}"
    assert error.expected and error.actual
    for text in (error.argument, *words):
        assert text in str(error), f"{text!r} not in {error}"
