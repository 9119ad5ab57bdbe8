"""The memory that a worker takes by default, and how several workers share a host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.device import capacity
from lumigrad.server.device.capacity import free_bytes, store_limits
from lumigrad.server.process.supervisor import each
from support.workers.forks import run_program
from support.workers.worker import worker

MIB = 1 << 20


def test_a_limit_of_data_counts_what_was_never_touched() -> None:
    """The reported bytes can be allocated, and not much more."""
    script = (
        "import mmap, re, resource, torch\n"
        "from lumigrad.server.device.capacity import default_capacity, free_bytes\n"
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
    done = run_program(script)
    assert done.returncode == 0, done.stderr
    free, capacity, *more = done.stdout.split()
    assert 192 * MIB < int(free) <= 256 * MIB
    assert int(capacity) <= 0.91 * int(free)
    assert more == ["no", "more"]


@pytest.mark.parametrize(
    ("line", "folder", "names", "prefix"),
    [
        ("0::/pod/worker", "pod/worker", ("memory.max", "memory.current"), ""),
        ("4:memory:/pod/worker", "memory/pod/worker", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"),
        # A container sees its own group as the root, by whatever path its host knows it.
        ("0::/../pod", ".", ("memory.max", "memory.current"), ""),
    ],
)
def test_a_control_group_limits_memory_but_cached_files_are_no_use_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, folder: str, names: tuple[str, str], prefix: str
) -> None:
    group = tmp_path / "groups" / folder
    group.mkdir(parents=True)
    for name, text in zip(names, (100 * MIB, 97 * MIB), strict=True):
        (group / name).write_text(f"{text}\n")
    stat = {"anon": 7, "file": 80, "shmem": 10, "inactive_file": 50, "active_file": 20, "inactive_anon": 9}
    (group / "memory.stat").write_text("".join(f"{prefix}{name} {count * MIB}\n" for name, count in stat.items()))
    (tmp_path / "own").write_text(f"9:cpu:/elsewhere\n{line}\n")
    monkeypatch.setattr(capacity, "_CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(capacity, "_OWN_GROUPS", tmp_path / "own")
    assert free_bytes(torch.device("cpu")) == 73 * MIB
    (group / names[0]).write_text("max\n" if not prefix else f"{(1 << 63) - 4096}\n")
    assert free_bytes(torch.device("cpu")) > 100 * MIB


def test_workers_of_one_host_share_what_payloads_may_take() -> None:
    config = Config(transit_mib=4096, max_payload_mib=512, tenant_transit_mib=3000, spool="/spool")
    assert [config.of_worker(1, count).transit_mib for count in (1, 2, 4, 8)] == [4096, 2048, 1024, 1024]
    assert config.of_worker(1, 4).tenant_transit_mib == 1024
    with worker("--device", "cpu,cpu", "--transit-mib", "64", "--max-payload-mib", "8", supervised=True) as both:
        assert both.metric("lumigrad_transit_limit_bytes") == 32 * MIB


def test_a_tenant_never_has_all_that_payloads_may_take_on_one_of_several_workers() -> None:
    config = Config(tokens_file="tokens")
    for count in (1, 2, 4, 8):
        one = config.of_worker(0, count)
        assert 2 * one.max_payload_mib <= one.transit_share_mib <= one.transit_mib - 2 * one.max_payload_mib
    # The configured limit is not exceeded.
    assert Config(tokens_file="tokens", transit_mib=2048).of_worker(0, 8).transit_mib == 2048


@pytest.mark.parametrize(
    ("memory", "options", "expected"),
    [
        (96, {}, (24, 24, 12)),
        (96, {"training_mib": 8}, (40, 8, 4)),
        (96, {"scene_mib": 8, "max_payload_mib": 8, "tenant_training_mib": 2048}, (8, 40, 10)),
        (1 << 20, {}, (4096, 8192, 4096)),
        (1, {}, (0.25, 0.25, 0.125)),
    ],
)
def test_scenes_and_trainings_of_tenants_have_at_most_half_of_the_memory(
    memory: int, options: dict[str, int], expected: tuple[float, ...]
) -> None:
    config = Config(tokens_file="tokens", **options)
    limits = store_limits(config, memory * MIB)
    found = limits.scene_bytes, limits.training_bytes, limits.tenant_training_bytes
    assert found == tuple(int(size * MIB) for size in expected)
    assert limits.is_cut == (memory < 1 << 20)
    assert not store_limits(Config(**options), memory * MIB).is_cut


@pytest.mark.parametrize("devices", ["cuda:0,cuda:0", "cuda,cuda:1,cuda:0", "cpu,cuda:1,cuda:1"])
def test_no_gpu_is_taken_by_two_workers(devices: str) -> None:
    with pytest.raises(ConfigError, match=r"--device: .* twice"):
        each(devices)
    assert each("cuda:1, cpu,cpu,cuda") == ["cuda:1", "cpu", "cpu", "cuda"]
