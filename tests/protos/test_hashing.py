"""The content hash is the one that scene.proto describes, however the tensors travel."""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from lumigrad.protos.hashing import content_hash
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import scene_pb2, world_pb2

POSITIONS = np.arange(6, dtype="<f4").reshape(2, 3)
COLORS = np.arange(2, dtype="<f4").reshape(2, 1)
RADII = np.array([0.5, 1.0], "<f4")
# The sha256sum of the text and bytes below; a constant, so that no change of ours can alter the name of a scene.
EXPECTED = "cb1f96e940151a0bd0d0c4269eb01fdeaa1ad92e94c89ae4626e2185892f806b"


def test_the_hash_is_over_names_types_shapes_and_bytes_by_field_number() -> None:
    text = (
        b"positions:DTYPE_FLOAT32:2x3;" + POSITIONS.tobytes()
        + b"colors:DTYPE_FLOAT32:2x1;" + COLORS.tobytes()
        + b"radii:DTYPE_FLOAT32:2;" + RADII.tobytes()
    )  # fmt: skip
    assert hashlib.sha256(text).hexdigest() == EXPECTED
    payload = PayloadWriter()
    # The fields are not in the order of their numbers: the order of arrival must not matter.
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


def doubles(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def test_a_world_hashes_by_its_obstacles() -> None:
    grid = np.arange(8, dtype="<f4").reshape(2, 2, 2)
    payload = PayloadWriter()
    world = world_pb2.World(
        obstacles=[
            world_pb2.Obstacle(name="tür", mesh_id="abc", sign=world_pb2.SIGN_POLICY_RAYS, disabled=True),
            world_pb2.Obstacle(cuboid=world_pb2.Cuboid(size=[1, 2, 3]), environment=2),
            world_pb2.Obstacle(
                grid=world_pb2.VoxelGrid(distances=payload.add(grid), voxel_size=0.1),
                pose=world_pb2.Pose(values=[1, 2, 3, 0, 0, 0, 2]),
            ),
        ]
    )
    text = (
        b"world:3;obstacle:4:t\xc3\xbcr;mesh:abc;pose:" + doubles(0, 0, 0, 1, 0, 0, 0)
        + b"disabled:1;environment:0;sign:3;obstacle:1:1;cuboid:" + doubles(1, 2, 3)
        + b"pose:" + doubles(0, 0, 0, 1, 0, 0, 0) + b"disabled:0;environment:2;sign:1;obstacle:1:2;"
        + b"grid:DTYPE_FLOAT32:2x2x2;" + grid.tobytes() + doubles(0.1)
        + b"pose:" + doubles(1, 2, 3, 0, 0, 0, 2) + b"disabled:0;environment:0;sign:1;"
    )  # fmt: skip
    reader = PayloadReader(memoryview(b"".join(payload.buffers)))
    assert content_hash(world, reader.read) == hashlib.sha256(text).hexdigest()


def test_saying_a_default_of_a_world_does_not_change_its_hash() -> None:
    silent = world_pb2.World(obstacles=[world_pb2.Obstacle(mesh_id="abc")])
    said = world_pb2.World(
        environments=1,
        obstacles=[
            world_pb2.Obstacle(
                name="0",
                mesh_id="abc",
                pose=world_pb2.Pose(values=[0, 0, 0, 1, 0, 0, 0]),
                sign=world_pb2.SIGN_POLICY_AUTO,
            )
        ],
    )
    read = PayloadReader().read
    assert content_hash(silent, read) == content_hash(said, read)
    text = b"world:1;obstacle:1:0;mesh:abc;pose:" + doubles(0, 0, 0, 1, 0, 0, 0) + b"disabled:0;environment:0;sign:1;"
    assert content_hash(silent, read) == hashlib.sha256(text).hexdigest()
    other = world_pb2.World(obstacles=[world_pb2.Obstacle(mesh_id="abc")], environments=2)
    assert content_hash(other, read) != content_hash(silent, read)
