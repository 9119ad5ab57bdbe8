"""The error of a refused argument, by its name in the original."""

from __future__ import annotations

from contextlib import AbstractContextManager

from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument

# The argument's name here, by a part of the path in the request or by the client's own argument.
_ARGUMENTS = {
    "spheres": "query_spheres",
    "environments": "env_query_idx",
    "activation_distance": "activation_distance",
    "max_distance": "max_dist",
    "samples": "sweep_steps",
    "time_step": "speed_dt",
    "time_step_s": "speed_dt",
    "weight": "weight",
    "size": "dims",
}


class CuroboArgumentError(InvalidArgument):
    """A refused argument, by its name in cuRobo; a ValueError, as in cuRobo."""


def curobo_refusals() -> AbstractContextManager[None]:
    """Raises CuroboArgumentError where the client or the worker refuses an argument."""
    return renamed(CuroboArgumentError, _ARGUMENTS)
