"""The results of training steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lumigrad.client.base.arrays import Array, NamedArrays
from lumigrad.client.base.timings import Timings
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadReader
from lumigrad.v1 import density_pb2, tensor_pb2, training_pb2


@dataclass(frozen=True)
class Statistics:
    """Statistics of the gradient of one parameter as it is optimised: of logarithms of scales, of logits of opacities.

    Attributes:
        norm: Euclidean norm.
        largest: largest absolute value.
        not_finite: number of non-finite values; their primitives were left unchanged.
    """

    norm: float
    largest: float
    not_finite: int


@dataclass(frozen=True)
class DensityReport:
    """How many Gaussians density control changed in a step, and whether it reset their opacities."""

    cloned: int
    split: int
    pruned: int
    relocated: int
    added: int
    opacities_reset: bool

    @staticmethod
    def of(message: density_pb2.DensityReport) -> DensityReport:
        """Reads the worker's message."""
        return DensityReport(**{name: getattr(message, name) for name in DensityReport.__dataclass_fields__})


class Images(NamedArrays):
    """The pictures of a step, as items and as attributes: `color` [C, H, W, K], `alpha` and depths [C, H, W].

    Arrays are float32, except those requested as "uint8".

    Attributes:
        number: the number of the step.
        views: the views that were rendered.
    """

    _advice: ClassVar[str] = "name what you need in outputs=…"

    def __init__(self, message: training_pb2.StepImages, reader: PayloadReader) -> None:
        super().__init__({named.name: _array(named, reader) for named in message.outputs})
        self.number: int = message.number
        self.views: tuple[int, ...] = tuple(message.views)


@dataclass(frozen=True)
class StepResult:
    """The result of a training step.

    Attributes:
        number: the number of the step, from 0.
        views: the views that were rendered.
        loss: the weighted sum of the terms; NaN for a step with the client's own loss.
        terms: the unweighted terms of the loss, and "psnr" in dB.
        count: the number of primitives after the step.
        visible: the number of primitives with gradients in the step.
        statistics: statistics of the gradients, by tensor of the scene.
        density: the changes by density control; None: it did not run in this step.
        discarded: whether the gradients were discarded because density control had changed their primitives meanwhile.
        images: the pictures, if requested.
        timings: how long the step took on the worker.
    """

    number: int
    views: tuple[int, ...]
    loss: float
    terms: Mapping[str, float]
    count: int
    visible: int
    statistics: Mapping[str, Statistics]
    density: DensityReport | None
    discarded: bool
    images: Images | None
    timings: Timings

    @property
    def psnr(self) -> float:
        """PSNR of the step's pictures against their target images, dB; NaN if they were not compared."""
        return self.terms.get("psnr", float("nan"))

    @staticmethod
    def of(message: training_pb2.StepDone, images: Images | None, timings: Timings) -> StepResult:
        """Reads the worker's message."""
        return StepResult(
            number=message.number,
            views=tuple(message.views),
            loss=message.loss if message.terms else float("nan"),
            terms=dict(message.terms),
            count=message.count,
            visible=message.visible,
            statistics={s.name: Statistics(s.norm, s.largest, s.not_finite) for s in message.statistics},
            density=DensityReport.of(message.density) if message.HasField("density") else None,
            discarded=message.discarded,
            images=images,
            timings=timings,
        )


def _array(named: tensor_pb2.NamedTensor, reader: PayloadReader) -> Array:
    array = reader.read(named.tensor, named.name)
    return array if named.tensor.dtype == dtypes.UINT8 else dtypes.to_float32(array, named.tensor.dtype)
