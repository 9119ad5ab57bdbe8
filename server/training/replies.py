"""Replies to the requests of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

import torch

from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.core.limits import require
from lumigrad.server.core.streams import named_tensors
from lumigrad.server.training.requests import Request
from lumigrad.server.training.step import Done
from lumigrad.v1 import training_pb2

Replies = Iterator[Frame[training_pb2.TrainReply]]

_TORCH = {
    0: torch.float32,
    dtypes.FLOAT32: torch.float32,
    dtypes.FLOAT16: torch.float16,
    dtypes.BFLOAT16: torch.bfloat16,
    dtypes.UINT8: torch.uint8,
}


def check_dtype(asked: training_pb2.Step) -> None:
    """Raise an InvalidArgumentError for an unsupported image dtype."""
    limit = "DTYPE_FLOAT32, DTYPE_FLOAT16, DTYPE_BFLOAT16 or DTYPE_UINT8"
    require(asked.output_dtype in _TORCH, "step.output_dtype", limit, dtypes.name(asked.output_dtype))
    is_fit = asked.output_dtype != dtypes.UINT8 or all(name in ("color", "alpha") for name in asked.outputs)
    require(is_fit, "step.output_dtype", "another type for outputs beside color and alpha", "DTYPE_UINT8")


def converted(tensor: torch.Tensor, dtype: int) -> torch.Tensor:
    """Convert an image to the requested dtype."""
    if dtype == dtypes.UINT8:
        return (tensor.clamp(0.0, 1.0) * 255.0).round_().to(torch.uint8)
    return tensor.to(_TORCH[dtype])


def framed(reply: training_pb2.TrainReply, request: Request) -> Frame[training_pb2.TrainReply]:
    """A reply without a payload."""
    reply.timings.CopyFrom(request.part.times.message())
    return Frame(reply)


def images(views: Sequence[int], arrays: Mapping[str, Array], request: Request) -> Replies:
    """The reply with a step's images."""
    reply, payload = training_pb2.TrainReply(), PayloadWriter()
    reply.images.number = request.message.step.number
    reply.images.views.extend(views)
    reply.images.outputs.extend(named_tensors(arrays, payload))
    yield from frames_of(reply, payload)


def done(number: int, result: Done) -> training_pb2.StepDone:
    """The message that describes a finished step."""
    message = training_pb2.StepDone(
        number=number,
        views=result.views,
        count=result.count,
        visible=result.visible,
        statistics=[
            training_pb2.Statistic(name=name, norm=sqrt(s.squares), largest=s.largest, not_finite=s.not_finite)
            for name, s in result.statistics.items()
        ],
        density=result.density,
        discarded=result.discarded,
    )
    if result.loss is not None:
        message.loss = result.loss.total
        message.terms.update(result.loss.terms)
    return message
