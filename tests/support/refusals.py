"""Errors of the kernels about meaningless arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lumigrad.kernels.errors import ArgumentError


def refused(call: Callable[[], object], argument: str, *words: str) -> None:
    """Fails unless a call is refused with the argument's name, the expected and actual value, and these words."""
    with pytest.raises(ArgumentError) as caught:
        call()
    error = caught.value
    assert argument in error.argument, f"names the argument {error.argument!r}: {error}"
    assert error.expected and error.actual
    for text in (error.argument, *words):
        assert text in str(error), f"{text!r} not in {error}"
