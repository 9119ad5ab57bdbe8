"""Payloads are split into chunks and put together again, and wrong lengths are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumigrad.protos.chunks import CHUNK_BYTES, SHORT_BYTES, PayloadAssembler, split
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.streams import collect, frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 20))
def test_chunks_are_full_but_for_the_last_and_joined_give_the_payload(pieces: list[bytes], size: int) -> None:
    chunks = list(split(map(memoryview, pieces), size))
    assert b"".join(chunks) == b"".join(pieces)
    assert all(chunk.nbytes == size for chunk in chunks[:-1])
    assert all(0 < chunk.nbytes <= size for chunk in chunks[-1:])


def test_chunks_inside_a_buffer_are_views() -> None:
    buffer = memoryview(bytearray(10))
    assert [chunk.obj is buffer.obj for chunk in split([buffer], 4)] == [True, True, True]


def test_a_length_above_the_limit_allocates_nothing() -> None:
    def allocate(length: int) -> memoryview:
        raise AssertionError(f"allocated {length}")

    with pytest.raises(ProtocolError, match="payload_bytes: expected at most 100 bytes, got 101"):
        PayloadAssembler(101, 100, allocate)


def test_too_many_bytes_are_refused_before_they_are_stored() -> None:
    assembler = PayloadAssembler(10, 100)
    assembler.add(memoryview(bytes(8)))
    with pytest.raises(ProtocolError, match="data: expected payload_bytes = 10 bytes in all, got at least 11"):
        assembler.add(memoryview(bytes(3)))


def test_too_few_bytes_are_refused_at_the_end() -> None:
    assembler = PayloadAssembler(10, 100)
    assembler.add(memoryview(bytes(9)))
    with pytest.raises(ProtocolError, match="data: expected payload_bytes = 10 bytes in all, got 9"):
        assembler.finish()


@pytest.mark.parametrize(
    ("length", "frames"),
    [(0, 1), (SHORT_BYTES, 1), (SHORT_BYTES + 1, 2), (CHUNK_BYTES, 2), (3 * CHUNK_BYTES, 4), (3 * CHUNK_BYTES + 1, 5)],
)
def test_a_header_and_its_payload_make_a_stream(length: int, frames: int) -> None:
    array = np.random.default_rng(1).integers(0, 255, length, np.uint8)
    payload = PayloadWriter()
    header = render_pb2.BackwardReply()
    header.gradients.add(name="x", tensor=payload.add(array))
    stream: list[Frame[render_pb2.BackwardReply]] = list(frames_of(header, payload))
    assert len(stream) == frames
    assert header.payload_bytes == length
    received = collect(stream[0], iter(stream[1:]), PayloadAssembler(length, length), lambda _: None)
    assert (PayloadReader(received).read(header.gradients[0].tensor, "x") == array).all()


def test_fields_after_the_header_are_handed_over() -> None:
    trailer = render_pb2.RenderReply(timings={"total_milliseconds": 3})
    stream = iter([Frame(None, memoryview(b"ab")), Frame(trailer)])
    later: list[render_pb2.RenderReply] = []
    first = Frame(render_pb2.RenderReply(payload_bytes=2))
    assert bytes(collect(first, stream, PayloadAssembler(2, 2), later.append)) == b"ab"
    assert later == [trailer]
