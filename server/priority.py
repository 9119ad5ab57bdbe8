"""How urgent a call is, as its caller says."""

from __future__ import annotations

from enum import IntEnum

import grpc

from lumigrad.server.limits import require

# In the metadata of a call.
PRIORITY = "lumigrad-priority"


class Priority(IntEnum):
    """The most urgent first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


_BY_NAME = {priority.name.lower(): priority for priority in Priority}


def priority_of(context: grpc.ServicerContext) -> Priority:
    """What the caller says; NORMAL if that is nothing."""
    given = [value for key, value in context.invocation_metadata() or () if key == PRIORITY]
    if not given:
        return Priority.NORMAL
    name = given[0]
    require(len(given) == 1 and name in _BY_NAME, PRIORITY, f"one of {', '.join(_BY_NAME)}", ", ".join(map(str, given)))
    return _BY_NAME[str(name)]
