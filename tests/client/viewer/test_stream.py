"""The viewer's pictures: the newest request counts, one is rendered at a time, and a still camera gets a sharp one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from lumigrad.client.errors import Cancelled, InvalidArgument, Unavailable
from lumigrad.client.transport.call import Cancellation
from lumigrad.client.viewer.stream import Latest, Order, Pace, Shown, Stream
from support.workers.slow_render import wait_until

SECONDS = 120.0


@dataclass(frozen=True)
class Request:
    number: int
    size: tuple[int, int] = (64, 48)


@dataclass
class Worker:
    """A worker that renders each request as its number, and a browser; the tests' events hold either up."""

    orders: list[tuple[int, Order]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    delivered: list[tuple[int, Order]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    delivery_errors: list[Exception] = field(default_factory=list)
    may_render: threading.Event = field(default_factory=threading.Event)
    may_sharpen: threading.Event = field(default_factory=threading.Event)
    may_take: threading.Event = field(default_factory=threading.Event)

    def render(self, request: Request, order: Order, cancellation: Cancellation) -> tuple[int, Order]:
        self.orders.append((request.number, order))
        if self.errors:
            raise self.errors.pop(0)
        until = time.monotonic() + SECONDS
        allowed = self.may_sharpen if order.is_sharp else self.may_render
        while not allowed.wait(0.01) and time.monotonic() < until:
            if cancellation.wait(0.0):
                self.cancelled.append(request.number)
                raise Cancelled("this program cancelled the call")
        return request.number, order

    def deliver(self, picture: tuple[int, Order]) -> None:
        self.delivered.append(picture)
        if self.delivery_errors:
            raise self.delivery_errors.pop(0)
        self.may_take.wait(SECONDS)

    def fail(self, error: Exception) -> bool:
        self.failures.append(error)
        return isinstance(error, Unavailable)


@pytest.fixture
def fake() -> Worker:
    made = Worker()
    made.may_render.set()
    made.may_sharpen.set()
    made.may_take.set()
    return made


@pytest.fixture
def shown() -> list[Shown]:
    return []


@pytest.fixture
def stream(fake: Worker, shown: list[Shown]) -> Iterator[Stream]:
    made = Stream(fake.render, fake.deliver, Pace(1 / 30), note=shown.append, fail=fake.fail)
    yield made
    made.close()
    fake.may_render.set()
    fake.may_sharpen.set()
    fake.may_take.set()
    made.join(SECONDS)
    assert not any(thread.is_alive() for thread in made._threads)


def test_a_wish_is_shown_coarse_at_once_and_sharp_at_rest(stream: Stream, fake: Worker, shown: list[Shown]) -> None:
    stream.request(Request(1))
    wait_until(lambda: len(shown) == 2)
    assert [entry.order for entry in shown] == [Order(32, 24, is_sharp=False), Order(64, 48, is_sharp=True)]
    assert [number for number, _ in fake.delivered] == [1, 1]
    # Nothing is rendered after the sharp picture.
    time.sleep(0.3)
    assert len(fake.orders) == 2


def test_a_scene_that_changes_is_shown_sharply_again(stream: Stream, fake: Worker) -> None:
    stream.request(Request(1))
    wait_until(lambda: len(fake.delivered) == 2)
    stream.refresh()
    wait_until(lambda: len(fake.delivered) == 3)
    assert fake.delivered[-1] == (1, Order(64, 48, is_sharp=True))
    # A change while a picture is rendered is not lost, and does not cancel that picture.
    fake.may_sharpen.clear()
    stream.refresh()
    wait_until(lambda: len(fake.orders) == 4)
    stream.refresh()
    stream.refresh()
    fake.may_sharpen.set()
    wait_until(lambda: len(fake.delivered) == 5)
    time.sleep(0.3)
    assert (len(fake.orders), fake.cancelled) == (5, [])


def test_of_many_wishes_while_one_is_rendered_the_newest_counts(stream: Stream, fake: Worker) -> None:
    fake.may_render.clear()
    stream.request(Request(0))
    wait_until(lambda: len(fake.orders) == 1)
    for number in range(1, 100):
        stream.request(Request(number))
    fake.may_render.set()
    wait_until(lambda: len(fake.delivered) == 3)
    assert [number for number, _ in fake.orders] == [0, 99, 99]
    assert not fake.cancelled


@pytest.mark.alone
def test_a_browser_that_is_slow_gets_no_queue(stream: Stream, fake: Worker) -> None:
    """One picture is on its way, one waits, and the worker is asked for no more."""
    fake.may_take.clear()
    for number in range(50):
        stream.request(Request(number))
        time.sleep(0.002)
    wait_until(lambda: len(fake.orders) >= 2)
    time.sleep(0.5)
    asked = len(fake.orders)
    # A third is asked for only if this test was held up and a sharp picture begun.
    assert asked <= 3
    time.sleep(0.5)
    assert (len(fake.orders), len(fake.delivered)) == (asked, 1)
    stream.request(Request(50))
    fake.may_take.set()
    wait_until(lambda: fake.delivered[-1] == (50, Order(64, 48, is_sharp=True)))
    assert len(fake.orders) == asked + 2


def test_a_sharp_picture_that_is_overtaken_is_cancelled(stream: Stream, fake: Worker) -> None:
    fake.may_sharpen.clear()
    stream.request(Request(1))
    wait_until(lambda: len(fake.orders) == 2)
    assert fake.orders[1][1].is_sharp
    stream.request(Request(2))
    wait_until(lambda: fake.cancelled == [1])
    fake.may_sharpen.set()
    wait_until(lambda: fake.delivered[-1] == (2, Order(64, 48, is_sharp=True)))
    assert not fake.failures
    assert (1, Order(64, 48, is_sharp=True)) not in fake.delivered


def test_a_worker_that_is_away_is_asked_again(stream: Stream, fake: Worker) -> None:
    fake.errors = [Unavailable("away"), Unavailable("away")]
    stream.request(Request(1))
    wait_until(lambda: bool(fake.delivered))
    assert [str(error) for error in fake.failures] == ["away", "away"]
    assert fake.delivered[-1][0] == 1


def test_what_is_refused_is_asked_again_only_for_another_wish(stream: Stream, fake: Worker) -> None:
    fake.errors = [InvalidArgument("no")]
    stream.request(Request(1))
    wait_until(lambda: len(fake.failures) == 1)
    time.sleep(0.5)
    assert len(fake.orders) == 1
    stream.request(Request(2))
    wait_until(lambda: bool(fake.delivered))


def test_an_error_is_told_after_the_picture_before_it_has_arrived(
    stream: Stream, fake: Worker, shown: list[Shown]
) -> None:
    fake.may_take.clear()
    stream.request(Request(1))
    wait_until(lambda: len(fake.delivered) == 1)
    fake.errors = [InvalidArgument("no")]
    stream.request(Request(2))
    wait_until(lambda: not fake.errors)
    time.sleep(0.05)
    assert not fake.failures
    fake.may_take.set()
    wait_until(lambda: bool(fake.failures))
    assert len(shown) == 1


def test_the_pace_learns_from_the_slower_of_worker_and_browser(fake: Worker) -> None:
    learnt: list[float] = []

    class Listening(Pace):
        def observe(self, pixels: int, seconds: float) -> None:
            learnt.append(seconds)

    fake.may_take.clear()
    stream = Stream(fake.render, fake.deliver, Listening(1 / 30))
    try:
        stream.request(Request(1))
        wait_until(lambda: len(fake.delivered) == 1)
        time.sleep(0.2)
        fake.may_take.set()
        wait_until(lambda: len(learnt) == 2)
        assert learnt[0] >= 0.2
    finally:
        stream.close()
        stream.join(SECONDS)


def test_closing_cancels_what_is_rendered(fake: Worker) -> None:
    fake.may_sharpen.clear()
    stream = Stream(fake.render, fake.deliver, Pace(1 / 30), fail=fake.fail)
    stream.request(Request(1))
    wait_until(lambda: len(fake.orders) == 2)
    stream.close()
    stream.join(SECONDS)
    assert fake.cancelled == [1]
    assert not fake.failures


@pytest.mark.alone
def test_pictures_of_a_slow_worker_are_smaller_while_the_camera_moves(fake: Worker, shown: list[Shown]) -> None:
    """The worker takes 0.3 s for a picture of full size."""

    def render(request: Request, order: Order, cancellation: Cancellation) -> tuple[int, Order]:
        time.sleep(0.3 * order.width * order.height / (640 * 480))
        return request.number, order

    stream = Stream(render, fake.deliver, Pace(1 / 30), note=shown.append)
    try:
        for number in range(200):
            stream.request(Request(number, (640, 480)))
            time.sleep(0.01)
        wait_until(lambda: bool(shown) and shown[-1].order.is_sharp and shown[-1].picture[0] == 199)
    finally:
        stream.close()
        stream.join(SECONDS)
    moving = [entry.order.width for entry in shown if not entry.order.is_sharp]
    assert 160 <= min(moving) < 0.5 * 640
    assert shown[-1].picture == (199, Order(640, 480, is_sharp=True))


ANY = [ValueError("cannot reshape"), KeyError("color"), MemoryError(), RuntimeError("the browser has gone")]


@pytest.mark.parametrize("error", ANY, ids=lambda error: type(error).__name__)
def test_no_error_of_a_picture_is_the_last_word(
    stream: Stream, fake: Worker, shown: list[Shown], error: Exception
) -> None:
    fake.errors.append(error)
    stream.request(Request(1))
    wait_until(lambda: fake.failures == [error])
    stream.request(Request(2))
    wait_until(lambda: len(shown) == 2)
    assert [number for number, _ in fake.delivered] == [2, 2]


@pytest.mark.parametrize("error", ANY, ids=lambda error: type(error).__name__)
def test_no_error_of_a_delivery_is_the_last_word(stream: Stream, fake: Worker, error: Exception) -> None:
    fake.delivery_errors.append(error)
    stream.request(Request(1))
    wait_until(lambda: len(fake.delivered) == 2)
    assert fake.failures == [error]
    assert [order.is_sharp for _, order in fake.delivered] == [False, True]


def test_an_error_that_cannot_be_shown_is_not_the_last_word(fake: Worker, caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: Exception) -> bool:
        raise RuntimeError("the page has gone")

    stream = Stream(fake.render, fake.deliver, Pace(1 / 30), fail=fail)
    fake.errors.append(ValueError("wrong"))
    stream.request(Request(1))
    wait_until(lambda: "the viewer cannot show an error: wrong" in caplog.text)
    stream.request(Request(2))
    wait_until(lambda: len(fake.delivered) == 2)
    stream.close()
    stream.join(SECONDS)


def test_work_on_the_latest_value_goes_on_after_an_error() -> None:
    done: list[int] = []
    failures: list[Exception] = []

    def work(value: int) -> None:
        if value < 0:
            raise ValueError(value)
        done.append(value)

    latest = Latest[int](work, failures.append)
    latest.put(-1)
    wait_until(lambda: len(failures) == 1)
    latest.put(1)
    wait_until(lambda: done == [1])
    latest.close()
