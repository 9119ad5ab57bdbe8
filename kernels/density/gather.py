"""Copies of rows, all tensors in one pass."""

from __future__ import annotations

import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.parameters import Parameters
from lumigrad.kernels.stages import StageTimes


def gather(parameters: Parameters, sources: torch.Tensor, kept: int) -> tuple[Parameters, StageTimes]:
    """The next generation, of copies.

    Args:
        parameters: Of this one; nothing is changed.
        sources: i32 [M], of which row each of the next is a copy.
        kept: Rows of the next that are old; moments of those behind them are 0.

    Returns:
        New tensors, and how long it took.
    """
    count, device = sources.shape[0], sources.device

    def next_of(tensor: torch.Tensor) -> torch.Tensor:
        return empty((count, *tensor.shape[1:]), torch.float32, device)

    tensors = {name: next_of(tensor) for name, tensor in parameters.tensors.items()}
    moments = {name: tuple(map(next_of, several)) for name, several in parameters.moments.items()}
    before = [*parameters.tensors.values(), *(moment for several in parameters.moments.values() for moment in several)]
    after = [*tensors.values(), *(moment for several in moments.values() for moment in several)]
    fresh = [index >= len(tensors) for index in range(len(after))]
    lists = kept, [tensor.detach() for tensor in before], after, fresh
    times = engine_for(device).run("gather", *lists, sources=sources)
    return Parameters(tensors, moments), times
