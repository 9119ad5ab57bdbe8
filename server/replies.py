"""The sending end of a stream: header, payload, and the timings when it has gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from lumigrad.protos import dtypes
from lumigrad.protos.chunks import SHORT_BYTES
from lumigrad.protos.dtypes import Array
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.server.uploads import Receiver
from lumigrad.v1 import render_pb2, tensor_pb2

R = TypeVar("R", render_pb2.RenderReply, render_pb2.BackwardReply)


def named_tensors(arrays: Mapping[str, Array], payload: PayloadWriter) -> list[tensor_pb2.NamedTensor]:
    """Append arrays to a payload; uint16 stands for the bits of bfloat16."""
    return [
        tensor_pb2.NamedTensor(
            name=name, tensor=payload.add(array, dtypes.BFLOAT16 if array.dtype.name == "uint16" else None)
        )
        for name, array in arrays.items()
    ]


def timed(header: R, payload: PayloadWriter, receiver: Receiver[Any], call: Call) -> Iterator[Frame[R]]:
    """The frames of a reply; the last one carries the timings, and so cannot be counted in them.

    Also sees to it that the request has ended: of a long reply while its last chunk is on its way.
    """
    if payload.length <= SHORT_BYTES:
        receiver.expect_end()
        header.timings.CopyFrom(call.times.message())
        yield from frames_of(header, payload)
        return
    with call.times.stage("encode"):
        yield from frames_of(header, payload)
    receiver.expect_end()
    yield Frame(type(header)(timings=call.times.message()))
