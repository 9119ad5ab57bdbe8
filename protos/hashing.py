"""The content hash that names scenes, as scene.proto defines it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
from google.protobuf.message import Message

from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.v1 import tensor_pb2


def tensors_of(content: Message) -> Iterator[tuple[str, tensor_pb2.Tensor]]:
    """The tensors that are set in a message such as SphereCloud, with their names, by ascending field number."""
    for descriptor, value in content.ListFields():
        if isinstance(value, tensor_pb2.Tensor):
            yield descriptor.name, value


def content_hash(content: Message, read: Callable[[tensor_pb2.Tensor, str], Array]) -> str:
    """Lower-case hexadecimal SHA-256 of the tensors of a scene's content; `read` is PayloadReader.read."""
    digest = hashlib.sha256()
    for name, tensor in tensors_of(content):
        sizes = "x".join(map(str, tensor.shape))
        digest.update(f"{name}:{dtypes.name(tensor.dtype)}:{sizes};".encode())
        digest.update(read(tensor, name).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
