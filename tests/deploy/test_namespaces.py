"""Workers in network namespaces of their own: a link that is cut costs no call."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lumigrad.client import Client
from support.workers.client_load import renders
from support.workers.load import Load
from support.workers.namespaces import Network, network, obstacle
from support.workers.worker import WorkerProcess


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    if why := obstacle():
        pytest.skip(why)
    with network() as made:
        yield made


@pytest.fixture(scope="module")
def workers(net: Network) -> Iterator[list[WorkerProcess]]:
    machines = [net.add() for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        processes = list(pool.map(net.worker, machines))
    yield processes
    for machine, process in zip(machines, processes, strict=True):
        net.mend(machine)
        process.stop()


@pytest.mark.parametrize("number", [0, 1])
def test_a_link_that_is_cut_costs_no_call(net: Network, workers: list[WorkerProcess], number: int) -> None:
    targets = [worker.target for worker in workers]
    with Client(targets, timeout_s=240, retry_s=120) as client, Load([renders(client)], rate=5) as load:
        load.wait_for_progress(5)
        net.cut(number)
        # The cut shows only as silence: calls whose scene was there wait until their connection ends.
        load.wait_for_progress(20, seconds=200)
        net.mend(number)
        load.wait_for_progress(5)
    assert load.failed == 0, load.failures


def test_a_slow_link_delays_only_what_passes_it(net: Network, workers: list[WorkerProcess]) -> None:
    net.slow(0, 5)
    try:
        with Client([worker.target for worker in workers], timeout_s=240) as client:
            assert len(client.infos()) == 2
            renders(client)()
    finally:
        net.mend(0)
