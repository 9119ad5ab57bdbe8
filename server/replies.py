"""The sending end of a stream: header, payload, and the timings when it has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from lumigrad.protos import dtypes
from lumigrad.protos.chunks import SHORT_BYTES
from lumigrad.protos.dtypes import Array
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.v1 import distance_pb2, render_pb2, tensor_pb2

Forward = TypeVar("Forward", render_pb2.RenderReply, distance_pb2.QueryReply)
Backward = TypeVar("Backward", render_pb2.BackwardReply, distance_pb2.DistanceBackwardReply)
R = TypeVar(
    "R",
    render_pb2.RenderReply,
    render_pb2.BackwardReply,
    distance_pb2.QueryReply,
    distance_pb2.DistanceBackwardReply,
)


def named_tensors(arrays: Mapping[str, Array], payload: PayloadWriter) -> list[tensor_pb2.NamedTensor]:
    """Append arrays to a payload."""
    return [named_tensor(name, array, payload) for name, array in arrays.items()]


def named_tensor(name: str, array: Array, payload: PayloadWriter) -> tensor_pb2.NamedTensor:
    """Append an array to a payload; uint16 stands for the bits of bfloat16."""
    dtype = dtypes.BFLOAT16 if array.dtype == np.uint16 else None
    return tensor_pb2.NamedTensor(name=name, tensor=payload.add(array, dtype))


def timed(header: R, payload: PayloadWriter, expect_end: Callable[[], None], call: Call) -> Iterator[Frame[R]]:
    """The frames of a reply; the last one carries the timings, and so cannot be counted in them.

    Calls `expect_end` to see to it that the request has ended: of a long reply while its last chunk is on its way.
    """
    if payload.length <= SHORT_BYTES:
        expect_end()
        header.timings.CopyFrom(call.times.message())
        yield from frames_of(header, payload)
        return
    with call.times.stage("encode"):
        yield from frames_of(header, payload)
    expect_end()
    yield Frame(type(header)(timings=call.times.message()))
