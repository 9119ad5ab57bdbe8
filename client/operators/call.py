"""A computation on a worker as the operators see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lumigrad.client.base.arguments import names
from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import InvalidArgument


class RemoteCall(Protocol):
    """All of a computation that is not an array.

    Attributes:
        outputs: names of what comes back.
        differentiable: names of the outputs through which gradients flow.
    """

    @property
    def outputs(self) -> tuple[str, ...]:
        """See above."""

    @property
    def differentiable(self) -> frozenset[str]:
        """See above."""

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
