"""What a step of a training is asked for with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from lumigrad.client.errors import InvalidArgument
from lumigrad.protos import dtypes
from lumigrad.v1 import training_pb2

ImageFormat = Literal["float32", "float16", "bfloat16", "uint8"]
_DTYPES = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16, "uint8": dtypes.UINT8}


def step_message(
    number: int, views: Sequence[int], batch: int, outputs: tuple[str, ...], image_format: str, own_loss: bool
) -> training_pb2.Step:
    """The contract's; without `views` the worker chooses `batch` of them."""
    if image_format not in get_args(ImageFormat):
        text = f"expected one of {', '.join(get_args(ImageFormat))}, got {image_format!r}"
        raise InvalidArgument.of("image_format", text)
    return training_pb2.Step(
        number=number,
        views=views,
        batch=0 if views else batch,
        outputs=outputs,
        output_dtype=_DTYPES[image_format],
        own_loss=own_loss,
    )
