"""Snapshots of trainings in the spool, from which a restarted worker continues bit for bit."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core import logs
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import BusyError, DeviceMemoryError, TrainingHeldError, TrainingLostError
from lumigrad.server.core.streams import named_tensors
from lumigrad.server.device.memory import Cost
from lumigrad.server.storage.spool import Blob, SpoolMemory
from lumigrad.server.storage.spool_index import LASTING
from lumigrad.server.storage.tenants import Runtime
from lumigrad.server.storage.trainings import Training, TrainingReservation, counted
from lumigrad.server.training.blocks import KIND, Blocks
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.parameters import Parameter, Parameters
from lumigrad.server.training.spec import TrainingPlan
from lumigrad.server.training.state import BLOCKS_ORDER, BLOCKS_STEPS, TrainingState, footprint_of, parts_of
from lumigrad.server.training.views import Views
from lumigrad.v1 import snapshot_pb2

_KIND = LASTING
# The number of snapshots kept: a client may return to the one before the newest.
_KEPT = 2
# How long a snapshot waits until its target images are in the spool.
_TARGET_IMAGES_SECONDS = 10.0
# How often a stopping worker retries to write a snapshot.
_AGAIN_SECONDS = 0.2


def write(training: Training[TrainingState], runtime: Runtime, call: Call | None) -> int:
    """Write a snapshot; returns its size once it is on disk, or 0 without a spool.

    Raises BusyError, which names the limit and its option, if the snapshot does not fit. Without `call` the worker
    itself writes it.
    """
    if runtime.tenant_spool is None:
        return 0
    state = training.state
    # The spool may write target images after the call that stores them has ended; a snapshot is useless without them.
    target_images = {view.target for view in state.views.messages if view.target}
    runtime.scenes.ensure_written([state.scene_id], target_images, _TARGET_IMAGES_SECONDS, call)
    # Written in place, from memory of the spool: no step runs meanwhile.
    kept = {name: tensor.numpy() for name, tensor in state.kept.items()}
    moved = {name: tensor for name, tensor in state.tensors().items() if name not in kept}
    nbytes = sum(tensor.nbytes for tensor in moved.values())
    cost = Cost(bytes=nbytes if runtime.transfer.is_cpu else 0, payload_bytes=nbytes, is_repeatable=True)
    runtime.memory.check(cost)

    def copy() -> list[torch.Tensor]:
        # Copied, because the next step would change tensors on the host.
        state.settle()
        tensors = state.tensors()
        return [torch.from_numpy(array.copy()) for array in runtime.transfer.download([tensors[it] for it in moved])]

    with _reserved(nbytes, runtime, call):
        copies = runtime.executor.run(copy, call, cost)
        payload = PayloadWriter()
        arrays = {**kept, **dict(zip(moved, (tensor.numpy() for tensor in copies), strict=True))}
        message = snapshot_pb2.TrainingSnapshot(
            training_id=training.training_id,
            lease=training.lease,
            kind=state.plan.kind,
            spec=state.plan.message,
            views=state.views.messages,
            step=state.step,
            chosen=state.chosen,
            tensors=named_tensors(arrays, payload),
            told=state.recent_replies,
            holder=training.holder_number,
        )
        message.scene.scene_id, message.scene.version = state.scene_id, state.version
        name = _name(training.training_id, state.snapshots % _KEPT)
        if not runtime.tenant_spool.write(_KIND, name, message.SerializeToString(), payload.buffers):
            return 0
    state.snapshots += 1
    state.snapshot_step = state.step
    return payload.length


@contextmanager
def _reserved(nbytes: int, runtime: Runtime, call: Call | None) -> Iterator[None]:
    """Reserve the memory of a copy: until a call ends, or for the length of a `with` block."""
    if call is not None:
        runtime.payload_memory.reserve(nbytes, call)
        with call.times.stage("snapshot"):
            yield
        return
    reservation = runtime.payload_memory.account.reserve(runtime.tenant, nbytes)
    try:
        yield
    finally:
        reservation.release()


def write_due(training: Training[TrainingState], runtime: Runtime, call: Call) -> bool:
    """Write a scheduled snapshot; returns whether it was written. Without room for it, the training continues."""
    try:
        return write(training, runtime, call) > 0
    except (BusyError, DeviceMemoryError) as error:
        _log_failure(training, error)
        return False


def write_last(training: Training[TrainingState], runtime: Runtime, until: float) -> None:
    """Write a snapshot before the worker stops, retrying until a time of the monotonic clock."""
    while True:
        try:
            write(training, runtime, None)
            return
        except (BusyError, DeviceMemoryError) as error:
            # The calls that take the room are about to end.
            if error.retry_seconds is None or time.monotonic() > until:
                _log_failure(training, error)
                return
            time.sleep(_AGAIN_SECONDS)


def _log_failure(training: Training[TrainingState], error: BusyError | DeviceMemoryError) -> None:
    why = getattr(error, "what", error)
    logs.event("a snapshot could not be written", logging.WARNING, training=training.training_id, why=why)


def warn_of_size(state: TrainingState, runtime: Runtime) -> None:
    """Log a warning if a training's snapshots would be too large to write."""
    nbytes = sum(tensor.nbytes for name, tensor in state.tensors().items() if name not in state.kept)
    share = runtime.payload_memory.account.share
    if state.plan.message.snapshot_every and runtime.tenant_spool is not None and nbytes > share:
        why = f"{nbytes} bytes are more than a tenant may have of payloads in progress: {share}"
        logs.event("snapshots are disabled for a training", logging.WARNING, scene=state.scene_id, why=why)


def read(
    training: Training[TrainingState], holder: int, at_step: int | None, runtime: Runtime, call: Call
) -> tuple[TrainingState, int] | None:
    """Read the newest snapshot, or the last one up to a step, and its holder's number; None if there is none.

    The training's old state is removed before the new one is created, since both together may exceed the tenant's
    share. A wrong lease is treated like a wrong name. Raises TrainingHeldError if the training has had a later holder
    than the caller.
    """
    training_id = training.training_id
    found = _newest(training_id, at_step, runtime)
    spool = runtime.tenant_spool
    if found is None or spool is None:
        return None
    slot, message = found
    if not hmac.compare_digest(message.lease.encode(), training.lease.encode()):
        raise TrainingLostError(training_id)
    if 0 < holder < message.holder:
        raise TrainingHeldError(message.scene.scene_id)
    with ExitStack() as unused:
        memory: list[SpoolMemory] = []

        def mapped(nbytes: int) -> memoryview:
            memory.append(spool.memory(KIND, nbytes))
            unused.callback(memory[-1].release)
            return memory[-1].data

        has_blocks = message.spec.pool_bytes > 0
        allocate = mapped if has_blocks else runtime.payload_memory.allocator(call)
        blob = spool.read(_KIND, _name(training_id, slot), allocate)
        if blob is None:
            return None
        state = _restored(message, blob, training, runtime, call)
        if has_blocks:
            state.reservation.hold(memory[-1])
            unused.pop_all()
    state.snapshot_step = state.step
    state.snapshots = 1 + slot
    return state, message.holder


def _restored(
    message: snapshot_pb2.TrainingSnapshot,
    blob: Blob,
    training: Training[TrainingState],
    runtime: Runtime,
    call: Call,
) -> TrainingState:
    reader = PayloadReader(blob.payload)
    arrays = {entry.name: (reader.read(entry.tensor, entry.name), entry.tensor.dtype) for entry in message.tensors}
    shapes = {
        name.removesuffix(".raw"): list(array.shape) for name, (array, _) in arrays.items() if name.endswith(".raw")
    }
    plan = TrainingPlan.of(message.spec, message.kind, shapes, runtime.limits, "start.spec")
    views = Views.of(message.views, runtime, call, "start.views")

    # Tensors of blocks stay in the payload, which is memory of the spool.
    kept = {name for name in arrays if plan.pool_bytes and (name == BLOCKS_ORDER or name.rpartition(".")[0] in shapes)}

    def placed(name: str) -> torch.Tensor:
        array, dtype = arrays[name]
        if name in kept:
            return torch.from_numpy(array)
        return torch.from_numpy(array.copy()) if dtype == dtypes.INT64 else transfer.upload(array, dtype).clone()

    def make(reservation: TrainingReservation) -> TrainingState:
        tensors = {name: placed(name) for name in arrays}
        parts = parts_of(tensors)
        parameters, blocks = Parameters({name: Parameter.of(name, parts[name]) for name in shapes}), None
        if plan.pool_bytes:
            blocks = Blocks(parameters, tensors[BLOCKS_ORDER], plan.pool_bytes, transfer.device)
            blocks.steps.copy_(tensors[BLOCKS_STEPS])
        density = None if plan.density is None else DensityState(plan.density, parameters)
        state = TrainingState(
            message.scene.scene_id, plan, views, parameters, density, reservation, message.step, blocks
        )
        state.restore(tensors)
        transfer.finish()
        return state

    transfer, count = runtime.transfer, next(iter(shapes.values()))[0]
    runtime.trainings.vacate(training)
    with runtime.trainings.reserved(footprint_of(plan, shapes, views), count) as reservation:
        # Each tensor is uploaded, then copied on the device.
        working = max((array.nbytes for name, (array, _) in arrays.items() if name not in kept), default=0)
        cost = Cost(bytes=working, payload_bytes=0 if kept else blob.payload.nbytes, is_repeatable=True)
        runtime.memory.check(Cost(bytes=reservation.bytes + working))
        with counted(reservation.bytes):
            state = runtime.executor.run(lambda: make(reservation), call, cost)
    state.version, state.chosen = message.scene.version, message.chosen
    state.recent_replies.extend(message.told)
    return state


def forget(training: Training[TrainingState], runtime: Runtime) -> None:
    """Delete the snapshots of a finished training."""
    if runtime.tenant_spool is not None and training.state.snapshots:
        for slot in range(_KEPT):
            runtime.tenant_spool.forget(_KIND, _name(training.training_id, slot))
        runtime.tenant_spool.sync()


def forget_after(training_id: str, step: int, runtime: Runtime) -> None:
    """Delete the snapshots later than a step to which a training was reset."""
    for name, message in _all(training_id, runtime):
        if message.step > step and runtime.tenant_spool is not None:
            runtime.tenant_spool.forget(_KIND, name)
            runtime.tenant_spool.sync()


def _newest(
    training_id: str, at_step: int | None, runtime: Runtime
) -> tuple[int, snapshot_pb2.TrainingSnapshot] | None:
    fit = [
        (int(name.rpartition("/")[2]), message)
        for name, message in _all(training_id, runtime)
        if at_step is None or message.step <= at_step
    ]
    return max(fit, key=lambda entry: entry[1].step, default=None)


def _all(training_id: str, runtime: Runtime) -> Iterator[tuple[str, snapshot_pb2.TrainingSnapshot]]:
    """Yield the names and headers of a training's snapshots."""
    for slot in range(_KEPT):
        name = _name(training_id, slot)
        head = None if runtime.tenant_spool is None else runtime.tenant_spool.head(_KIND, name)
        if head is not None:
            yield name, snapshot_pb2.TrainingSnapshot.FromString(head.header)


def _name(training_id: str, slot: int) -> str:
    return f"{training_id}/{slot}"
