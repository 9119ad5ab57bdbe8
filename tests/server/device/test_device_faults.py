"""Errors after which only a new process helps are told from those that pass."""

from __future__ import annotations

import pytest
import torch

from lumigrad.server.device.faults import is_device_lost


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: unknown error",
        "CUDA: sort: misaligned address (cudaErrorMisalignedAddress)",
        "CUDA: blend: whatever they call it (cudaErrorIllegalInstruction)",
    ],
)
def test_a_broken_context_is_device_lost(text: str) -> None:
    assert is_device_lost(RuntimeError(text))
    try:
        raise ValueError("while blending") from RuntimeError(text)
    except ValueError as error:
        assert is_device_lost(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("an unknown error"),
        RuntimeError("CUDA error: invalid configuration argument"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        ValueError("CUDA: expected no illegal memory access"),
    ],
)
def test_what_passes_is_not(error: Exception) -> None:
    assert not is_device_lost(error)
