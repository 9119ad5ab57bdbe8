"""Forward passes of several calls as one: views of the same scene, or queries before the same obstacles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import arguments_of
from lumigrad.server.device.queue import BatchEntry
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.passes import Computed, Task


@dataclass(frozen=True)
class _Part:
    """What one call has in it; `load` gives the engine's inputs."""

    task: Task
    load: Callable[[], Any]
    call: Call
    formats: ImageFormats

    @property
    def length(self) -> int:
        """Of its outputs' first axis."""
        return self.task.plan.lead


def batch_entry(
    task: Task, load: Callable[[], Any], call: Call, formats: ImageFormats, transfer: Transfer
) -> BatchEntry[Computed] | None:
    """How a forward pass that is not retained is done as one with others of its tenant; None: it is not."""
    plan, scene = task.plan, task.scene
    if scene is None or plan.kind is None:
        return None
    key = task.engine.name, scene.scene_id, scene.version, plan.kind
    return BatchEntry(key, plan.fill, _Part(task, load, call, formats), lambda parts: _compute(parts, transfer))


def _compute(parts: Sequence[_Part], transfer: Transfer) -> list[Computed]:
    """Each call is told of its share of the time."""
    task = parts[0].task
    plan, inputs = task.engine.joined([part.task.plan for part in parts], [part.load() for part in parts])
    with arguments_of(task.field):
        forward = task.engine.forward(
            plan, inputs, plan.outputs, retain=False, before_view=lambda: _check_any([part.call for part in parts])
        )
    transfer.finish()
    ends = list(accumulate(part.length for part in parts))
    for part in parts:
        part.call.times.add_kernel({stage: ms * part.length / ends[-1] for stage, ms in forward.stages().items()})
    started = time.perf_counter()
    converted: list[torch.Tensor] = []
    for part, end in zip(parts, ends, strict=True):
        piece = slice(end - part.length, end)
        converted += part.formats.converted({name: forward.outputs[name][piece] for name in plan.outputs})
    arrays = iter(transfer.download(converted))
    milliseconds = (time.perf_counter() - started) * 1e3
    for part in parts:
        part.call.times.add("download", milliseconds * part.length / ends[-1])
    return [Computed({name: next(arrays) for name in plan.outputs}, None) for _ in parts]


def _check_any(calls: Sequence[Call]) -> None:
    """Raise if nobody waits any more: as long as one does, the others' views are computed too."""
    # Each of them, so that each is known to have been asked.
    ended = [call.ended() for call in calls]
    if None not in ended:
        raise next(filter(None, ended))
