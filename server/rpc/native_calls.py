"""Runs native jobs for calls: admits them as the executor admits jobs of Python, and ends them as their calls end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from lumigrad.kernels._native import NativeCall, Outcome
from lumigrad.server.core.accounts import Reservation
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import CancelledError, DeviceTimeError
from lumigrad.server.device.memory import Cost
from lumigrad.server.storage.tenants import Runtime

# How often the free memory of the device is looked up: all stores are asked for their sizes.
_ROOM_SECONDS = 0.01


class NativeCalls:
    """Runs the native jobs of calls whose kinds were prepared."""

    def __init__(self) -> None:
        # The device's memory that was free when somebody last looked (monotonic clock).
        self._free, self._looked = 0, -math.inf

    def run(
        self, job: Callable[..., NativeCall], prepared: Any, request: Any, cost: Cost, runtime: Runtime, call: Call
    ) -> NativeCall | None:
        """Wait for `job(queue, prepared, request, ...)`; None: the call takes the general way, which may fail.

        Raises an error if the call has ended meanwhile.
        """
        room = self._room(cost, runtime)
        reserved = None if room is None else runtime.payload_memory.account.take(call.tenant, cost.payload_bytes)
        if room is None or reserved is None:
            return None
        staged = prepared.staging_bytes
        made = job(
            runtime.executor.queue,
            prepared,
            request,
            runtime.transfer.allocate(staged) if staged else None,
            reserved,
            call.tenant,
            int(call.priority),
            call.deadline,
            room,
        )
        call.job = made
        call.on_end(made.end)
        outcome = made.run(call.times.created)
        if outcome == Outcome.DONE:
            return made
        return self._refused(made, outcome, reserved, call)

    @staticmethod
    def note(made: NativeCall, engine: str, operation: str, received: int, sent: int, call: Call) -> None:
        """Note a call that is answered, with the bytes of its payloads."""
        call.times.milliseconds = made.stages
        record = call.record
        record.engine, record.operation = engine, operation
        record.bytes_received, record.bytes_sent = received, sent

    def _refused(self, made: NativeCall, outcome: Outcome, reserved: Reservation, call: Call) -> None:
        if outcome == Outcome.OVERDUE:
            raise DeviceTimeError(made.overdue_limit)
        if outcome == Outcome.CANCELLED:
            call.check()
            raise CancelledError
        reserved.release()

    def _room(self, cost: Cost, runtime: Runtime) -> int | None:
        """The memory that the kernels of a job may take; None if that has to be made first."""
        now = time.monotonic()
        if now > self._looked + _ROOM_SECONDS:
            self._free, self._looked = runtime.memory.free_bytes, now
        return runtime.memory.room_bytes(cost, self._free)
