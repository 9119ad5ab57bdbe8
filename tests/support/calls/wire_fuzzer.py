"""A fuzzing program: atheris searches for bytes that the codec reads differently from protobuf.

Usage: wire_fuzzer.py -max_total_time=SECONDS -seed=NUMBER, and other options of libFuzzer.
"""

from __future__ import annotations

import sys

import atheris
from google.protobuf.message import DecodeError

from lumigrad.protos import wire
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.wire import FrameCodec
from lumigrad.v1 import distance_pb2, render_pb2, scene_pb2

KINDS = (
    scene_pb2.PutRequest,
    scene_pb2.GetReply,
    render_pb2.RenderRequest,
    render_pb2.RenderReply,
    render_pb2.BackwardRequest,
    distance_pb2.QueryRequest,
)
# Instruments single functions, because atheris' import hook does not work with an editable install.
for name in ("serialize", "deserialize", "_data_start"):
    setattr(FrameCodec, name, atheris.instrument_func(getattr(FrameCodec, name)))
for name in ("parse", "varint"):
    setattr(wire, name, atheris.instrument_func(getattr(wire, name)))
CODECS = [FrameCodec(kind) for kind in KINDS]


@atheris.instrument_func
def check(raw: bytes) -> None:
    """Check that codec and protobuf decode or refuse alike, and that protobuf decodes what the codec encodes."""
    if not raw:
        return
    number, raw = raw[0] % len(KINDS), raw[1:]
    kind, codec = KINDS[number], CODECS[number]
    try:
        expected = kind.FromString(raw)
    except DecodeError:
        expected = None
    try:
        frame = codec.deserialize(raw)
    except ProtocolError:
        assert expected is None, "only the codec refuses"
        return
    assert expected is not None, "only protobuf refuses"
    assert bytes(frame.data) == expected.data
    fields = kind() if frame.message is None else frame.message
    again = kind.FromString(codec.serialize(frame))
    assert again.data == expected.data
    expected.ClearField("data")
    # Bytes are compared, because NaN is not equal to itself; unknown fields are in both.
    assert fields.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
