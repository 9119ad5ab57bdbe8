"""Errors that say that there was no memory."""

from __future__ import annotations

import traceback

import torch

# What torch calls it where it has no type of its own: of the CPU's allocator, of libraries on a GPU.
_TEXTS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, says that there was no memory."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError | torch.cuda.OutOfMemoryError):
            return True
        if isinstance(seen, RuntimeError) and any(text in str(seen) for text in _TEXTS):
            return True
        seen = seen.__cause__
    return False


def let_go(error: BaseException) -> None:
    """Drop what the frames hold that an error came through: tensors, which are what there is no room for."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
