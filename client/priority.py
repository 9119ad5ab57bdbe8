"""How urgent a client's calls are to the worker."""

from __future__ import annotations

from typing import Literal, get_args

from lumigrad.client.errors import InvalidArgument

# "interactive" for people who wait, "batch" for what may wait.
Priority = Literal["interactive", "normal", "batch"]
_KEY = "lumigrad-priority"


def priority_metadata(priority: Priority | None) -> tuple[tuple[str, str], ...]:
    """What calls say of it; None: nothing, which is "normal"."""
    if priority is None:
        return ()
    if priority not in get_args(Priority):
        expected = ", ".join(get_args(Priority))
        raise InvalidArgument.of("priority", f"expected one of {expected}, or None, got {priority!r}")
    return ((_KEY, priority),)
