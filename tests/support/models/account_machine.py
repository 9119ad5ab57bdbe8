"""A stateful test of reservations: calls, scenes, forward states and trainings release all that they reserve."""

from __future__ import annotations

import atexit
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lumigrad.server.core.accounts import Reservation
from lumigrad.server.core.call import Call
from lumigrad.server.core.config import MIB, Config
from lumigrad.server.core.errors import (
    BusyError,
    CancelledError,
    ContextLostError,
    DeadlineError,
    SceneNotFoundError,
    TrainingHeldError,
)
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.process.worker import make_machine
from lumigrad.server.storage.tenants import Runtime, Tenants
from lumigrad.server.storage.trainings import Footprint, Training, TrainingReservation
from lumigrad.server.training.requests import Part, Parts

TENANTS = ("a", "b", "c")
# The limits are 16 MiB for payloads and for trainings each; a tenant's shares are 4 and 8 MiB.
CONFIG = Config(
    max_payload_mib=1, transit_mib=16, tenant_transit_mib=4, training_mib=16, tenant_training_mib=8,
    scene_mib=4, context_mib=4, training_seconds=0.001, context_seconds=0.001,
)  # fmt: skip
WHICH = st.integers(0, 1 << 16)
SIZES = st.integers(0, 5 * MIB)


class Caller:
    """A caller that waits forever."""

    def is_active(self) -> bool:
        return True

    def cancel(self) -> None:
        """Does nothing; the call's `end` runs the callbacks."""


@dataclass(eq=False)
class Asked:
    """A call in progress, its parts, and its open reservations."""

    call: Call
    parts: Parts
    runtime: Runtime
    begun: list[Part] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    training: Training | None = None
    count: int = 0
    # Bytes in transit of the call itself; `part_bytes` has those of its open parts.
    own_bytes: int = 0
    # Other reservations of its training.
    waiting_bytes: int = 0
    part_bytes: dict[Part, int] = field(default_factory=dict)

    @property
    def reservation(self) -> TrainingReservation:
        assert self.training is not None
        return self.training.state.reservation


class AccountMachine(RuleBasedStateMachine):
    """The real stores and accounts, without a network and a device."""

    def __init__(self) -> None:
        super().__init__()
        self._machine = _MACHINE
        self._tenants = Tenants(self._machine, CONFIG, Metrics())
        self._calls: list[Asked] = []
        self._scenes: list[tuple[Runtime, str]] = []
        self._states: list[tuple[Runtime, str]] = []
        self._number = 0

    @rule(tenant=st.sampled_from(TENANTS))
    def call(self, tenant: str) -> None:
        call = Call("Test.Call", Caller())
        call.tenant = tenant
        self._calls.append(Asked(call, Parts(call), self._tenants.of(call)))

    @precondition(lambda self: self._calls)
    @rule(which=WHICH, size=SIZES)
    def reserve(self, which: int, size: int) -> None:
        asked = self._one(which)
        if _unless_busy(lambda: self._machine.payload_memory.reserve(size, asked.call)):
            asked.own_bytes += size

    @precondition(lambda self: self._calls)
    @rule(which=WHICH, size=SIZES)
    def part(self, which: int, size: int) -> None:
        asked = self._one(which)
        part = asked.parts.begin("step")
        asked.begun.append(part)
        asked.part_bytes[part] = size if _unless_busy(lambda: self._machine.payload_memory.reserve(size, part)) else 0

    @precondition(lambda self: any(asked.begun for asked in self._calls))
    @rule(which=WHICH, size=SIZES, again=st.booleans())
    def close_part(self, which: int, size: int, again: bool) -> None:
        parts = [(asked, part) for asked in self._calls for part in asked.begun]
        asked, part = parts[which % len(parts)]
        asked.parts.close(part)
        asked.part_bytes.pop(part, None)
        if again:
            # A part that has ended holds no reservation.
            _unless_busy(lambda: self._machine.payload_memory.reserve(size, part))
            asked.parts.close(part)

    @precondition(lambda self: self._calls)
    @rule(which=WHICH, how=st.sampled_from(("reply", "cancel", "deadline", "disconnect")), handler_first=st.booleans())
    def end(self, which: int, how: str, handler_first: bool) -> None:
        """End a call; its handler cleans up before or after gRPC runs the callback."""
        asked = self._one(which)
        self._calls.remove(asked)
        if how == "cancel":
            asked.call.cancel("because")
        if how == "deadline":
            asked.call.deadline = 0.0
        if how in ("cancel", "deadline"):
            assert isinstance(asked.call.ended(), CancelledError if how == "cancel" else DeadlineError)
        for step in (asked.stack.close, asked.call.end)[:: 1 if handler_first else -1]:
            step()
        for part in asked.begun:
            asked.parts.close(part)
        # A reservation after the end is released at once.
        _unless_busy(lambda: self._machine.payload_memory.reserve(1000, asked.call))
        try:
            asked.parts.begin("late")
        except CancelledError:
            return
        raise AssertionError("a part began after its call had ended")

    @precondition(lambda self: self._calls)
    @rule(which=WHICH)
    def end_while_parts_begin(self, which: int) -> None:
        asked = self._one(which)
        self._calls.remove(asked)
        begun = threading.Event()

        def read() -> None:
            try:
                for _ in range(1000):
                    part = asked.parts.begin("step")
                    _unless_busy(lambda part=part: self._machine.payload_memory.reserve(1000, part))
                    begun.set()
            except CancelledError:
                return

        thread = threading.Thread(target=read)
        thread.start()
        begun.wait(60)
        asked.stack.close()
        asked.call.end()
        thread.join()

    @rule(tenant=st.sampled_from(TENANTS), size=st.integers(1, 2 * MIB), content=st.integers(0, 5))
    def scene(self, tenant: str, size: int, content: int) -> None:
        runtime = self._of(tenant)
        # Refused if the scene does not fit together with those of other tenants.
        with suppress(BusyError):
            stored, _ = runtime.scenes.add(f"{content:064x}", _content(size))
            self._scenes.append((runtime, stored.scene_id))

    @precondition(lambda self: self._scenes)
    @rule(which=WHICH, size=st.integers(1, 2 * MIB), deletes=st.booleans())
    def change_scene(self, which: int, size: int, deletes: bool) -> None:
        runtime, scene_id = self._scenes[which % len(self._scenes)]
        try:
            if deletes:
                runtime.scenes.delete(scene_id)
            else:
                runtime.scenes.replace(scene_id, runtime.scenes.find(scene_id, 0).version, _content(size))
        except SceneNotFoundError:
            pass

    @rule(tenant=st.sampled_from(TENANTS), size=st.integers(1, 2 * MIB))
    def state(self, tenant: str, size: int) -> None:
        runtime = self._of(tenant)
        name = runtime.contexts.add(SimpleNamespace(), size)  # type: ignore[arg-type]
        self._states.append((runtime, name))

    @precondition(lambda self: self._states)
    @rule(which=WHICH, size=st.integers(1, 2 * MIB), releases=st.booleans())
    def use_state(self, which: int, size: int, releases: bool) -> None:
        runtime, name = self._states[which % len(self._states)]
        try:
            runtime.contexts.peek(name)
        except ContextLostError:
            assert not runtime.contexts.release(name)
            return
        runtime.contexts.resize(name, size)
        assert not releases or runtime.contexts.release(name)

    @precondition(lambda self: any(asked.training is None for asked in self._calls))
    @rule(which=WHICH, row=st.integers(0, 1000), count=st.integers(1, 4000), fails=st.booleans())
    def train(self, which: int, row: int, count: int, fails: bool) -> None:
        idle = [asked for asked in self._calls if asked.training is None]
        asked, trainings = idle[which % len(idle)], idle[which % len(idle)].runtime.trainings
        self._number += 1
        stack = ExitStack()
        try:
            training = stack.enter_context(trainings.begin(f"scene-{self._number % 7}", "", asked.call))
            with trainings.reserved(Footprint(row, 1000, 10), count) as reservation:
                if fails:
                    raise BusyError("nothing was made", None)
            trainings.keep(training, SimpleNamespace(scene_id=training.scene_id, reservation=reservation))  # type: ignore[arg-type]
        except (BusyError, TrainingHeldError):
            stack.close()
            return
        asked.stack, asked.training, asked.count = stack, training, count

    @precondition(lambda self: any(asked.training for asked in self._calls))
    @rule(which=WHICH, count=st.integers(1, 8000), succeeds=st.booleans())
    def grow(self, which: int, count: int, succeeds: bool) -> None:
        asked = self._training(which)
        before = asked.reservation.bytes
        try:
            asked.reservation.grow(count)
        except BusyError:
            assert asked.reservation.bytes == before
            return
        asked.count = count if succeeds else asked.count
        asked.reservation.resize(asked.count)
        assert succeeds or asked.reservation.bytes == before

    @precondition(lambda self: any(asked.training for asked in self._calls))
    @rule(which=WHICH, size=SIZES)
    def wait_for_gradients(self, which: int, size: int) -> None:
        asked = self._training(which)

        def reserve() -> None:
            waiting: Reservation = asked.runtime.trainings.reserve(size)
            asked.waiting_bytes += size
            # A second release releases nothing.
            asked.stack.callback(waiting.release)
            asked.stack.callback(waiting.release)

        _unless_busy(reserve)

    @precondition(lambda self: any(asked.training for asked in self._calls))
    @rule(which=WHICH)
    def finish(self, which: int) -> None:
        asked = self._training(which)
        assert asked.training is not None
        asked.runtime.trainings.forget(asked.training)

    @rule()
    def expire(self) -> None:
        self._tenants.expire()

    @invariant()
    def nobody_has_more_than_a_share(self) -> None:
        for account in (self._machine.payload_memory.account, *self._tenants.accounts.values()):
            taken = account.tenants()
            assert sum(taken.values()) == account.taken <= account.limit
            assert all(0 < amount <= account.share for amount in taken.values())

    @invariant()
    def each_tenant_has_what_its_calls_took(self) -> None:
        expected: Counter[str] = Counter()
        for asked in self._calls:
            expected[asked.call.tenant] += asked.own_bytes + sum(asked.part_bytes.values())
        assert self._machine.payload_memory.account.tenants() == dict(+expected)

    @invariant()
    def each_tenant_has_what_its_trainings_took(self) -> None:
        expected: Counter[str] = Counter()
        for asked in self._calls:
            expected[asked.call.tenant] += asked.waiting_bytes
        (account,) = self._tenants.accounts.values()
        assert all(account.tenants().get(tenant, 0) >= nbytes for tenant, nbytes in expected.items())

    def teardown(self) -> None:
        for asked in self._calls:
            asked.stack.close()
            asked.call.end()
        assert self._machine.payload_memory.account.taken == 0
        self._tenants.clear()
        assert [account.taken for account in self._tenants.accounts.values()] == [0]
        gauges = self._tenants.gauges()
        assert [gauges[name]() for name in ("scene_bytes", "context_bytes", "trainings")] == [0, 0, 0]

    def _one(self, which: int) -> Asked:
        return self._calls[which % len(self._calls)]

    def _training(self, which: int) -> Asked:
        holders = [asked for asked in self._calls if asked.training is not None]
        return holders[which % len(holders)]

    def _of(self, tenant: str) -> Runtime:
        return self._tenants.of(SimpleNamespace(tenant=tenant))  # type: ignore[arg-type]


def _content(nbytes: int) -> Any:
    return SimpleNamespace(bytes=nbytes, needs=(), kind="spheres", count=1, describe=lambda info: None)


def _unless_busy(reserve: Callable[[], None]) -> bool:
    """Returns whether the reservation succeeded."""
    with suppress(BusyError):
        reserve()
        return True
    return False


_MACHINE = make_machine(
    dataclasses.replace(CONFIG, tokens_file="tokens"), Transfer(torch.device("cpu")), Metrics(), lambda *_: None
)


@atexit.register
def _end() -> None:
    """Ends the native queue, which Hypothesis' classes would otherwise keep with this module beyond Python's end."""
    global _MACHINE
    _MACHINE.executor.close()
    del _MACHINE
