"""The pictures of one step and the gradients that answer them, for a loss that is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lumigrad.client.base.arrays import Array, float32_array
from lumigrad.client.rendering.request import WireFormat
from lumigrad.client.training.results import Images, StepResult
from lumigrad.client.transport.cancellation import Cancellation
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import tensor_pb2, training_pb2


class Steps(Protocol):
    """Of a trainer, what its batches and their results need."""

    def apply(self, gradients: training_pb2.StepGradients, payload: PayloadWriter) -> LateResult:
        """Sends what a batch's loss gives."""

    def settle(self, awaited: LateResult | None = None) -> None:
        """Waits until a result was given to `LateResult.tell`."""

    def _cancelled_by(self, cancellation: Cancellation | None) -> Steps:
        """Has `cancellation` end its calls."""


class LateResult:
    """What a step did, `StepResult`, once the worker has told: whoever looks at an attribute waits for it.

    Attributes:
        number: of the step; known at once.
    """

    def __init__(self, number: int, steps: Steps) -> None:
        """`steps` gives the result to `tell`."""
        self.number = number
        self._steps = steps
        self._result: StepResult | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)

    def result(self) -> StepResult:
        """The result itself; waits for it."""
        if self._result is None:
            self._steps.settle(self)
        assert self._result is not None
        return self._result

    @property
    def is_known(self) -> bool:
        """Whether `result` returns at once."""
        return self._result is not None

    def _cancelled_by(self, cancellation: Cancellation | None) -> LateResult:
        """The same result; whoever waits for it is ended by `cancellation`."""
        self._steps._cancelled_by(cancellation)
        return self

    def tell(self, result: StepResult) -> None:
        """Give the result."""
        self._result = result


class Batch:
    """The pictures of one step, which waits for the gradient of a loss.

    Attributes:
        images: what was asked for; also as attributes of the batch: `batch.color` [C, H, W, K].
        views: which were rendered.
    """

    def __init__(self, steps: Steps, images: Images) -> None:
        self._steps = steps
        self.images = images
        self.views = images.views

    def __getattr__(self, name: str) -> Array:
        return getattr(self.__dict__["images"], name)  # type: ignore[no-any-return]

    def apply(self, /, *, gradient_format: WireFormat = "float32", **gradients: Any) -> LateResult:
        """Makes the step. With more than one in flight it does not wait for the worker: that is for the result to do.

        Args:
            gradient_format: how the gradients travel.
            gradients: dL/d output by its name, shaped as the output.
        """
        payload = PayloadWriter()
        message = gradients_message(self.images.number, gradients, gradient_format, payload)
        return self._steps.apply(message, payload)

    def _cancelled_by(self, cancellation: Cancellation | None) -> Batch:
        """The same batch, whose calls `cancellation` ends."""
        self._steps._cancelled_by(cancellation)
        return self


def gradients_message(
    number: int, gradients: Mapping[str, Any], gradient_format: WireFormat, payload: PayloadWriter
) -> training_pb2.StepGradients:
    """The request that brings the gradients of a step; their bytes go to `payload`."""
    message = training_pb2.StepGradients(number=number)
    for name, value in gradients.items():
        array = float32_array(name, value)
        if gradient_format == "float32":
            tensor = payload.add(array)
        elif gradient_format == "float16":
            tensor = payload.add(array.astype("<f2"))
        else:
            tensor = payload.add(dtypes.float32_to_bfloat16(array), dtypes.BFLOAT16)
        message.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=tensor))
    return message
