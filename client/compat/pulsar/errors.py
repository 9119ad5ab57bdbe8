"""The error of a refused argument, a RuntimeError as in the original."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lumigrad.client.errors import InvalidArgument, Violation

# What a part of a path in the request, or the client's own argument, is called here, and its number in the original.
_ARGUMENTS = {
    "positions": ("vert_pos", 1),
    "colors": ("vert_col", 2),
    "radii": ("vert_rad", 3),
    "opacities": ("opacity", 13),
    "cameras": ("cam_params", 4),
    "parameters": ("cam_params", 4),
    "gamma": ("gamma", 10),
    "max_depth": ("max_depth", 11),
    "min_depth": ("min_depth", 12),
    "background": ("bg_col", 13),
}


class PulsarArgumentError(InvalidArgument, RuntimeError):
    """An argument that Pulsar refuses. The text has its name and the number that the original gives it."""

    @classmethod
    def at(cls, number: int, name: str, description: str) -> PulsarArgumentError:
        """Argument `number` is wrong."""
        return cls.of(name, f"invalid argument {number}: {description}")


@contextmanager
def pulsar_refusals() -> Iterator[None]:
    """Raises PulsarArgumentError, which names the drop-in's arguments, where the client or the worker refuses one."""
    try:
        yield
    except PulsarArgumentError:
        raise
    except InvalidArgument as error:
        violations = tuple(_of_drop_in(violation) for violation in error.violations)
        text = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
        raise PulsarArgumentError(text or str(error), violations) from error


def _of_drop_in(violation: Violation) -> Violation:
    for part in re.findall(r"\w+", violation.field):
        if part in _ARGUMENTS:
            name, number = _ARGUMENTS[part]
            return Violation(name, f"invalid argument {number}: {violation.description}")
    return violation
