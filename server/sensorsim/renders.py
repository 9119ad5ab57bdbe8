"""Renders frames of driving simulators: compatible frames in one launch, with parallel encoding."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
from lumigrad.server.device.gpu_jpegs import GpuJpegs
from lumigrad.server.engines.gaussians import GAUSSIANS, gaussian_plan
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.runner import ForwardJob, Task
from lumigrad.server.scenes.lookup import named_scene
from lumigrad.server.sensorsim.catalog import MASK_BYTES, Catalog
from lumigrad.server.sensorsim.frames import DriveFrame, error_about
from lumigrad.server.sensorsim.scans import RETURN_BYTES, points_of
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import image_pb2

# Cameras of one car, at most this far apart, share the origin that everything is moved to, so that they can share a
# launch.
_SHARED_ORIGIN_M = 8.0
_LEVELS = ImageFormats({"color": image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_UINT8)})
_MOST_ENCODERS = 8

# Result of a frame: the bytes of its picture, or of the points of its scan, or an error of this frame.
Outcome = bytes | Exception


class _Launch:
    """Frames of one scene that are rendered together: they have the same size, kind of lens and poses of tracks."""

    def __init__(self, frame: DriveFrame, content_hash: str) -> None:
        self.frames = [frame]
        self.origin = frame.origin
        self.spec = frame.spec(self.origin, content_hash)

    def has_room(self, limits: Limits) -> bool:
        """Return whether another frame of this size fits."""
        more, size = len(self.frames) + 1, self.frames[0].size
        return more <= limits.cameras and more * size.width * size.height <= limits.pixels

    def add(self, frame: DriveFrame) -> None:
        """Add a frame with the same key and a nearby origin."""
        self.frames.append(frame)
        self.spec.cameras.append(frame.camera(self.origin))


class FrameRenderer:
    """Renders checked frames."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def render(self, frames: Sequence[DriveFrame], runtime: Runtime, call: Call) -> list[Outcome]:
        """Render frames; an error of one frame does not affect the others.

        Raises errors of the call as a whole: a passed deadline, a stopping worker, or a queue that is full at the
        start. Once one frame is rendered, the others wait for places in the queue.
        """
        call.record.engine, call.record.operation = GAUSSIANS.name, "forward"
        call.record.facts["cameras"] = len(frames)
        call.record.facts["pixels"] = sum(frame.size.width * frame.size.height for frame in frames)
        outcomes: dict[DriveFrame, Outcome] = {}
        by_scene: dict[str, list[DriveFrame]] = {}
        for frame in frames:
            by_scene.setdefault(frame.scene.scene_id, []).append(frame)
        for scene_id, those in by_scene.items():
            try:
                stored = named_scene(runtime, call, scene_id)
                launches = _launches(those, stored, runtime.limits, call)
            except (SceneFilesError, BusyError, DeviceMemoryError) as error:
                outcomes.update(dict.fromkeys(those, _own(error, is_first=not outcomes)))
                continue
            for launch in launches:
                outcomes.update(self._render(launch, stored, runtime, call, is_first=not outcomes))
        return [outcomes[frame] for frame in frames]

    def _render(
        self, launch: _Launch, stored: StoredScene, runtime: Runtime, call: Call, *, is_first: bool
    ) -> dict[DriveFrame, Outcome]:
        """Render frames together or, if that is refused, one by one. With `is_first`, no frame is rendered yet."""
        call.check()
        try:
            return self._run(launch, stored, runtime, call, waits=not is_first)
        except (InvalidArgumentError, DeviceMemoryError, DeviceTimeError, BusyError) as error:
            own = _own(error, is_first=is_first)
            if len(launch.frames) == 1:
                return {launch.frames[0]: own}
        outcomes: dict[DriveFrame, Outcome] = {}
        for frame in launch.frames:
            one = _Launch(frame, stored.content_hash)
            outcomes.update(self._render(one, stored, runtime, call, is_first=is_first and not outcomes))
        return outcomes

    def _run(
        self, launch: _Launch, stored: StoredScene, runtime: Runtime, call: Call, *, waits: bool
    ) -> dict[DriveFrame, Outcome]:
        runner = runtime.runner
        with call.times.stage("decode"):
            formats = ImageFormats({}) if launch.frames[0].is_scan else _LEVELS
            try:
                plan = gaussian_plan(launch.spec, stored.outline.shapes, runtime.limits, "spec")
                reserved = formats.reply_bytes(plan, runtime.limits, "spec")
            except InvalidArgumentError as error:
                raise error_about(launch.frames[0], error) from None
            task = Task(GAUSSIANS, plan, "spec", stored.reference)
            request = ForwardJob(task, stored, formats)
            memory = plan.forward_bytes(plan.outputs, retain=False, device=runtime.transfer.device)
            cost = task.cost("forward", memory, reserved, runtime.transfer.device)
            runtime.memory.check(cost)
            runtime.payload_memory.announce(reserved, call)
            runtime.payload_memory.reserve(_extra_bytes(launch.frames), call)
        result = runtime.executor.deliver_steps(
            partial(runner.forward, request, call, retain=False),
            call,
            cost,
            runner.batch_entry(request, call),
            waits=waits,
        )
        with call.times.stage("compress"):
            views = list(zip(*(result.outputs[name] for name in plan.outputs), strict=True))
            return dict(zip(launch.frames, self._encoded(launch.frames, views, runtime.jpegs, call), strict=True))

    def _encoded(
        self, frames: Sequence[DriveFrame], views: Sequence[tuple[Array, ...]], jpegs: GpuJpegs | None, call: Call
    ) -> list[bytes]:
        """Encode files and points, on the call's own threads: on shared threads, calls would wait for each other."""

        def encode(frame: DriveFrame, view: tuple[Array, ...]) -> bytes:
            if isinstance(frame.style, str):
                return points_of(frame.style, *view)
            return frame.style.encode(view[0], self._catalog, jpegs, call)

        if len(frames) == 1:
            return [encode(frames[0], views[0])]
        with ThreadPoolExecutor(min(_MOST_ENCODERS, len(frames), os.cpu_count() or 1), "encoder") as encoders:
            return list(encoders.map(encode, frames, views))


def _extra_bytes(frames: Sequence[DriveFrame]) -> int:
    """Return the memory of the ego masks, scaled to the pictures, and of the points of scans."""
    return sum(_pixel_bytes(frame) * frame.size.width * frame.size.height for frame in frames)


def _pixel_bytes(frame: DriveFrame) -> int:
    if isinstance(frame.style, str):
        return RETURN_BYTES
    return 0 if frame.style.mask is None else MASK_BYTES


def _launches(frames: Sequence[DriveFrame], stored: StoredScene, limits: Limits, call: Call) -> list[_Launch]:
    """Group frames into launches; stops if the call ends, since there may be many frames."""
    launches: list[_Launch] = []
    # Launches that may have room, by the key of their frames.
    open_launches: dict[Hashable, list[_Launch]] = {}
    for frame in frames:
        call.check()
        alike = open_launches.setdefault(frame.launch_key, [])
        found = _near(alike, frame)
        if found is not None and found.has_room(limits):
            found.add(frame)
            continue
        if found is not None:
            alike.remove(found)
        launches.append(_Launch(frame, stored.content_hash))
        alike.append(launches[-1])
    return launches


def _near(launches: Sequence[_Launch], frame: DriveFrame) -> _Launch | None:
    """Return the first launch whose origin is close enough to that of a frame."""
    if not launches:
        return None
    distances = np.linalg.norm(np.stack([launch.origin for launch in launches]) - frame.origin, axis=1)
    near = np.flatnonzero(distances <= _SHARED_ORIGIN_M)
    return launches[near[0]] if near.size else None


def _own(error: Exception, *, is_first: bool) -> Exception:
    """Return an error as that of a frame; raises it if nothing is rendered yet and repeating the call can help."""
    if is_first and isinstance(error, DeviceMemoryError | BusyError) and error.retry_seconds is not None:
        try:
            raise error
        finally:
            # The error's traceback refers to this frame. This cycle would keep what the call held.
            del error
    # The frames in its traceback refer to the outcomes that keep it.
    return error.with_traceback(None)
