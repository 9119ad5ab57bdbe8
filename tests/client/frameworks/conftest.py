"""A record of the gradients that operators ask a worker for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Asked = list[tuple[tuple[str, ...], tuple[str, ...]]]


@pytest.fixture
def differentiated(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], Asked]:
    """Returns a list to which each backward pass of a kind of result adds its outputs and the wanted gradients."""

    def of(kind: Any) -> Asked:
        asked: Asked = []
        original = kind._differentiated

        def spy(self: Any, request: Any, *rest: Any) -> Any:
            asked.append((tuple(request.output_gradients), request.wanted))
            return original(self, request, *rest)

        monkeypatch.setattr(kind, "_differentiated", spy)
        return asked

    return of
