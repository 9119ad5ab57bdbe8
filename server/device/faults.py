"""Errors after which the device's context cannot be used any more, which CUDA calls sticky."""

from __future__ import annotations

# What CUDA calls them, by name and in words; torch and our kernels pass on one or the other.
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
    """Whether an error, or one of its causes, says that the device's context is broken."""
    seen: BaseException | None = error
    while seen is not None:
        text = str(seen)
        if isinstance(seen, RuntimeError) and "CUDA" in text and any(sign in text for sign in _TEXTS):
            return True
        seen = seen.__cause__
    return False
