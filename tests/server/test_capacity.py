"""How much memory a worker takes for its own if it is told nothing, and how several workers share a host."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lumigrad.server.config import Config, ConfigError
from lumigrad.server.devices import each
from support.worker import worker

MIB = 1 << 20


def test_a_limit_of_data_counts_what_was_never_touched() -> None:
    """What the function gives can be had, and not much more."""
    script = (
        "import mmap, re, resource, torch\n"
        "from lumigrad.server.capacity import default_capacity, free_bytes\n"
        "private = dict(flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "untouched = mmap.mmap(-1, 1 << 30, **private)\n"
        "data = int(re.search(r'VmData:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (data + (256 << 20),) * 2)\n"
        "free = free_bytes(torch.device('cpu'))\n"
        "print(free, default_capacity(torch.device('cpu')))\n"
        "mmap.mmap(-1, free - (16 << 20), **private).close()\n"
        "try: mmap.mmap(-1, free + (16 << 20), **private)\n"
        "except OSError: print('no more')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    free, capacity, *more = done.stdout.split()
    assert 192 * MIB < int(free) <= 256 * MIB
    assert int(capacity) <= 0.91 * int(free)
    assert more == ["no", "more"]


def test_workers_of_one_host_share_what_payloads_may_take() -> None:
    config = Config(transit_mib=4096, max_payload_mib=512, tenant_transit_mib=3000, spool="/spool")
    assert [config.of_worker(1, count).transit_mib for count in (1, 2, 4, 8)] == [4096, 2048, 1024, 1024]
    assert config.of_worker(1, 4).tenant_transit_mib == 1024
    with worker(
        "--device", "cpu,cpu", "--transit-mib", "64", "--max-payload-mib", "8", "--no-spare", supervised=True
    ) as both:
        assert both.metric("lumigrad_transit_limit_bytes") == 32 * MIB


def test_a_tenant_never_has_all_that_payloads_may_take_on_one_of_several_workers() -> None:
    config = Config(tokens_file="tokens")
    for count in (1, 2, 4, 8):
        one = config.of_worker(0, count)
        assert 2 * one.max_payload_mib <= one.transit_share_mib <= one.transit_mib - 2 * one.max_payload_mib
    # What was asked for is not exceeded.
    assert Config(tokens_file="tokens", transit_mib=2048).of_worker(0, 8).transit_mib == 2048


@pytest.mark.parametrize("devices", ["cuda:0,cuda:0", "cuda,cuda:1,cuda:0", "cpu,cuda:1,cuda:1"])
def test_no_gpu_is_taken_by_two_workers(devices: str) -> None:
    with pytest.raises(ConfigError, match=r"--device: .* twice"):
        each(devices)
    assert each("cuda:1, cpu,cpu,cuda") == ["cuda:1", "cpu", "cpu", "cuda"]
