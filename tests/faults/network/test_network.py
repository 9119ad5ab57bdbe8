"""Networks that are slow, break or fall silent: every call returns the right result, or a typed error in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pytest

from lumigrad.client import Client, DeadlineExceeded
from lumigrad.client.transport import channel
from support.calls.verbs import Results, Verb, same, verbs
from support.fault_proxy import End, FaultProxy, Way
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess, worker

NAMES = [
    *("info", "put", "update", "get", "list", "delete", "render", "render_inline"),
    *("render_batch", "backward", "backward_anew", "query", "query_backward", "field"),
]
PLACES = 4
SILENT_SECONDS = 3.0
WAYS = ("up", "down")


@dataclass(frozen=True)
class Setup:
    """A worker, and the results of its calls without faults."""

    process: WorkerProcess
    verbs: Mapping[str, Verb]
    expected: Mapping[str, Results]
    # Bytes of a call, by its name and direction.
    lengths: Mapping[tuple[str, str], int]


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    with worker("--device", "cpu") as process, Client(process.target) as direct:
        made = verbs(direct)
        expected, lengths = {}, {}
        for name in NAMES:
            with FaultProxy(process.target) as proxy, Client(proxy.target) as client:
                call, before = prepared(made[name], client), (proxy.up.passed, proxy.down.passed)
                expected[name] = call()
                lengths[name, "up"] = proxy.up.passed - before[0]
                lengths[name, "down"] = proxy.down.passed - before[1]
        assert set(made) == set(NAMES)
        yield Setup(process, made, expected, lengths)


def prepared(verb: Verb, client: Client) -> Callable[[], Results]:
    """A call on a connection that is already open."""
    client.info()
    return verb(client)


def at_once(work: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(one) for one in work]:
            done.result()


@pytest.mark.parametrize("name", NAMES)
def test_a_connection_that_ends_anywhere_costs_no_call(setup: Setup, name: str) -> None:
    cuts = 0
    for way in WAYS:
        for place in range(PLACES):
            for end in (End.RESET, End.CLOSE):
                with FaultProxy(setup.process.target) as proxy, Client(proxy.target, retry_s=60) as client:
                    call = prepared(setup.verbs[name], client)
                    getattr(proxy, way).cut(1 + place * setup.lengths[name, way] // PLACES, end)
                    assert same(call(), setup.expected[name]), (way, place, end)
                    cuts += len(proxy.arrivals) - 1
    # The last cuts may come too late, since a call may take fewer bytes than were counted (flow control frames).
    assert cuts >= 2 * 2 * (PLACES - 2)


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_ends_while_it_begins_costs_no_call(setup: Setup, way: str) -> None:
    for after in (0, 1, 9, 24, 50, 100):
        with FaultProxy(setup.process.target) as proxy, Client(proxy.target, retry_s=60) as client:
            getattr(proxy, way).cut(after)
            assert same(setup.verbs["render"](client)(), setup.expected["render"]), after


def test_a_line_that_falls_silent_anywhere_is_noticed_at_the_deadline(setup: Setup) -> None:
    def lose(name: str, way: str, place: int) -> Callable[[], None]:
        def work() -> None:
            with FaultProxy(setup.process.target) as proxy, Client(proxy.target, timeout_s=SILENT_SECONDS) as client:
                client.info(timeout_s=60)
                call = None
                while call is None:
                    # A machine may be too busy for what some kinds do first.
                    with suppress(DeadlineExceeded):
                        call = setup.verbs[name](client)
                getattr(proxy, way).cut(1 + place * setup.lengths[name, way] // 3, End.SILENCE)
                started = time.monotonic()
                try:
                    assert same(call(), setup.expected[name]), (name, way, place)
                except DeadlineExceeded:
                    outcomes.append(name)
                assert time.monotonic() - started < 25 * SILENT_SECONDS, (name, way, place)

        return work

    outcomes: list[str] = []
    at_once([lose(name, way, place) for name in NAMES for way in WAYS for place in range(3)])
    # Silence at the very end of a request may come too late to matter.
    assert len(outcomes) > len(NAMES) * 3
    wait_for(setup.process, "lumigrad_calls_in_progress", 0)
    wait_for(setup.process, "lumigrad_transit_bytes", 0)


def later(way: Way) -> None:
    way.delay = 0.1


def slow(way: Way) -> None:
    way.bytes_per_second = 200e3


def in_crumbs(way: Way) -> None:
    way.piece_bytes = 61


@pytest.mark.parametrize("spoil", [later, slow, in_crumbs])
def test_slow_networks_change_no_result(setup: Setup, spoil: Callable[[Way], None]) -> None:
    def ask(name: str) -> Callable[[], None]:
        def work() -> None:
            with FaultProxy(setup.process.target) as proxy, Client(proxy.target, timeout_s=240) as client:
                spoil(proxy.up)
                spoil(proxy.down)
                call, started = setup.verbs[name](client), time.monotonic()
                assert same(call(), setup.expected[name]), name
                assert spoil is not later or time.monotonic() - started >= 0.2

        return work

    at_once([ask(name) for name in NAMES])


def test_a_trickle_of_single_bytes_changes_no_result(setup: Setup) -> None:
    with FaultProxy(setup.process.target) as proxy, Client(proxy.target) as client:
        proxy.up.piece_bytes = proxy.down.piece_bytes = 1
        for name in ("info", "list", "delete"):
            assert same(setup.verbs[name](client)(), setup.expected[name]), name


@pytest.mark.parametrize("way", WAYS)
def test_a_network_that_stands_still_for_a_while_changes_no_result(setup: Setup, way: str) -> None:
    with FaultProxy(setup.process.target) as proxy, Client(proxy.target) as client:
        call = prepared(setup.verbs["render_inline"], client)
        getattr(proxy, way).frozen = True
        started = time.monotonic()
        threading.Timer(0.5, proxy.heal).start()
        assert same(call(), setup.expected["render_inline"])
        assert time.monotonic() - started >= 0.4


def test_a_call_whose_line_has_died_is_made_again_over_another(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"grpc.keepalive_time_ms": 1000, "grpc.http2.ping_timeout_ms": 1000}
    options = tuple((name, quick.get(name, value)) for name, value in channel._DIRECT_OPTIONS)
    monkeypatch.setattr(channel, "_DIRECT_OPTIONS", options)
    # The client notices the silence later than it would stop making attempts.
    with FaultProxy(setup.process.target) as proxy, Client(proxy.target, retry_s=1) as client:
        started = time.monotonic()
        call = prepared(setup.verbs["render"], client)
        proxy.end_all(End.SILENCE)
        assert same(call(), setup.expected["render"])
        assert time.monotonic() - started > 1
