"""The choice of a device, and the errors if a GPU cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from lumigrad.kernels import _native, device


@dataclass
class Gpu:
    name: str
    capability: tuple[int, int]


@dataclass
class Probe:
    """Results of the native module's probe, which a test changes."""

    driver: int = 13000
    runtime: int = 13000
    error: str = ""
    gpus: list[Gpu] = field(default_factory=list)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Probe:
    """A machine with a driver and no GPUs at first; torch sees the GPUs of the probe."""
    probe = Probe()
    monkeypatch.setattr(_native, "CUDA_BUILT", True)
    monkeypatch.setattr(_native, "CUDA_ARCHITECTURES", "80,90-real")
    monkeypatch.setattr(_native, "cuda_probe", lambda: probe)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(probe.gpus))
    return probe


def test_auto_takes_a_gpu_that_has_code(machine: Probe) -> None:
    assert device.resolve("auto") == torch.device("cpu")
    machine.gpus[:] = [Gpu("L4", (8, 9)), Gpu("T4", (7, 5))]
    assert device.resolve("auto") == torch.device("cuda", 0)
    assert device.cuda_lack() == ""
    machine.gpus[:] = [Gpu("T4", (7, 5)), Gpu("H100", (9, 0))]
    assert device.resolve("auto") == torch.device("cpu")
    assert device.cuda_lack() == "T4 has compute capability 7.5; the kernels are compiled for 80,90-real"
    assert device.resolve("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("architectures", "runs", "runs_not"),
    [
        ("80,90", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)], [(7, 5)]),
        ("80-real,90-real", [(8, 0), (8, 6), (9, 0)], [(7, 5), (10, 0), (12, 0)]),
        ("86-real,120", [(8, 6), (8, 9), (12, 0), (12, 1)], [(8, 0), (9, 0), (10, 0)]),
        ("75-virtual", [(7, 5), (9, 0)], [(7, 0)]),
    ],
)
def test_binary_code_runs_on_its_major_version_and_ptx_on_all_newer(
    machine: Probe,
    monkeypatch: pytest.MonkeyPatch,
    architectures: str,
    runs: list[tuple[int, int]],
    runs_not: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr(_native, "CUDA_ARCHITECTURES", architectures)
    for capability in runs + runs_not:
        machine.gpus[:] = [Gpu("GPU", capability)]
        assert (device.cuda_lack() == "") == (capability in runs), capability


def test_the_first_thing_that_is_missing_is_named(machine: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.gpus[:] = [Gpu("H100", (9, 0))]
    assert device.cuda_lack(2) == "there are 1 CUDA devices"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device.cuda_lack() == f"torch {torch.__version__} does not find H100; install a torch for CUDA 13"
    machine.error = "unknown error (cudaErrorUnknown)"
    assert device.cuda_lack() == "CUDA cannot list the GPUs: unknown error (cudaErrorUnknown)"
    machine.driver = 12040
    expected = "the NVIDIA driver supports CUDA 12.4, and the kernels need CUDA 13.0; update the driver"
    assert device.cuda_lack() == expected
    machine.driver = 0
    assert "there is no NVIDIA driver here; install one for CUDA 13.0" in device.cuda_lack()
    monkeypatch.setattr(_native, "CUDA_BUILT", False)
    assert "no CUDA kernels" in device.cuda_lack()


def test_a_gpu_that_is_asked_for_by_name_must_be_usable(machine: Probe) -> None:
    with pytest.raises(ValueError, match=r"device 'cuda:0': there are 0 CUDA devices; use 'cpu'"):
        device.resolve("cuda:0")
    machine.gpus[:] = [Gpu("T4", (7, 5))]
    for name, why in {"cuda": "compute capability 7.5", "cuda:1": "there are 1 CUDA devices"}.items():
        with pytest.raises(ValueError, match=f"device '{name}': .*{why}.*; use 'cpu'"):
            device.resolve(name)


def test_the_probe_tells_what_is_here() -> None:
    probe = _native.cuda_probe()
    assert (probe.runtime > 0) == _native.CUDA_BUILT == bool(_native.CUDA_ARCHITECTURES)
    if _native.CUDA_BUILT:
        assert (probe.driver == 0) == device.cuda_lack().startswith("there is no NVIDIA driver")
        assert probe.error or probe.gpus


def test_the_memory_of_file_caches_counts_as_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal: 8000 kB\nMemFree: 100 kB\nMemAvailable: 7000 kB\n")
    monkeypatch.setattr(device, "_MEMORY_TABLE", str(table))
    assert device.describe(torch.device("cpu")).memory_free_bytes == 7000 * 1024
    # Other systems have no such table.
    monkeypatch.setattr(device, "_MEMORY_TABLE", str(tmp_path / "absent"))
    told = device.describe(torch.device("cpu"))
    assert 0 < told.memory_free_bytes <= told.memory_bytes
