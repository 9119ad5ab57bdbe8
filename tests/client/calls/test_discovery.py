"""Addresses that a function of the program returns: whatever goes wrong with it, the search for workers goes on."""

from __future__ import annotations

import logging

import pytest

from lumigrad.client import Client, InvalidArgument, Unavailable
from lumigrad.client.workers import pool as pools
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_LOOK_S", 0.01)
    monkeypatch.setattr(pools, "_SOON_S", 0.01)


class Directory:
    """Returns `found`, or raises it if it is an exception."""

    def __init__(self, *found: object) -> None:
        self.found: object = found
        self.calls = 0

    def __call__(self) -> object:
        self.calls += 1
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


def targets(client: Client) -> set[str]:
    return {worker.target for worker in client._workers.members()}


@pytest.mark.parametrize(
    "error",
    [OSError("consul: connection reset"), KeyError("address"), SystemExit(1), MemoryError(), Unavailable("none")],
    ids=lambda error: type(error).__name__,
)
def test_the_search_goes_on_after_any_error(
    worker_process: WorkerProcess, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Directory(worker_process.target)
    with caplog.at_level(logging.INFO, "lumigrad"), Client(directory) as client:
        client.info()
        directory.found = error
        calls = directory.calls
        wait_until(lambda: directory.calls > calls + 5)
        assert client.info().device == "cpu"
        assert caplog.text.count("the look-up of workers fails") == 1
        assert (str(error) or type(error).__name__) in caplog.text
        # New workers are added, and missing ones dropped.
        directory.found = [worker_process.target, "localhost:1"]
        wait_until(lambda: targets(client) == {worker_process.target, "localhost:1"})
        assert caplog.text.count("succeeds again") == 1
        directory.found = [worker_process.target]
        wait_until(lambda: targets(client) == {worker_process.target})
        directory.found = error
        wait_until(lambda: caplog.text.count("the look-up of workers fails") == 2)


def test_an_error_of_the_first_look_up_is_repeated(worker_process: WorkerProcess) -> None:
    directory = Directory()
    directory.found = OSError("consul: not yet")

    def found() -> object:
        if directory.calls == 3:
            directory.found = [worker_process.target]
        return directory()

    with Client(found, retry_s=60) as client:
        assert client.info().device == "cpu"
        assert directory.calls >= 4
    directory.found = OSError("consul: " + "x" * 5000)
    with Client(directory, retry_s=0) as client, pytest.raises(Unavailable, match="OSError: consul: x") as raised:
        client.info()
    assert len(str(raised.value)) <= 500


@pytest.mark.parametrize(("found", "text"), [(["nonsense"], "target: expected"), ([5], "target: expected")])
def test_what_is_no_address_is_an_invalid_argument(found: object, text: str) -> None:
    directory = Directory()
    directory.found = found
    with Client(directory) as client, pytest.raises(InvalidArgument, match=text):
        client.info()


def test_one_address_need_not_be_in_a_list(worker_process: WorkerProcess) -> None:
    directory = Directory()
    directory.found = worker_process.target
    with Client(directory) as client:
        assert client.info().device == "cpu"


def test_nobody_is_unavailable() -> None:
    directory = Directory()
    for found in ([], None, ""):
        directory.found = found
        with Client(directory, retry_s=0) as client, pytest.raises(Unavailable, match="no worker at"):
            client.info()


@pytest.mark.parametrize("wrong", ["", [], (), iter(()), 5, ["a:1", ""]])
def test_no_address_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^target: expected"):
        Client(wrong)  # type: ignore[arg-type]


def test_an_empty_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", "")
    with pytest.raises(InvalidArgument, match=r"^LUMIGRAD_TARGET: expected an address, got ''; unset it"):
        Client()
    assert Client("localhost:1").target == "localhost:1"


def test_a_name_that_no_resolver_takes_is_unavailable() -> None:
    # Labels have at most 63 characters.
    with Client(f"dns:///{'x' * 70}.example:1", retry_s=0) as client, pytest.raises(Unavailable, match="cannot be res"):
        client.info()
