"""A computation on a worker as the operators see it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from lumigrad.client.base.arguments import names
from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import InvalidArgument


class RemoteCall:
    """All of a computation that is not an array.

    Attributes:
        settings: of the engine.
        outputs: names of what comes back.
    """

    settings: Any
    outputs: tuple[str, ...]

    @property
    @abstractmethod
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""

    @property
    def without_gradient(self) -> frozenset[str]:
        """Inputs to which none do with these settings."""
        return frozenset()

    @abstractmethod
    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Any:
        """Asks the worker; the result has the outputs as items.

        Args:
            inputs: by name; None for those absent.
            retain: a backward pass will probably come.
        """

    def gradients(
        self, result: Any, upstream: Mapping[str, Any], wanted: tuple[str, ...], release: bool
    ) -> Mapping[str, Array]:
        """Asks the same worker for gradients, which have as many values as the inputs but not always their shape.

        Args:
            result: what `run` returned.
            upstream: gradients of outputs.
            wanted: names of inputs.
            release: let the worker forget the forward state.
        """
        found: Mapping[str, Array] = result.backward(**upstream, wanted=wanted, release=release)
        return found


def chosen(outputs: Any, known: Sequence[str], always: Sequence[str] = ()) -> tuple[str, ...]:
    """The outputs of an operator, in the order of those that are known.

    Args:
        outputs: as passed.
        known: all that there are.
        always: returned whether asked for or not.
    """
    given = names("outputs", outputs)
    unknown = sorted(set(given) - set(known))
    if unknown or not (given or always):
        raise InvalidArgument.of("outputs", f"expected some of {', '.join(known)}, got {', '.join(unknown) or 'none'}")
    return tuple(name for name in known if name in {*always, *given})
