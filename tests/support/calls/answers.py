"""Answers to calls that are sent as bytes, in a form that can be compared, and other encodings of requests."""

from __future__ import annotations

import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from PIL import Image

from lumigrad.protos import details
from lumigrad.protos.lane_tensors import part_of
from lumigrad.protos.lanes import ToCaller
from lumigrad.protos.service import SINGLE_REPLY
from lumigrad.protos.wire import varint
from lumigrad.v1 import distance_pb2, image_pb2, render_pb2, tensor_pb2
from support.calls.raw_calls import SECONDS, RawClient
from support.calls.raw_lane import RawLane

# A field that no message has: number 2000, a varint.
UNKNOWN = b"\x80\x7d\x01"
# The methods whose answers can be compared, and their replies.
_REPLIES: Mapping[str, type[Message]] = {
    "RenderService/Render": render_pb2.RenderReply,
    "RenderService/Backward": render_pb2.BackwardReply,
    "DistanceService/Query": distance_pb2.QueryReply,
    "DistanceService/Backward": distance_pb2.DistanceBackwardReply,
}
_LENGTH = re.compile(r"\d+ bytes that are not")


@dataclass(frozen=True)
class Answer:
    """The outcome of a call, without what differs between calls: times, and the names of calls, states and regions.

    Attributes:
        code: of the status.
        text: of an error; lengths of malformed requests are left out.
        details: of an error.
        header: fields of the reply.
        values: digests of the bytes of each output, or gradient.
        stages: of the kernels that have times.
        keys: of the metadata.
    """

    code: str
    text: str = ""
    details: tuple[str, ...] = ()
    header: str = ""
    values: tuple[str, ...] = ()
    stages: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()

    @property
    def is_ok(self) -> bool:
        """Whether there was a reply."""
        return self.code == "OK"


class Asker:
    """Makes calls with a single reply, a stream of replies, a lane for the values or, for Renders, frames."""

    WAYS = ("single", "stream", "lane")
    RENDER_WAYS = (*WAYS, "frames")

    def __init__(self, client: RawClient, *, keeps: bool = False) -> None:
        """Opens the lane. With `keeps`, states that calls retain stay, and `kept` is the name of the last."""
        self._client = client
        self._keeps = keeps
        self.kept = ""
        # The way of calls that name none.
        self.way = "single"
        self._lane = RawLane(client)
        self._leases = itertools.count(1)

    def close(self) -> None:
        """Closes the lane."""
        self._lane.close()

    @contextmanager
    def uploaded(self, values: np.ndarray, dtype: int) -> Iterator[tensor_pb2.Tensor]:
        """A tensor in a region of the lane for the length of a `with` block; `values` are its bits."""
        lease = next(self._leases)
        region = self._lane.lease(lease, values.nbytes)
        self._lane.regions[region][: values.nbytes] = values.reshape(-1).view(np.uint8)
        span = tensor_pb2.RegionSpan(region=region, length=values.nbytes)
        yield tensor_pb2.Tensor(dtype=dtype, shape=values.shape, region=span)  # type: ignore[arg-type]
        self._lane.release(lease)

    def ask(
        self,
        request: bytes,
        way: str = "",
        method: str = "RenderService/Render",
        metadata: Mapping[str, str] | None = None,
    ) -> Answer:
        """Sends a request and reads the whole reply; a state that was retained is released."""
        way = way or self.way
        if way == "frames":
            return self._ask_frames(request)
        lease = next(self._leases)
        entries = [*(metadata or {}).items(), *([SINGLE_REPLY] if way != "stream" else [])]
        if way == "lane":
            entries += self._lane.metadata(lease)
        stream = self._client.channel.stream_stream(f"/lumigrad.v1.{method}")
        call = stream(iter((request,)), timeout=SECONDS, metadata=entries)
        try:
            return self._reply([_REPLIES[method].FromString(raw) for raw in call], _keys(call))
        except grpc.RpcError as error:
            return _failed(error, _keys(call))
        finally:
            if way == "lane":
                self._lane.release(lease)

    def _ask_frames(self, request: bytes) -> Answer:
        """A stream of two frames: the request, and, if that succeeds and retains nothing, its cameras alone."""
        stream = self._client.channel.stream_stream("/lumigrad.v1.RenderService/RenderStream")
        frames = [b"\x12" + varint(len(request)) + request]
        parsed = render_pb2.RenderRequest.FromString(request)
        if not parsed.retain:
            frames.append(render_pb2.FrameRequest(cameras=parsed.spec.cameras).SerializeToString())
        numbered = (b"\x08" + varint(number) + frame for number, frame in enumerate(frames, 1))
        answers: dict[int, list[Any]] = {}
        for raw in stream(numbered, timeout=SECONDS):
            reply = render_pb2.FrameReply.FromString(raw)
            answers.setdefault(reply.number, []).append(reply)
        first, *others = (self._frame(replies) for replies in answers.values())
        assert not first.is_ok or all(other == first for other in others), "a frame of cameras alone differs"
        return first

    def _frame(self, messages: list[Any]) -> Answer:
        status = messages[0].status
        if not status.code:
            return self._reply([message.reply for message in messages], frozenset())
        code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
        found = details.unpack((details.trailer(status),))
        return Answer(code.name, _without_length(status.message), tuple(_without_length(str(each)) for each in found))

    def _reply(self, messages: list[Any], keys: frozenset[str]) -> Answer:
        reply = messages[0]
        data = b"".join(message.data for message in messages)
        stages = {stage.name for message in messages for stage in message.timings.stages}
        assert sum(message.timings.total_milliseconds for message in messages) > 0
        entries = reply.gradients if hasattr(reply, "gradients") else reply.outputs
        values = tuple(_digest(self._bytes(each.tensor, data), each) for each in entries)
        if any(entry.encoded.format == image_pb2.IMAGE_FORMAT_PNG for entry in entries):
            reply.payload_bytes = 0
        if getattr(reply, "context_id", ""):
            self.kept = reply.context_id
            if not self._keeps:
                self._client.render_stub.Release(render_pb2.ReleaseRequest(context_id=self.kept), timeout=SECONDS)
            reply.context_id = "retained"
        for field in ("data", "timings"):
            reply.ClearField(field)
        kernels = frozenset(name for name in stages if name.startswith("kernel."))
        return Answer("OK", header=str(reply), values=values, stages=kernels, keys=keys)

    def _bytes(self, tensor: Any, data: bytes) -> bytes:
        """The bytes of a tensor; of their location, the message keeps only the kind."""
        where = tensor.WhichOneof("location")
        if where == "inline":
            return bytes(tensor.inline)
        span = getattr(tensor, where)
        if where == "region":
            while span.region not in self._lane.regions:
                self._lane.expect(ToCaller.REGION)
            found = part_of(self._lane.regions[span.region], span, "region").tobytes()
        else:
            found = data[span.offset : span.offset + span.length]
        span.Clear()
        return found


# Bit type, sign bit and infinity of each floating-point type.
_FLOATS: dict[int, Any] = {
    tensor_pb2.DTYPE_FLOAT32: (np.uint32, np.uint32(1 << 31), np.uint32(0x7F800000)),
    tensor_pb2.DTYPE_FLOAT16: (np.uint16, np.uint16(1 << 15), np.uint16(0x7C00)),
    tensor_pb2.DTYPE_BFLOAT16: (np.uint16, np.uint16(1 << 15), np.uint16(0x7F80)),
}


def _digest(content: bytes, entry: Any) -> str:
    """A digest of an output's bytes, or of PNG files' pixels, since ISA-L does not always write the same bytes."""
    if entry.encoded.format == image_pb2.IMAGE_FORMAT_PNG:
        ends = list(itertools.accumulate(entry.encoded.lengths))
        files = [content[end - length : end] for end, length in zip(ends, entry.encoded.lengths, strict=True)]
        content = b"".join(np.asarray(Image.open(io.BytesIO(file))).tobytes() for file in files)
        entry.encoded.ClearField("lengths")
        entry.tensor.ClearField("shape")
    elif entry.tensor.dtype in _FLOATS and not entry.encoded.format:
        # The NaN that results from adding several depends on the order of operands in an instruction.
        bits, sign, infinity = _FLOATS[entry.tensor.dtype]
        values = np.frombuffer(content, bits)
        content = np.where(values & ~sign > infinity, infinity + bits(1), values).tobytes()
    return hashlib.sha256(content).hexdigest()


def _keys(call: Any) -> frozenset[str]:
    return frozenset(key for key, _ in (*(call.initial_metadata() or ()), *(call.trailing_metadata() or ())))


def _failed(error: Any, keys: frozenset[str]) -> Answer:
    found = tuple(_without_length(str(detail)) for detail in details.unpack(error.trailing_metadata()))
    return Answer(error.code().name, _without_length(error.details()), found, keys=keys)


def _without_length(text: str) -> str:
    return _LENGTH.sub("bytes that are not", text)


def _reversed(message: Message) -> bytes:
    """Encodes all fields in reverse order, in nested messages as well."""
    return b"".join(_each_field(message, lambda fields: reversed(list(fields)), _reversed))


def _in_pieces(message: Message) -> bytes:
    """Splits packed numbers into two values."""
    return b"".join(_each_field(message, iter, _in_pieces))


def _each_field(
    message: Message, order: Callable[[Iterable[Any]], Iterable[Any]], inner: Callable[[Message], bytes]
) -> Iterator[bytes]:
    for field, value in order(message.ListFields()):
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                content = inner(each)
                yield varint(field.number << 3 | 2) + varint(len(content)) + content
            continue
        is_split = field.is_repeated and len(value) > 1 and field.type == FieldDescriptor.TYPE_DOUBLE
        for part in (value[:1], value[1:]) if is_split and inner is _in_pieces else (value,):
            alone = type(message)()
            if field.is_repeated:
                getattr(alone, field.name).extend(part)
            else:
                setattr(alone, field.name, part)
            yield alone.SerializeToString()


# Equivalent encodings of a message.
ENCODINGS: Mapping[str, Callable[[Message], bytes]] = {
    "reversed": _reversed,
    "in pieces": _in_pieces,
    "unknown field first": lambda message: UNKNOWN + message.SerializeToString(),
    "unknown field last": lambda message: message.SerializeToString() + UNKNOWN,
}
