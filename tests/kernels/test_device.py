"""Which device is chosen, and what is said where a GPU cannot be used."""

from __future__ import annotations

import pytest
import torch

from lumigrad.kernels import _native, device


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The compute capabilities of the GPUs that torch sees; a test fills it."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(_native, "CUDA_BUILT", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(found))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: found[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    return found


def test_auto_takes_a_gpu_that_has_code(gpus: list[tuple[int, int]]) -> None:
    assert device.resolve("auto") == torch.device("cpu")
    gpus[:] = [(8, 9), (7, 5)]
    assert device.resolve("auto") == torch.device("cuda", 0)
    assert device.cuda_lack() == ""
    gpus[:] = [(7, 5), (9, 0)]
    assert device.resolve("auto") == torch.device("cpu")
    assert device.cuda_lack() == "GPU 0 has compute capability 7.5, and the kernels need 8.0 or more"
    assert device.resolve("cuda:1") == torch.device("cuda", 1)


def test_a_gpu_that_is_asked_for_by_name_must_be_usable(
    gpus: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"device 'cuda:0': torch finds no CUDA device .*; use 'cpu'"):
        device.resolve("cuda:0")
    gpus[:] = [(7, 5)]
    for name, why in {"cuda": "compute capability 7.5", "cuda:1": "there are 1 CUDA devices"}.items():
        with pytest.raises(ValueError, match=f"device '{name}': .*{why}.*; use 'cpu'"):
            device.resolve(name)
    monkeypatch.setattr(_native, "CUDA_BUILT", False)
    with pytest.raises(ValueError, match="no CUDA kernels"):
        device.resolve("cuda")
