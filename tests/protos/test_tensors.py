"""Arrays survive the way through a payload, and malformed tensors are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lumigrad.protos import dtypes
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.lane_tensors import LEAST_BYTES, LaneReader, LaneWriter, part_of
from lumigrad.protos.streams import fits_message
from lumigrad.protos.tensors import ALIGNMENT, PayloadReader, PayloadWriter, rows_of
from lumigrad.v1 import render_pb2, tensor_pb2

NUMPY = ("<f4", "<f2", "u1", "<i4", "<i8", "?")
arrays = hnp.arrays(
    st.sampled_from(NUMPY).map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
)


def payload_of(writer: PayloadWriter) -> memoryview:
    return memoryview(bytearray(b"".join(writer.buffers)))


@given(st.lists(arrays, max_size=4))
def test_arrays_come_back_bit_by_bit(originals: list[Any]) -> None:
    writer = PayloadWriter()
    tensors = [writer.add(array) for array in originals]
    payload = payload_of(writer)
    assert len(payload) == writer.length
    reader = PayloadReader(payload)
    for tensor, original in zip(tensors, originals, strict=True):
        back = reader.read(tensor, "tensor")
        assert back.dtype == original.dtype
        assert back.shape == original.shape
        assert back.tobytes() == original.tobytes()


def test_tensors_are_viewed_in_place() -> None:
    writer = PayloadWriter()
    writer.add(np.arange(3, dtype=np.uint8))
    tensor = writer.add(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert tensor.payload.offset == ALIGNMENT
    payload = payload_of(writer)
    array = PayloadReader(payload).read(tensor, "tensor")
    payload[ALIGNMENT : ALIGNMENT + 4] = np.float32(7).tobytes()
    assert array[0, 0] == 7
    assert array.flags.writeable


def test_a_writer_takes_no_copy_of_arrays_in_c_order() -> None:
    array = np.zeros((4, 5), np.float32)
    writer = PayloadWriter()
    tensor = writer.add(array)
    array[0, 0] = 3
    assert PayloadReader(payload_of(writer)).read(tensor, "tensor")[0, 0] == 3


def test_arrays_in_other_orders_are_rearranged() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4).T
    writer = PayloadWriter()
    tensor = writer.add(array)
    assert (PayloadReader(payload_of(writer)).read(tensor, "tensor") == array).all()


def test_arrays_at_odd_places_are_copied_into_alignment() -> None:
    values = np.arange(4, dtype=np.float32)
    tensor = tensor_pb2.Tensor(dtype=dtypes.FLOAT32, shape=[4], payload={"offset": 1, "length": 16})
    array = PayloadReader(memoryview(b"\0" + values.tobytes())).read(tensor, "tensor")
    assert array.ctypes.data % 4 == 0
    assert (array == values).all()


def test_tensors_may_be_inline_and_empty_ones_nowhere() -> None:
    inline = tensor_pb2.Tensor(dtype=dtypes.INT32, shape=[2], inline=b"\1\0\0\0\2\0\0\0")
    assert PayloadReader().read(inline, "tensor").tolist() == [1, 2]
    empty = tensor_pb2.Tensor(dtype=dtypes.FLOAT32, shape=[0, 3])
    assert PayloadReader().read(empty, "tensor").shape == (0, 3)


def test_bfloat16_travels_as_bits() -> None:
    bits = dtypes.float32_to_bfloat16(np.array([1.5, -2.0], np.float32))
    writer = PayloadWriter()
    tensor = writer.add(bits, dtypes.BFLOAT16)
    back = PayloadReader(payload_of(writer)).read(tensor, "tensor")
    assert dtypes.to_float32(back, tensor.dtype).tolist() == [1.5, -2.0]
    with pytest.raises(ProtocolError, match="expected an array of uint16 for DTYPE_BFLOAT16"):
        writer.add(np.zeros(2, np.float32), dtypes.BFLOAT16)


F32 = dtypes.FLOAT32


@pytest.mark.parametrize(
    ("tensor", "field", "limit", "value"),
    [
        ({"dtype": 0, "shape": [1]}, "t.dtype", "a known DType", "DTYPE_UNSPECIFIED"),
        ({"dtype": 99, "shape": [1]}, "t.dtype", "a known DType", "99"),
        ({"dtype": F32, "shape": [-1, 4]}, "t.shape", "sizes of 0 to 2147483647", "[-1, 4]"),
        ({"dtype": F32, "shape": [-2, -2], "inline": bytes(16)}, "t.shape", "sizes of 0 to 2147483647", "[-2, -2]"),
        ({"dtype": F32, "shape": [1] * 33, "inline": bytes(4)}, "t.shape", "at most 32 sizes", "33"),
        ({"dtype": F32, "shape": [4], "inline": bytes(15)}, "t", "16 bytes for DTYPE_FLOAT32 4", "15 bytes"),
        ({"dtype": F32, "shape": [], "inline": b""}, "t", "4 bytes for DTYPE_FLOAT32 scalar", "0 bytes"),
        ({"dtype": F32, "shape": [1 << 62, 1 << 62], "inline": bytes(16)},
         "t.shape", "sizes of 0 to 2147483647", f"[{1 << 62}, {1 << 62}]"),
        ({"dtype": F32, "shape": [1 << 30, 0, 1 << 30], "inline": b""},
         "t.shape", f"at most {1 << 47} bytes in all", f"[{1 << 30}, 0, {1 << 30}]"),
        ({"dtype": F32, "shape": [4]}, "t", "inline bytes or a payload span", "neither"),
        ({"dtype": F32, "shape": [4], "payload": {"offset": 20, "length": 16}},
         "t.payload", "a span inside the payload of 32 bytes", "bytes 20 to 36"),
        ({"dtype": F32, "shape": [4], "payload": {"offset": (1 << 64) - 8, "length": 16}},
         "t.payload", "a span inside the payload of 32 bytes", f"bytes {(1 << 64) - 8} to {(1 << 64) + 8}"),
        ({"dtype": dtypes.BOOL, "shape": [2], "inline": b"\1\2"}, "t", "booleans stored as 0 or 1", "2"),
    ],
)  # fmt: skip
def test_malformed_tensors_are_refused_with_field_limit_and_value(
    tensor: dict[str, Any], field: str, limit: str, value: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        PayloadReader(memoryview(bytes(32))).read(tensor_pb2.Tensor(**tensor), "t")
    assert (caught.value.field, caught.value.limit, caught.value.value) == (field, limit, value)
    assert str(caught.value) == f"{field}: expected {limit}, got {value}"


@given(
    st.builds(
        tensor_pb2.Tensor,
        dtype=st.integers(0, 9),
        shape=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
        payload=st.builds(tensor_pb2.Span, offset=st.integers(0, (1 << 64) - 1), length=st.integers(0, (1 << 64) - 1)),
    )
)
def test_no_tensor_reads_outside_of_its_payload(tensor: tensor_pb2.Tensor) -> None:
    try:
        array = PayloadReader(memoryview(bytes(64))).read(tensor, "tensor")
    except ProtocolError:
        return
    assert array.nbytes <= 64


def test_types_that_the_contract_lacks_are_refused() -> None:
    with pytest.raises(ProtocolError, match="dtype: expected one of bool, float16, float32, int32, int64, uint8"):
        PayloadWriter().add(np.zeros(2, np.float64))


@given(arrays.filter(lambda array: array.ndim > 0), st.data())
def test_rows_of_a_tensor_are_a_tensor_in_its_place(original: Any, data: st.DataObject) -> None:
    writer = PayloadWriter()
    writer.add(np.arange(3, dtype=np.uint8))
    tensor = writer.add(original)
    start = data.draw(st.integers(0, len(original)))
    stop = data.draw(st.integers(start, len(original)))
    back = PayloadReader(payload_of(writer)).read(rows_of(tensor, start, stop), "rows")
    assert back.shape == original[start:stop].shape
    assert back.tobytes() == original[start:stop].tobytes()


@pytest.mark.parametrize("most_bytes", [math.inf, 64 << 10])
def test_small_arrays_share_a_region_that_is_reserved_for_them(most_bytes: float) -> None:
    regions: list[Any] = []

    def lease(nbytes: int) -> tuple[int, Any]:
        regions.append(np.zeros(nbytes, np.uint8))
        return len(regions) - 1, regions[-1]

    originals = [np.full((40, size), size, np.float16) for size in range(1, 80)]
    originals.append(np.ones((LEAST_BYTES,), np.uint8))
    writer = LaneWriter(lease, most_bytes=most_bytes)
    writer.reserve(originals)
    tensors = [writer.add(array) for array in originals]
    # The arrays have 253 KB together: too little for a region, unless the payload has to be short.
    assert len(regions) == (1 if most_bytes == math.inf else 2)
    reader = LaneReader(payload_of(writer), lambda span, field: part_of(regions[span.region], span, field))
    for tensor, original in zip(tensors, originals, strict=True):
        np.testing.assert_array_equal(reader.read(tensor, "tensor"), original)
    rows = reader.read(rows_of(tensors[5], 3, 9), "rows")
    np.testing.assert_array_equal(rows, originals[5][3:9])


@pytest.mark.parametrize("reserves", [True, False])
@pytest.mark.parametrize("count", [1, 30, 180, 220, 700])
def test_what_stays_in_the_payload_fits_a_message_with_the_header(count: int, reserves: bool) -> None:
    regions: list[Any] = []

    def lease(nbytes: int) -> tuple[int, Any]:
        regions.append(np.zeros(nbytes, np.uint8))
        return len(regions) - 1, regions[-1]

    most = 256 << 10
    # Payloads a little below the limit and larger ones; each array is named by some 60 bytes of header.
    originals = [np.zeros((1, 1, (most - 64 * count) // count // 4), np.float32) for _ in range(count)]
    writer = LaneWriter(lease, most_bytes=most)
    if reserves:
        writer.reserve(originals)
    named = [tensor_pb2.NamedTensor(name="expected_hit_distance", tensor=writer.add(array)) for array in originals]
    header = render_pb2.RenderReply(outputs=named, payload_bytes=writer.length)
    assert fits_message(header, writer, most)


def test_arrays_that_find_no_region_stay_in_the_payload() -> None:
    writer = LaneWriter(lambda nbytes: None)
    originals = [np.full(LEAST_BYTES // 2, number, np.uint8) for number in range(3)]
    writer.reserve(originals)
    tensors = [writer.add(array) for array in originals]
    assert writer.lane_bytes == 0
    reader = PayloadReader(payload_of(writer))
    for tensor, original in zip(tensors, originals, strict=True):
        np.testing.assert_array_equal(reader.read(tensor, "tensor"), original)
