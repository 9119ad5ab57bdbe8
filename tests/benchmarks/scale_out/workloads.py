"""The assumptions of the model: the bytes and times of calls of trainings and planners, and the links."""

from __future__ import annotations

from dataclasses import dataclass

# A million Gaussians of degree 3, 59 floats each; a picture of 1080p in three float32 channels.
SCENE_BYTES = 1e6 * 59 * 4
PICTURE_BYTES = 1920 * 1080 * 3 * 4


@dataclass(frozen=True)
class Workload:
    """A call, or a step.

    Attributes:
        name: its name in the tables.
        up_bytes: sent from the client to the worker.
        down_bytes: sent from the worker to the client.
        device_s: time of the worker's device.
    """

    name: str
    up_bytes: float
    down_bytes: float
    device_s: float

    @property
    def bytes(self) -> float:
        """The bytes in both directions."""
        return self.up_bytes + self.down_bytes


@dataclass(frozen=True)
class Cluster:
    """Machines with workers, one for each GPU, and as many machines with trainers.

    Attributes:
        per_machine: GPUs of a machine, and trainers of one.
        worker_link: bytes per second of a machine with workers, each way.
        trainer_link: bytes per second of a machine with trainers, each way.
        process: bytes per second that one process in Python sends or receives as a stream of gRPC.
        trip_s: there and back, without payload, with what a small call takes.
    """

    per_machine: int = 8
    worker_link: float = 100e9 / 8
    trainer_link: float = 25e9 / 8
    process: float = 1.05e9
    trip_s: float = 1e-3


# Bytes of the first two as measured at 1080p (docs/performance.md); of remote gradients for 1M Gaussians the parameters
# and the picture's gradient there, gradients and the picture back. Planners: 62,464 spheres, costs and gradients.
# Times of devices are assumptions: for a step 1.6 times what its kernels take on an H100, and 1 ms for a query.
STEP_S = 5e-3
WORKLOADS = (
    Workload("steps on the worker", 300, 300, STEP_S),
    Workload("own loss, bfloat16 pictures", PICTURE_BYTES / 2, PICTURE_BYTES / 2, STEP_S),
    Workload("remote gradients, float32", SCENE_BYTES + PICTURE_BYTES, SCENE_BYTES + PICTURE_BYTES, STEP_S),
    Workload("planner's queries", 62_464 * 16, 62_464 * 20, 1e-3),
)
VIEW = Workload("views of stored scenes", 1000, PICTURE_BYTES, 2e-3)
