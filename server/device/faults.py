"""Classification of device errors: errors that corrupt the CUDA context ("sticky" errors), and exhausted memory."""

from __future__ import annotations

import traceback

import torch

# CUDA's names and descriptions of sticky errors; messages of torch and of the kernels contain either.
_TEXTS = (
    "cudaErrorAssert",
    "cudaErrorContained",
    "cudaErrorECCUncorrectable",
    "cudaErrorHardwareStackError",
    "cudaErrorIllegalAddress",
    "cudaErrorIllegalInstruction",
    "cudaErrorInvalidAddressSpace",
    "cudaErrorInvalidPc",
    "cudaErrorLaunchFailure",
    "cudaErrorLaunchTimeout",
    "cudaErrorMisalignedAddress",
    "cudaErrorNvlinkUncorrectable",
    "cudaErrorUnknown",
    "device-side assert",
    "hardware stack error",
    "illegal instruction",
    "illegal memory access",
    "invalid program counter",
    "launch timed out",
    "misaligned address",
    "not supported on global/shared address space",
    "uncorrectable ECC",
    "uncorrectable NVLink",
    "unknown error",
    "unspecified launch failure",
)


def is_device_lost(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, reports that the CUDA context is corrupted."""
    seen: BaseException | None = error
    while seen is not None:
        text = str(seen)
        if isinstance(seen, RuntimeError) and "CUDA" in text and any(sign in text for sign in _TEXTS):
            return True
        seen = seen.__cause__
    return False


# Texts of out-of-memory errors without a specific type, from torch's CPU allocator and GPU libraries.
_MEMORY_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, reports that memory was exhausted."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError | torch.cuda.OutOfMemoryError):
            return True
        if isinstance(seen, RuntimeError) and any(text in str(seen) for text in _MEMORY_TEXTS):
            return True
        seen = seen.__cause__
    return False


def release_locals(error: BaseException) -> None:
    """Clear the local variables of the frames in an error's traceback, so that the tensors in them are freed.

    Errors live long, because the frames in their tracebacks refer to them. The stack can still be printed.
    """
    errors, seen = [error], {id(error)}
    for one in errors:
        if one.__traceback__ is not None:
            traceback.clear_frames(one.__traceback__)
        for other in (one.__cause__, one.__context__):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                errors.append(other)
