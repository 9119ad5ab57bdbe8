"""The error of a refused argument, a RuntimeError as in the original."""

from __future__ import annotations

from lumigrad.client.errors import InvalidArgument


class PulsarArgumentError(InvalidArgument, RuntimeError):
    """An argument that Pulsar refuses. The text has its name and the number that the original gives it."""

    @classmethod
    def at(cls, number: int, name: str, description: str) -> PulsarArgumentError:
        """Argument `number` is wrong."""
        return cls.of(name, f"invalid argument {number}: {description}")
