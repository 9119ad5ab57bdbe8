"""Renders of many views that take several launches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support.closeness import assert_same_bits


def assert_launches_of_two_views(
    render: Callable[[Callable[[], None]], dict[str, torch.Tensor]], work_of_view: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, torch.Tensor]:
    """Asserts that five views have the same bits in three launches as in one, and that callers may stop between them.

    Args:
        render: renders the views, and calls its argument before each launch.
        work_of_view: of a view, as the engine counts it.
        monkeypatch: limits the work of a launch.

    Returns:
        The outputs.
    """
    asked = 0

    def rendered(last: int | None = None) -> dict[str, torch.Tensor]:
        nonlocal asked
        asked = 0

        def ask() -> None:
            nonlocal asked
            if asked == last:
                raise InterruptedError
            asked += 1

        return render(ask)

    whole = rendered()
    assert asked == 1
    monkeypatch.setattr("lumigrad.kernels.per_device._LAUNCH_WORK", 2 * work_of_view)
    parts = rendered()
    assert asked == 3
    assert_same_bits(parts, whole)
    with pytest.raises(InterruptedError):
        rendered(last=2)
    assert asked == 2
    # The unfinished call does not affect the next one.
    assert_same_bits(rendered(), whole)
    return whole
