"""Prepared renders of both engines, on the CPU and on the emulated device."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lumigrad.kernels import _native
from lumigrad.kernels.levels import write_levels
from lumigrad.kernels.prepared import Place
from lumigrad.v1 import camera_pb2, render_pb2

Pose = tuple[np.ndarray, np.ndarray]
ALIGNMENT = 64
SIZES = {"levels": 1, "float16": 2, "bfloat16": 2, "plain": 4}


class Device:
    """A device that draws requests, with kernels that write the same bits as its `forward`."""

    def __init__(self, renderer: Any, forward: Any) -> None:
        self.renderer = renderer
        self.forward = forward

    def job(self, queue: Any, made: Any, request: Any, batch: int = 0) -> Any:
        """A job that draws a request."""
        staging = np.empty(self.renderer.staging_bytes(made), np.uint8)
        made.demand(kind=7, batch=batch, fill=0.01, bytes=0)
        payload = _native.Account(1 << 40, 1 << 40, 0).take("", 1)
        return _native.RenderJob(queue, made, request, self.renderer, staging, payload, "", 1, inf, 1 << 30)


def request_of(views: Sequence[Pose], width: int, height: int) -> _native.RenderRequest:
    """A request whose poses alone matter, as in a prepared render."""
    message = render_pb2.RenderRequest()
    message.spec.scene_ref.scene_id = "scene"
    for rotation, translation in views:
        model = camera_pb2.OpenCVCamera(rotation=rotation.reshape(-1), translation=translation)
        message.spec.cameras.append(camera_pb2.Camera(width=width, height=height, opencv=model))
    return _native.read_render_request(message.SerializeToString())


def encoded(values: Tensor, encoding: str) -> bytes:
    """An output as it is sent."""
    if encoding == "levels":
        levels = torch.empty(values.shape, dtype=torch.uint8)
        # A copy of what the emulated device may have yet to write.
        write_levels(values.clone(), levels)
        return levels.numpy().tobytes()
    if encoding == "plain":
        return values.contiguous().numpy().tobytes()
    return values.to(getattr(torch, encoding)).contiguous().view(torch.uint16).numpy().tobytes()


def places_of(outputs: dict[str, Tensor], encodings: dict[str, str]) -> tuple[list[Place], int]:
    """Consecutive places for the outputs, and the size of the payload."""
    places, end = [], 0
    for name, values in outputs.items():
        encoding = encodings.get(name, "plain")
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        places.append(Place(name, encoding, values.numel(), offset))
        end = offset + values.numel() * SIZES[encoding]
    return places, end


def check_reply(reply: bytes, head: bytes, places: Sequence[Place], outputs: dict[str, Tensor]) -> None:
    """Fails unless a reply has the bits of these outputs, and timings."""
    end = len(head) + places[-1].offset + places[-1].values * SIZES[places[-1].encoding]
    assert reply.startswith(head)
    for place in places:
        wanted, begin = encoded(outputs[place.name], place.encoding), len(head) + place.offset
        assert reply[begin : begin + len(wanted)] == wanted, place
    tail = render_pb2.RenderReply.FromString(reply[end:])
    assert {stage.name for stage in tail.timings.stages} >= {"decode", "queue", "kernel.blend"}
