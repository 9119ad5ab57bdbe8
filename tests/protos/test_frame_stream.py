"""The messages of RenderStream: the hand codec writes and reads the same bytes as protobuf."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.frame_stream import (
    BASE_BYTES,
    FRAME_BYTES,
    FrameBase,
    frame_reply,
    is_base,
    read_frame_reply,
    render_replies,
)
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import camera_pb2, render_pb2

NUMBERS = st.integers(0, (1 << 64) - 1)


def payload_of(length: int) -> PayloadWriter:
    payload = PayloadWriter()
    if length:
        payload.add(np.arange(length, dtype=np.uint8))
    return payload


@pytest.mark.parametrize("length", [0, 1, 100, 70_000, FRAME_BYTES, FRAME_BYTES + 1, 5 << 20])
def test_replies_are_those_of_protobuf(length: int) -> None:
    header = render_pb2.RenderReply(context_id="state")
    header.timings.total_milliseconds = 1.5
    payload = payload_of(length)
    messages = [frame_reply(7, pieces) for pieces in render_replies(header, payload)]
    assert len(messages) == (1 if length <= FRAME_BYTES else 1 - (-length // (1 << 20)))
    parsed = [render_pb2.FrameReply.FromString(raw) for raw in messages]
    assert {message.number for message in parsed} == {7}
    assert b"".join(message.reply.data for message in parsed) == b"".join(payload.buffers)
    answers = [read_frame_reply(raw) for raw in messages]
    assert b"".join(answer.data for answer in answers) == b"".join(payload.buffers)
    assert answers[0].reply == header
    assert all(answer.status is None for answer in answers)


@given(
    NUMBERS,
    st.binary(max_size=300),
    st.integers(0, 200_000),
    st.booleans(),
    st.lists(st.text(max_size=9), max_size=3),
    st.binary(max_size=20),
)
def test_any_reply_is_read_as_by_protobuf(
    number: int, head: bytes, length: int, has_status: bool, names: list[str], unknown: bytes
) -> None:
    message = render_pb2.FrameReply(number=number)
    message.reply.data = (head * (length // max(1, len(head)) + 1))[:length]
    message.reply.timings.total_milliseconds = 2.5
    for name in names:
        message.reply.outputs.add(name=name)
    if has_status:
        message.status.code = 5
    # A field that this version does not know.
    raw = message.SerializeToString() + b"\xfa\x07" + bytes([len(unknown)]) + unknown
    answer = read_frame_reply(raw)
    assert answer.number == number
    assert answer.data == message.reply.data
    assert (answer.status is not None, answer.reply is None) == (has_status, has_status)
    if answer.reply is not None:
        message.reply.ClearField("data")
        assert answer.reply == message.reply


@given(st.binary(max_size=200), st.integers(0, 80_000))
def test_any_bytes_are_refused_or_read_as_by_protobuf(start: bytes, more: int) -> None:
    raw = start + bytes(more)
    try:
        expected = render_pb2.FrameReply.FromString(raw)
    except Exception:
        with pytest.raises(ProtocolError):
            read_frame_reply(raw)
        return
    answer = read_frame_reply(raw)
    assert (answer.number, bytes(answer.data)) == (expected.number, expected.reply.data)


@given(st.integers(1, 5), st.booleans())
def test_cameras_complete_the_request_before(count: int, retain: bool) -> None:
    request = render_pb2.RenderRequest(retain=retain)
    request.spec.scene_ref.scene_id = "scene"
    request.spec.spheres.gamma = 0.5
    request.spec.outputs.append("color")
    request.formats.add(name="color", quality=3)
    request.spec.cameras.add(width=3)
    cameras = [camera_pb2.Camera(width=width + 1, height=2) for width in range(count)]
    raw = FrameBase.of(request).request(cameras)
    del request.spec.cameras[:]
    request.spec.cameras.extend(cameras)
    assert raw == request.SerializeToString()


def test_requests_that_carry_more_than_cameras_must_be_sent_whole() -> None:
    request = render_pb2.RenderRequest()
    request.spec.scene_ref.scene_id = "scene"
    assert is_base(request)
    for change in (
        lambda it: it.spec.tensors.add(name="colors"),
        lambda it: it.spec.scene.SetInParent(),
        lambda it: setattr(it, "payload_bytes", 1),
        lambda it: it.spec.outputs.append("x" * BASE_BYTES),
    ):
        changed = render_pb2.RenderRequest()
        changed.CopyFrom(request)
        change(changed)
        assert not is_base(changed)
