"""The hand codec writes and reads what protobuf does, message by message."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.wire import Frame, FrameCodec, is_framed
from lumigrad.v1 import render_pb2, scene_pb2, tensor_pb2, timings_pb2

FRAMED = (
    scene_pb2.PutRequest,
    scene_pb2.UpdateRequest,
    scene_pb2.GetReply,
    render_pb2.RenderRequest,
    render_pb2.RenderReply,
    render_pb2.RenderBatchRequest,
    render_pb2.RenderBatchReply,
    render_pb2.BackwardRequest,
    render_pb2.BackwardReply,
)

tensors = st.builds(
    tensor_pb2.Tensor,
    dtype=st.integers(0, 7),
    shape=st.lists(st.integers(0, 1 << 40), max_size=4),
    inline=st.binary(max_size=20),
)
named_tensors = st.lists(st.builds(tensor_pb2.NamedTensor, name=st.text(max_size=5), tensor=tensors), max_size=3)
scenes = st.builds(scene_pb2.Scene, spheres=st.builds(scene_pb2.SphereCloud, positions=tensors, radii=tensors))
specs = st.builds(render_pb2.RenderSpec, scene=scenes, outputs=st.lists(st.text(max_size=5), max_size=3))
timings = st.builds(timings_pb2.Timings, total_milliseconds=st.floats(allow_nan=False))
lengths = st.integers(0, (1 << 64) - 1)

headers = st.one_of(
    st.builds(scene_pb2.PutRequest, scene=scenes, payload_bytes=lengths, content_hash=st.text(max_size=5)),
    st.builds(scene_pb2.UpdateRequest, scene_id=st.text(max_size=5), tensors=named_tensors, payload_bytes=lengths),
    st.builds(scene_pb2.GetReply, scene=scenes, payload_bytes=lengths),
    st.builds(render_pb2.RenderRequest, spec=specs, retain=st.booleans(), payload_bytes=lengths),
    st.builds(render_pb2.RenderReply, outputs=named_tensors, payload_bytes=lengths, timings=timings),
    st.builds(
        render_pb2.BackwardRequest,
        spec=st.builds(render_pb2.BackwardSpec, render=specs, output_gradients=named_tensors),
        payload_bytes=lengths,
    ),
    st.builds(render_pb2.BackwardReply, gradients=named_tensors, payload_bytes=lengths, timings=timings),
    *(st.just(kind()) for kind in FRAMED),
)
datas = st.one_of(st.binary(max_size=300), st.integers(1, 1 << 22).map(bytes))


def whole(message: Any, data: bytes) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.data = data
    return copy


def as_message(kind: Any, frame: Frame[Any]) -> Any:
    assert frame.message is None or not frame.message.data, "data stands apart"
    return whole(frame.message if frame.message is not None else kind(), bytes(frame.data))


def same_reading(kind: Any, raw: bytes) -> None:
    """Checks that codec and protobuf agree on any bytes, including their refusal."""
    codec = FrameCodec(kind)
    try:
        expected = kind.FromString(raw)
    except DecodeError:
        with pytest.raises(ProtocolError):
            codec.deserialize(raw)
        return
    read = as_message(kind, codec.deserialize(raw))
    assert read.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@given(headers, datas)
def test_a_header_with_data_is_written_as_protobuf_writes_it(header: Any, data: bytes) -> None:
    assert (
        FrameCodec(type(header)).serialize(Frame(header, memoryview(data))) == whole(header, data).SerializeToString()
    )


@given(st.sampled_from(FRAMED), datas)
def test_a_chunk_is_written_as_protobuf_writes_it(kind: Any, data: bytes) -> None:
    assert FrameCodec(kind).serialize(Frame(None, memoryview(data))) == kind(data=data).SerializeToString()


@given(headers, datas)
def test_what_protobuf_writes_is_read_back(header: Any, data: bytes) -> None:
    frame = FrameCodec(type(header)).deserialize(whole(header, data).SerializeToString())
    assert as_message(type(header), frame) == whole(header, data)


@given(st.sampled_from(FRAMED), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_as_protobuf_does(kind: Any, raw: bytes) -> None:
    same_reading(kind, raw)


@given(headers, datas, st.data())
def test_truncated_messages_are_read_or_refused_as_protobuf_does(header: Any, data: bytes, draw: Any) -> None:
    raw = whole(header, data[:300]).SerializeToString()
    same_reading(type(header), raw[: draw.draw(st.integers(0, len(raw)))])


@given(st.sampled_from(FRAMED), st.lists(st.binary(max_size=50), min_size=1, max_size=3), st.binary(max_size=20))
def test_split_and_unknown_fields_are_read_as_protobuf_does(kind: Any, pieces: list[bytes], unknown: bytes) -> None:
    # Field 1000, length-delimited, is in no message; the last occurrence of a field counts.
    stranger = b"\xc2\x3e" + bytes([len(unknown)]) + unknown
    parts = [kind(data=piece).SerializeToString() for piece in pieces]
    same_reading(kind, stranger.join(parts))
    same_reading(kind, b"".join(parts) + stranger)


@given(st.sampled_from(FRAMED), st.integers(1, 9), st.binary(max_size=100))
def test_overlong_lengths_are_read_or_refused_as_protobuf_does(kind: Any, padding: int, data: bytes) -> None:
    tag = kind(data=b"x").SerializeToString()[:1]
    length = bytes([len(data) | 0x80]) + b"\x80" * (padding - 1) + b"\x00"
    same_reading(kind, tag + length + data)


@pytest.mark.parametrize("length", [1, 100, 1000, 1 << 20])
def test_a_chunk_is_a_view_of_what_was_received(length: int) -> None:
    raw = render_pb2.RenderReply(data=bytes(length)).SerializeToString()
    frame = FrameCodec(render_pb2.RenderReply).deserialize(raw)
    assert frame.message is None
    assert frame.data.obj is raw


def test_the_codec_is_used_for_exactly_the_messages_with_a_payload() -> None:
    kinds = {
        message.full_name
        for file in (render_pb2, scene_pb2, tensor_pb2, timings_pb2)
        for message in file.DESCRIPTOR.message_types_by_name.values()
        if is_framed(message)
    }
    assert kinds == {kind.DESCRIPTOR.full_name for kind in FRAMED}
