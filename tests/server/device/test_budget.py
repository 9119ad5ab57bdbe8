"""Room that several stores share, and the labels of tenants in the metrics."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lumigrad.protos.chunks import allocate_bytes
from lumigrad.server.core.accounts import Account, PayloadMemory
from lumigrad.server.core.errors import BusyError, ContextLostError, DeviceMemoryError, SceneNotFoundError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.record import CallRecord
from lumigrad.server.device.memory import Budget, Cost, DeviceMemory
from lumigrad.server.storage import contexts, page_pool, scenes
from lumigrad.server.storage.contexts import ContextStore
from lumigrad.server.storage.page_pool import PagePool
from lumigrad.server.storage.scenes import SceneStore


@pytest.fixture(autouse=True)
def _no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (contexts, page_pool, scenes):
        monkeypatch.setattr(module, "OVERHEAD_BYTES", 0)


def contexts_of(budget: Budget, limit: int = 100, count: int = 100) -> ContextStore[str]:
    return ContextStore(limit, 60.0, budget, Metrics(), count)


def content(nbytes: int) -> Any:
    return SimpleNamespace(bytes=nbytes, needs=(), kind="spheres", count=1, describe=lambda info: None)


def test_who_has_most_gives_first() -> None:
    budget = Budget(100)
    large, small = contexts_of(budget), contexts_of(budget)
    names = [large.add(str(number), 30) for number in range(3)]
    kept = small.add("small", 5)
    small.add("more", 20)
    assert (len(large), len(small), budget.bytes) == (2, 2, 85)
    with pytest.raises(ContextLostError):
        large.find(names[0])
    assert small.find(kept) == "small"


def test_what_does_not_fit_beside_the_parts_of_others_is_not_kept() -> None:
    budget, metrics = Budget(100), Metrics()
    one, other = contexts_of(budget), contexts_of(budget)
    kept = other.add("other", 40)
    assert one.add("one", 90) == ""
    assert (other.find(kept), budget.bytes) == ("other", 40)
    # The other store is empty now.
    other.release(kept)
    assert one.find(one.add("one", 90)) == "one"
    budget = Budget(100)
    store, full = (SceneStore(100, budget, metrics) for _ in range(2))
    first = full.add("a" * 64, content(50))[0]
    with pytest.raises(BusyError, match=r"of 100 bytes \(--scene-mib\) and \d+ scenes \(--max-scenes\) in all"):
        store.add("b" * 64, content(60))
    assert (len(store), full.find(first.scene_id)) == (0, first)


def test_what_is_larger_than_all_the_room_stays_if_nobody_else_has_anything() -> None:
    """Scenes of float16 take twice the bytes that they are sent in."""
    budget, metrics = Budget(100), Metrics()
    store, other = (SceneStore(100, budget, metrics) for _ in range(2))
    gone = store.add("a" * 64, content(20))[0]
    scene, existed = store.add("b" * 64, content(150))
    assert (store.find(scene.scene_id), existed, len(store)) == (scene, False, 1)
    with pytest.raises(SceneNotFoundError):
        store.find(gone.scene_id)
    # The large scene goes as soon as another store needs room.
    other.add("c" * 64, content(10))
    assert (len(store), len(other)) == (0, 1)


def test_numbers_are_shared_as_bytes_are() -> None:
    budget = Budget(1000, limit_count=6)
    large, small, third = (contexts_of(budget, 1000, count) for count in (4, 4, 6))
    kept = [small.add(str(number), 1) for number in range(2)]
    for number in range(6):
        large.add(str(number), 1)
    assert (len(large), len(small)) == (4, 2)
    for number in range(4):
        third.add(str(number), 1)
    # An even part is two for each store.
    assert (len(large), len(small), len(third)) == (2, 2, 2)
    assert [small.find(name) for name in kept] == ["0", "1"]


def test_what_can_be_read_again_gives_way_to_scenes_of_the_same_tenant_only() -> None:
    budget, metrics = Budget(100), Metrics()
    store, other = SceneStore(100, budget, metrics), SceneStore(100, budget, metrics)
    store.spare = pages = PagePool(100, budget, metrics)
    for number in range(4):
        pages.keep_page("scene", number, 0, torch.zeros(10, dtype=torch.uint8))
    with pytest.raises(BusyError):
        other.add("a" * 64, content(70))
    assert pages.bytes == 40
    other.add("b" * 64, content(30))
    scene = store.add("c" * 64, content(65))[0]
    assert (store.find(scene.scene_id), other.bytes, pages.bytes) == (scene, 30, 0)


def tenant_of(budget: Budget, limit: int = 100) -> tuple[SceneStore, PagePool]:
    store, pages = SceneStore(limit, budget, Metrics()), PagePool(limit, budget, Metrics())
    store.spare = pages
    return store, pages


def keep_pages(pages: PagePool, count: int, nbytes: int = 10) -> None:
    for number in range(count):
        pages.keep_page("scene", number, 0, torch.zeros(nbytes, dtype=torch.uint8))


def test_scenes_and_pages_of_a_tenant_are_one_part_of_the_memory() -> None:
    """If each store had an even part, the tenant with two of them would keep two thirds."""
    budget = Budget(120)
    (store, pages), (other, _) = tenant_of(budget, 120), tenant_of(budget, 120)
    for digest in "abcd":
        store.add(digest * 64, content(10))
    keep_pages(pages, 8)
    assert store.bytes + pages.bytes == 120
    for digest in "efghij":
        other.add(digest * 64, content(10))
    assert (store.bytes + pages.bytes, other.bytes) == (60, 60)


def test_scenes_and_pages_of_a_tenant_keep_to_its_limit_together() -> None:
    budget = Budget(1000)
    store, pages = tenant_of(budget)
    for digest in "abcdefghi":
        store.add(digest * 64, content(10))
    keep_pages(pages, 9)
    assert (store.bytes, pages.bytes) == (50, 50)
    store.add("k" * 64, content(90))
    assert (store.bytes, pages.bytes) == (90, 10)
    with store.room(50, None):
        assert (store.bytes, pages.bytes) == (90, 0)


def test_pages_are_not_kept_beside_scenes_that_wait_to_be_written() -> None:
    budget = Budget(1000)
    store, pages = tenant_of(budget)
    scene = store.add("a" * 64, content(90))[0]
    store._cache.hold(scene.scene_id)
    keep_pages(pages, 1, 20)
    assert (store.bytes, pages.bytes) == (90, 0)


def test_work_takes_no_more_than_the_part_that_is_kept_for_nobody() -> None:
    budget = Budget(100, kept_bytes=40)
    one, other = contexts_of(budget), contexts_of(budget)
    for store in (one, one, one, other):
        store.add("state", 20)
    budget.drop(100)
    assert (one.bytes, other.bytes) == (20, 20)
    other.clear()
    budget.drop(100)
    assert budget.bytes == 0


def test_within_a_share_the_least_recently_used_goes_and_others_keep_theirs() -> None:
    budget = Budget(100)
    one, other = contexts_of(budget, 50), contexts_of(budget, 50)
    kept = other.add("other", 50)
    first, second = one.add("first", 25), one.add("second", 25)
    assert one.find(first)
    one.add("third", 25)
    assert (one.find(first), other.find(kept)) == ("first", "other")
    with pytest.raises(ContextLostError):
        one.find(second)


def test_a_state_that_grows_makes_room_too() -> None:
    budget = Budget(100)
    one, other = contexts_of(budget), contexts_of(budget)
    grown = one.add("one", 10)
    other.add("a", 40)
    other.add("b", 40)
    one.resize(grown, 30)
    assert (len(one), len(other), budget.bytes) == (1, 1, 70)


def test_scenes_of_several_tenants_share_one_budget() -> None:
    budget, metrics = Budget(100), Metrics()
    one, other = SceneStore(100, budget, metrics), SceneStore(100, budget, metrics)
    digest = "a" * 64
    scene, existed = one.add(digest, content(60))
    same, existed_too = other.add(digest, content(30))
    assert (existed, existed_too) == (False, False)
    other.replace(same.scene_id, 1, content(60))
    assert (len(one), other.find(same.scene_id).version, budget.bytes) == (0, 2, 60)
    assert one.find_content(digest) is None
    assert scene.version == 1


def executed(function: Callable[[], object]) -> int:
    """Returns the number of Python functions that a call executes."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    # Finalizers of objects that earlier tests left would count too.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_asking_what_is_free_takes_no_longer_for_many_tenants() -> None:
    memory, contexts = DeviceMemory(torch.device("cpu"), 1000), Budget(100)
    memory.share_with(contexts, Budget(100), Account("bytes of trainings", 100, "--training-mib"))
    contexts_of(contexts).add("one", 10)
    few = executed(lambda: memory.room_bytes(Cost()))
    for _ in range(20):
        contexts_of(contexts).add("another", 1)
    assert executed(lambda: memory.room_bytes(Cost())) == few
    assert memory.free_bytes == 970


def test_jobs_that_need_no_memory_do_not_hide_a_leak() -> None:
    """The worker's tests of the device run between calls, and succeed however much has leaked."""
    reasons: list[str] = []
    memory = DeviceMemory(torch.device("cpu"), 1000, on_leak=reasons.append)
    memory.share_with(Budget(100), Budget(100), Account("bytes of trainings", 100, "--training-mib"))

    def fail() -> None:
        raise torch.cuda.OutOfMemoryError

    def fails(times: int) -> None:
        for _ in range(times):
            memory.run(lambda: None, Cost())
            with pytest.raises(DeviceMemoryError):
                memory.run(fail, Cost(bytes=100))

    fails(4)
    memory.run(lambda: None, Cost(bytes=100))
    fails(4)
    assert not reasons
    fails(1)
    assert reasons == ["5 consecutive calls failed to allocate memory that should be free: it leaks"]


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_of_a_budget_are_those_of_its_stores(seed: int) -> None:
    random, budget = Random(seed), Budget(200)
    stores = [contexts_of(budget) for _ in range(3)]
    names: list[tuple[ContextStore[str], str]] = []
    part = SimpleNamespace(bytes=7)
    for _ in range(200):
        store, choice = random.choice(stores), random.random()
        if choice < 0.5 or not names:
            names.append((store, store.add("state", random.randrange(60), [part] * random.randrange(2))))
        elif choice < 0.7:
            owner, name = random.choice(names)
            owner.resize(name, random.randrange(60))
        elif choice < 0.95:
            owner, name = names.pop(random.randrange(len(names)))
            owner.release(name)
        else:
            store.clear()
        assert budget.bytes == sum(each.bytes for each in stores) <= 200


def test_the_payload_of_a_call_is_counted_once() -> None:
    """The payload is reserved when it arrives, and is part of what the call's job is predicted to take."""
    account = Account("bytes of payloads", 100, "--transit-mib")
    memory = DeviceMemory(torch.device("cpu"), 100, PayloadMemory(account, allocate_bytes))
    held = [account.reserve("own", 60)]
    memory.make_room(Cost(bytes=100, payload_bytes=60))
    held.append(account.reserve("other", 10))
    memory.make_room(Cost(bytes=90, payload_bytes=60))
    with pytest.raises(DeviceMemoryError) as raised:
        memory.make_room(Cost(bytes=91, payload_bytes=60))
    assert (raised.value.asked_bytes, raised.value.available_bytes) == (91, 90)
    assert account.taken == sum(reserved.amount for reserved in held)


class Ending:
    """A call, with what accounts use of it."""

    tenant = "other"

    def __init__(self) -> None:
        self._at_end: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        self._at_end.append(callback)

    def end(self) -> None:
        for callback in self._at_end:
            callback()


def test_what_is_announced_takes_memory_from_others_once_it_is_there() -> None:
    account = Account("bytes of payloads", 1000, "--transit-mib")
    payloads = PayloadMemory(account, allocate_bytes)
    memory = DeviceMemory(torch.device("cpu"), 100, payloads)
    call: Any = Ending()
    payloads.announce(50, call)
    assembler = payloads.assembler(200, 200, call)
    assert (account.taken, payloads.used) == (250, 0)
    memory.make_room(Cost(bytes=100))
    assembler.add(memoryview(bytes(30)))
    memory.make_room(Cost(bytes=70))
    with pytest.raises(DeviceMemoryError):
        memory.make_room(Cost(bytes=71))
    # The rest of the payload arrives and the job begins, whose reply is counted too.
    assembler.add(memoryview(bytes(170)))
    memory.begin(call)
    assert payloads.used == 250
    # Jobs that test the device run however much memory is in use.
    assert memory.run(lambda: "works", Cost()) == "works"
    call.end()
    assert (account.taken, payloads.used) == (0, 0)


def test_a_call_has_one_reservation_for_all_its_payloads_and_none_for_no_bytes() -> None:
    account = Account("bytes of payloads", 1000, "--transit-mib", share=600)
    payloads = PayloadMemory(account, allocate_bytes)
    call: Any = Ending()
    payloads.reserve(0, call)
    payloads.announce(0, call)
    assert not call._at_end
    payloads.announce(100, call)
    payloads.assembler(200, 200, call)
    payloads.reserve(50, call)
    assert len(call._at_end) == 1
    assert (account.taken, payloads.used) == (350, 50)
    # The call would need more in all than it can ever have, so it need not try again.
    with pytest.raises(BusyError, match="601 bytes of payloads are needed") as refused:
        payloads.reserve(251, call)
    assert refused.value.retry_seconds is None
    call.end()
    assert (account.taken, payloads.used) == (0, 0)


@pytest.mark.parametrize("arrived", [0, 1, 200])
def test_an_upload_leaves_nothing_behind_however_much_of_it_arrived(arrived: int) -> None:
    payloads = PayloadMemory(Account("bytes of payloads", 1000, "--transit-mib"), allocate_bytes)
    call: Any = Ending()
    assembler = payloads.assembler(200, 200, call)
    assembler.add(memoryview(bytes(arrived)))
    assert payloads.used == arrived
    call.end()
    assert (payloads.account.taken, payloads.used) == (0, 0)
    # Data that arrives late is not counted.
    assembler.add(memoryview(bytes(0)))
    assert payloads.used == 0


def test_the_labels_of_tenants_are_bounded() -> None:
    metrics = Metrics()
    for number in range(200):
        record = CallRecord("Test.Call", "id", tenant=f"tenant-{number}")
        metrics.calls_ended([record])
    (family,) = (family for family in metrics.registry.collect() if family.name == "lumigrad_tenant_calls")
    samples = {sample.labels["tenant"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
    assert len(samples) == 65
    assert samples["(others)"] == 136
