"""Renders frames of driving simulators: frames that fit together in one launch, encoded beside one another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import (
    BusyError,
    DeviceMemoryError,
    DeviceTimeError,
    InvalidArgumentError,
    SceneFilesError,
)
from lumigrad.server.core.limits import Limits
from lumigrad.server.engines.gaussians import GAUSSIANS, gaussian_plan
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.runner import Task
from lumigrad.server.rpc.render import ForwardRequest
from lumigrad.server.scenes.lookup import named_scene
from lumigrad.server.sensorsim.frames import DriveFrame, error_about
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import camera_pb2, image_pb2

# Cameras of one car share the point that everything is moved by, so that they can share a launch.
_SHARED_ORIGIN_M = 8.0
_LEVELS = ImageFormats({"color": image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_UINT8)})
_MOST_ENCODERS = 8

# What a frame became: the bytes of its picture, or an error that is its own.
Outcome = bytes | Exception


class _Launch:
    """Frames of one scene that are rendered together: of one size, one kind of lens, and the same places of tracks."""

    def __init__(self, frame: DriveFrame, count: int) -> None:
        self.frames = [frame]
        self.origin = frame.origin
        self.spec = frame.spec(self.origin, count)

    def take(self, frame: DriveFrame, count: int, limits: Limits) -> bool:
        """Add a frame, if it fits."""
        first, more = self.frames[0], len(self.frames) + 1
        pixels = more * frame.size.width * frame.size.height
        fits = more <= limits.cameras and pixels <= limits.pixels
        if not fits or frame.size != first.size or _kind(frame) != _kind(first):
            return False
        if np.linalg.norm(frame.origin - self.origin) > _SHARED_ORIGIN_M:
            return False
        spec = frame.spec(self.origin, count)
        if spec.gaussians != self.spec.gaussians:
            return False
        self.frames.append(frame)
        self.spec.cameras.extend(spec.cameras)
        return True


class FrameRenderer:
    """Renders checked frames."""

    def render(self, frames: Sequence[DriveFrame], runtime: Runtime, call: Call) -> list[Outcome]:
        """Render frames; an error of one frame does not affect the others.

        Raises what is wrong with the call as a whole: a deadline, a worker that stops, and a full queue at its start.
        Once a frame is rendered, the others wait for places in the queue.
        """
        call.engine, call.operation = GAUSSIANS.name, "forward"
        call.facts["cameras"] = len(frames)
        call.facts["pixels"] = sum(frame.size.width * frame.size.height for frame in frames)
        outcomes: dict[DriveFrame, Outcome] = {}
        by_scene: dict[str, list[DriveFrame]] = {}
        for frame in frames:
            by_scene.setdefault(frame.scene.scene_id, []).append(frame)
        for scene_id, those in by_scene.items():
            try:
                stored = named_scene(runtime, call, scene_id)
                launches = _launches(those, stored, runtime.limits)
            except (SceneFilesError, BusyError) as error:
                outcomes.update(dict.fromkeys(those, _own(error, is_first=not outcomes)))
                continue
            for launch in launches:
                outcomes.update(self._render(launch, stored, runtime, call, is_first=not outcomes))
        return [outcomes[frame] for frame in frames]

    def _render(
        self, launch: _Launch, stored: StoredScene, runtime: Runtime, call: Call, *, is_first: bool
    ) -> dict[DriveFrame, Outcome]:
        """Render frames together; if that is refused, one by one. `is_first`: no frame is rendered yet."""
        call.check()
        try:
            return self._run(launch, stored, runtime, call, waits=not is_first)
        except (InvalidArgumentError, DeviceMemoryError, DeviceTimeError, BusyError) as error:
            own = _own(error, is_first=is_first)
            if len(launch.frames) == 1:
                return {launch.frames[0]: own}
        outcomes: dict[DriveFrame, Outcome] = {}
        for frame in launch.frames:
            one = _Launch(frame, stored.content.count)
            outcomes.update(self._render(one, stored, runtime, call, is_first=is_first and not outcomes))
        return outcomes

    def _run(
        self, launch: _Launch, stored: StoredScene, runtime: Runtime, call: Call, *, waits: bool
    ) -> dict[DriveFrame, Outcome]:
        runner = runtime.runner
        with call.times.stage("decode"):
            try:
                plan = gaussian_plan(launch.spec, stored.outline.shapes, runtime.limits, "spec")
            except InvalidArgumentError as error:
                raise error_about(launch.frames[0], error) from None
            task = Task(GAUSSIANS, plan, "spec", stored.reference)
            request = ForwardRequest(task, stored, _LEVELS)
            reserved = _LEVELS.reply_bytes(plan, runtime.limits, task.field)
            memory = plan.forward_bytes(plan.outputs, retain=False, device=runtime.transfer.device)
            cost = task.cost("forward", memory, reserved)
            runtime.memory.check(cost)
            runtime.payload_memory.announce(reserved, call)
        result = runtime.executor.deliver(
            lambda: runner.forward(request, call, retain=False),
            call,
            cost,
            runner.batch_entry(request, call),
            waits=waits,
        )
        with call.times.stage("compress"):
            return dict(zip(launch.frames, _encoded(launch.frames, list(result.outputs["color"])), strict=True))


def _encoded(frames: Sequence[DriveFrame], levels: Sequence[Array]) -> list[bytes]:
    """The files of pictures, by threads of the call's own: in shared ones it would wait for the pictures of others."""
    if len(frames) == 1:
        return [frames[0].style.encode(levels[0])]
    with ThreadPoolExecutor(min(_MOST_ENCODERS, len(frames), os.cpu_count() or 1), "encoder") as encoders:
        return list(encoders.map(lambda frame, view: frame.style.encode(view), frames, levels))


def _launches(frames: Sequence[DriveFrame], stored: StoredScene, limits: Limits) -> list[_Launch]:
    launches: list[_Launch] = []
    count = stored.content.count
    for frame in frames:
        if not any(launch.take(frame, count, limits) for launch in launches):
            launches.append(_Launch(frame, count))
    return launches


def _kind(frame: DriveFrame) -> tuple[object, ...]:
    """What the lenses of a launch share."""
    sensor = frame.optics.sensor
    names = [field.name for field in camera_pb2.BivariateWindshield.DESCRIPTOR.fields]
    return sensor.WhichOneof("lens"), *(len(getattr(sensor.windshield, name)) for name in names)


def _own(error: Exception, *, is_first: bool) -> Exception:
    """The error as that of a frame; raises it if the call can be repeated and loses nothing, as nothing is rendered."""
    if is_first and isinstance(error, DeviceMemoryError | BusyError) and error.retry_seconds is not None:
        raise error
    return error
