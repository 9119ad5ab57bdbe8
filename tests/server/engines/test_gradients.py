"""Gradients of a reply: how they can take fewer bytes, and the number that tells whether all of them are finite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.protos import dtypes
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.engines.gradients import Gradients, Wanted, total_of
from lumigrad.v1 import render_pb2, tensor_pb2


def counted(*tensors: torch.Tensor) -> int:
    bits = [each.view(torch.uint16) if each.dtype == torch.bfloat16 else each for each in tensors]
    arrays = {str(index): each.numpy() for index, each in enumerate(bits)}
    return Gradients(arrays, total_of(tensors).numpy()).nonfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_value_that_is_no_number_is_counted(dtype: torch.dtype) -> None:
    values = torch.linspace(-2, 2, 60).reshape(20, 3).to(dtype)
    assert counted(values, torch.arange(5)) == 0
    values[3, 1], values[4, 0], values[7, 2] = float("nan"), float("inf"), -float("inf")
    assert counted(torch.ones(4), values, torch.arange(5)) == 3


def test_sums_that_overflow_count_nothing() -> None:
    assert counted(torch.full((9,), 3e38)) == 0
    assert counted(torch.full((1,), 3e38), torch.full((1,), 3e38)) == 0


def test_nothing_has_no_value_that_is_no_number() -> None:
    assert counted() == 0
    assert counted(torch.arange(3), torch.zeros(0, 3)) == 0


def test_nobody_waits_for_values_on_a_device() -> None:
    # These tensors have no values, so reading one raises an error.
    on_device = [torch.empty(4, 3, device="meta"), torch.empty(7, device="meta", dtype=torch.float16)]
    with pytest.raises(RuntimeError):
        on_device[0].sum().item()
    total = total_of([*on_device, torch.ones(1, 7)])
    assert total.shape == () and total.device.type == "meta"
    assert np.isfinite(total_of([torch.ones(1, 7)]).numpy())


@pytest.mark.parametrize(
    ("row_gradients", "sparse", "dtype", "remedy"),
    [
        (["positions"], False, dtypes.FLOAT32, "sparse rows, fewer gradients, or 16 bits take less"),
        (["positions"], True, dtypes.FLOAT32, "fewer primitives, fewer gradients, or 16 bits take less"),
        (["positions"], False, dtypes.FLOAT16, "sparse rows or fewer gradients take less"),
        (["positions"], True, dtypes.BFLOAT16, "fewer primitives or fewer gradients take less"),
        # Gradients of a query of distances have no rows, and no other format.
        ([], False, dtypes.FLOAT32, "fewer gradients take less"),
        (["colors"], False, dtypes.FLOAT32, "fewer gradients take less"),
    ],
)
def test_a_long_reply_is_refused_with_what_its_request_can_change(
    row_gradients: list[str], sparse: bool, dtype: tensor_pb2.DType, remedy: str
) -> None:
    plan: Any = SimpleNamespace(gradient_sizes={"positions": 300}, row_gradients=row_gradients, count=100)
    wanted, limits = (
        Wanted(("positions",), render_pb2.GradientFormat(sparse=sparse, dtype=dtype)),
        SimpleNamespace(payload_bytes=99),
    )
    with pytest.raises(InvalidArgumentError) as refused:
        wanted.bytes(plan, limits, rows=100)  # type: ignore[arg-type]
    assert f"(the worker's --max-payload-mib; {remedy})" in refused.value.limit
