"""The state of a training, which steps change and snapshots store."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lumigrad.server.engines.content import Shapes
from lumigrad.server.storage.trainings import Footprint, TrainingReservation
from lumigrad.server.training.blocks import Blocks
from lumigrad.server.training.cameras import CameraRefinement
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.parameters import Parameter, Parameters, Refinement
from lumigrad.server.training.spec import EXPOSURES, TrainingPlan
from lumigrad.server.training.views import Views, identity_exposure
from lumigrad.v1 import camera_pb2, training_pb2

# Names in snapshots of the tensors that blocks have besides parameters.
BLOCKS_ORDER, BLOCKS_STEPS = "blocks.order", "blocks.steps"
# Values per view.
_EXPOSURE_WIDTH = 12
# The requests that a client may have in flight.
_MOST_REPLIES = 64


class TrainingState:
    """The state of a training between two steps. Only the device's thread uses it."""

    def __init__(
        self,
        scene_id: str,
        plan: TrainingPlan,
        views: Views,
        parameters: Parameters,
        density: DensityState | None,
        reservation: TrainingReservation,
        step: int = 0,
        blocks: Blocks | None = None,
    ) -> None:
        """`step` is the number of the next step; `reservation` covers the memory of the whole training.

        `blocks` holds the parameters if they are in the spool.
        """
        self.reservation = reservation
        self.scene_id = scene_id
        # The last published version of the scene.
        self.version = 0
        self._spec = self.plan = plan
        self.views = views
        self.parameters = parameters
        self.blocks = blocks
        self.density = density
        self.step = step
        # The number of views that the worker has chosen.
        self.chosen = 0
        # The last steps' replies, for clients that did not receive them.
        self.recent_replies: deque[training_pb2.StepDone] = deque(maxlen=_MOST_REPLIES)
        # The number of snapshots written, and the step of the last one, -1 if there is none.
        self.snapshots = 0
        self.snapshot_step = -1
        # Increases whenever rows are added, removed or moved.
        self.generation = 0
        device = next(iter(parameters.values.values())).device if blocks is None else blocks.device
        rates = plan.optimizer.rates
        self.refinement = CameraRefinement(views, rates)
        identities = identity_exposure(device).repeat(len(views), 1, 1)
        self.exposures = Refinement(identities) if EXPOSURES in rates else None
        # State of steps made without Python; None before the first of them.
        self.resident: Any = None

    def keep_pace(self, pace: float) -> None:
        """Set the pace of the schedules, see `training_pb2.Step`."""
        if pace != self.plan.pace:
            self.plan = self._spec.paced(pace)
            if self.density is not None and self.plan.density is not None:
                self.density = self.density.planned(self.plan.density)

    def cameras(self, numbers: Sequence[int]) -> list[camera_pb2.Camera]:
        """Return the current cameras of some views."""
        return [self.refinement.camera(self.views, number) for number in numbers]

    def settle(self) -> None:
        """Copy to the host the camera parameters that steps without Python have changed."""
        self.refinement.settle(self.views)

    @property
    def has_unwritten_steps(self) -> bool:
        """Whether there are snapshots, but not of the last steps."""
        has_snapshots = self.snapshot_step >= 0 or self.plan.message.snapshot_every > 0
        return has_snapshots and self.snapshot_step < self.step

    @property
    def copied_bytes(self) -> int:
        """Bytes that density control needs for copies in the next step, in addition to rendering."""
        is_due = self.density is not None and self.density.is_due(self.step)
        return self.reservation.copied_bytes if is_due else 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of a snapshot, by name."""
        tensors = {**self.parameters.tensors, **self.refinement.tensors(), **self.kept}
        if self.exposures is not None:
            tensors |= {f"{EXPOSURES}.{part}": tensor for part, tensor in self.exposures.tensors.items()}
        if self.density is not None:
            tensors |= {f"density.{part}": tensor for part, tensor in self.density.tensors.items()}
        return tensors

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """The tensors of a snapshot that lie in memory of the spool."""
        if self.blocks is None:
            return {}
        return {**self.parameters.tensors, BLOCKS_ORDER: self.blocks.order, BLOCKS_STEPS: self.blocks.steps}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the tensors that `tensors` returned."""
        parts = parts_of(tensors)
        if self.blocks is None:
            self.parameters = Parameters({name: Parameter.of(name, parts[name]) for name in self.parameters.by_name})
        self.refinement.restore(parts)
        if self.exposures is not None:
            self.exposures.restore(parts[EXPOSURES])
        if self.density is not None:
            self.density.restore(parts.get("density", {}))


def parts_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Group the tensors of a snapshot by owner, such as a parameter, and then by part."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        owner, _, part = name.rpartition(".")
        parts.setdefault(owner, {})[part] = tensor
    return parts


def footprint_of(plan: TrainingPlan, shapes: Shapes, views: Views) -> Footprint:
    """Return the memory of a training whose scene has tensors of these shapes."""
    density = 0 if plan.density is None else DensityState.row_bytes(plan.density)
    rates = plan.optimizer.rates
    exposures = len(views) * Refinement.row_bytes(_EXPOSURE_WIDTH) if EXPOSURES in rates else 0
    fixed = views.bytes + exposures + CameraRefinement.bytes(views, rates)
    row_bytes = Parameters.row_bytes(shapes, plan.optimizer)
    if plan.pool_bytes:
        pool = min(plan.pool_bytes, shapes["means"][0] * row_bytes)
        return Footprint(row_bytes=0, fixed_bytes=fixed + pool, working_bytes=0)
    return Footprint(
        row_bytes=row_bytes + density,
        fixed_bytes=fixed,
        working_bytes=Parameters.working_bytes(shapes),
    )
