"""The content hash that names scenes, as scene.proto and world.proto define it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from google.protobuf.message import Message

from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.worlds import environments_of, name_of, pose_of, poses_of, sign_of
from lumigrad.v1 import tensor_pb2, world_pb2

Read = Callable[[tensor_pb2.Tensor, str], Array]


def tensors_of(content: Message) -> Iterator[tuple[str, tensor_pb2.Tensor]]:
    """Yield the tensors that are set in a message such as SphereCloud, with their names, by ascending field number."""
    for descriptor, value in content.ListFields():
        if isinstance(value, tensor_pb2.Tensor):
            yield descriptor.name, value


def content_hash(content: Message, read: Read) -> str:
    """Return the lower-case hexadecimal SHA-256 of a scene's content; `read` is PayloadReader.read."""
    digest = hashlib.sha256()
    for piece in _of_world(content, read) if isinstance(content, world_pb2.World) else _of_tensors(content, read):
        digest.update(piece)
    return digest.hexdigest()


def _of_tensors(content: Message, read: Read) -> Iterator[bytes | memoryview]:
    for name, tensor in tensors_of(content):
        yield from _of_tensor(name, tensor, name, read)


def _of_tensor(name: str, tensor: tensor_pb2.Tensor, field: str, read: Read) -> Iterator[bytes | memoryview]:
    sizes = "x".join(map(str, tensor.shape))
    yield f"{name}:{dtypes.name(tensor.dtype)}:{sizes};".encode()
    yield read(tensor, field).reshape(-1).view(np.uint8).data


def _of_world(world: world_pb2.World, read: Read) -> Iterator[bytes | memoryview]:
    yield f"world:{environments_of(world)};".encode()
    obstacles = list(world.obstacles)
    poses = poses_of(obstacles)
    posed = [_doubles(pose_of(obstacle)) for obstacle in obstacles] if poses is None else _rows(poses)
    for index, (obstacle, pose) in enumerate(zip(obstacles, posed, strict=True)):
        name = name_of(obstacle, index).encode()
        head = b"obstacle:%d:%s;" % (len(name), name)
        state = (obstacle.disabled, obstacle.environment, sign_of(obstacle))
        tail = b"pose:%sdisabled:%d;environment:%d;sign:%d;" % (pose, *state)
        kind = obstacle.WhichOneof("shape")
        if kind == "grid":
            yield head
            grid = obstacle.grid
            yield from _of_tensor("grid", grid.distances, f"obstacles[{index}].grid.distances", read)
            yield _doubles([grid.voxel_size]) + tail
        elif kind == "cuboid":
            yield b"%scuboid:%s%s" % (head, _doubles(obstacle.cuboid.size), tail)
        elif kind == "mesh_id":
            yield b"%smesh:%s;%s" % (head, obstacle.mesh_id.encode(), tail)
        else:
            yield head + tail


def _rows(numbers: Array) -> list[bytes]:
    """Return the bytes of each row."""
    raw, length = numbers.tobytes(), numbers.shape[1] * numbers.itemsize
    return [raw[start : start + length] for start in range(0, len(raw), length)]


def _doubles(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values[:])
