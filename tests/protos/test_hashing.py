"""The content hash is the one that scene.proto describes, whatever way the tensors travel."""

from __future__ import annotations

import hashlib

import numpy as np

from lumigrad.protos.hashing import content_hash
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import scene_pb2

POSITIONS = np.arange(6, dtype="<f4").reshape(2, 3)
COLORS = np.arange(2, dtype="<f4").reshape(2, 1)
RADII = np.array([0.5, 1.0], "<f4")
# sha256sum of the text and bytes below, so that no change of ours can move the name of a scene.
EXPECTED = "cb1f96e940151a0bd0d0c4269eb01fdeaa1ad92e94c89ae4626e2185892f806b"


def test_the_hash_is_over_names_types_shapes_and_bytes_by_field_number() -> None:
    text = (
        b"positions:DTYPE_FLOAT32:2x3;" + POSITIONS.tobytes()
        + b"colors:DTYPE_FLOAT32:2x1;" + COLORS.tobytes()
        + b"radii:DTYPE_FLOAT32:2;" + RADII.tobytes()
    )  # fmt: skip
    assert hashlib.sha256(text).hexdigest() == EXPECTED
    payload = PayloadWriter()
    # Not in the order of the field numbers: the order of arrival must not matter.
    cloud = scene_pb2.SphereCloud(
        radii=payload.add(RADII), colors=payload.add(COLORS), positions=payload.add(POSITIONS)
    )
    reader = PayloadReader(memoryview(b"".join(payload.buffers)))
    assert content_hash(cloud, reader.read) == EXPECTED


def test_inline_and_empty_tensors_hash_by_their_content() -> None:
    cloud = scene_pb2.SphereCloud()
    cloud.positions.dtype = 1
    cloud.positions.shape.extend([0, 3])
    cloud.radii.dtype = 1
    cloud.radii.shape.append(2)
    cloud.radii.inline = RADII.tobytes()
    text = b"positions:DTYPE_FLOAT32:0x3;radii:DTYPE_FLOAT32:2;" + RADII.tobytes()
    assert content_hash(cloud, PayloadReader().read) == hashlib.sha256(text).hexdigest()
