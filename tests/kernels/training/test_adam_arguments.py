"""Arguments that a step of Adam refuses, and the errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lumigrad.kernels.training import ArgumentError, adam_step
from support.training.adam import parameter

GOOD = parameter("good", (6, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw": None}, r"it\.raw: expected a float32 tensor of shape \[N, ...\], got NoneType"),
        (
            {"raw": torch.zeros(())},
            r"it\.raw: expected a float32 tensor of shape \[N, ...\], got float32 of shape \[\]",
        ),
        ({"raw": torch.zeros(6, 3).double()}, r"it\.raw: .*, got float64 of shape \[6, 3\]"),
        ({"raw": torch.zeros(3, 6).T}, r"it\.raw: expected a contiguous tensor, to be updated in place, got \(1, 6\)"),
        ({"gradient": torch.zeros(6, 4)}, r"it\.gradient: .* of shape \[6, 3\], got float32 of shape \[6, 4\]"),
        ({"gradient": torch.zeros(6, 3).double()}, r"it\.gradient: expected a float32 or float16 or bfloat16 tensor"),
        (
            {"gradient": torch.zeros(6, 3, device="meta")},
            r"it\.gradient: expected a tensor on cpu, where the others are",
        ),
        (
            {"first": torch.zeros(6)},
            r"it\.first: expected a float32 tensor of shape \[6, 3\], got float32 of shape \[6\]",
        ),
        ({"second": None}, r"it\.second: expected a float32 tensor of shape \[6, 3\], got NoneType"),
        ({"second": torch.zeros(3, 6).T}, r"it\.second: expected a contiguous tensor"),
        ({"value": torch.zeros(6, 3).half()}, r"it\.value: expected a float32 tensor"),
        ({"value": GOOD.raw}, r"it: expected raw, first, second and value in separate memory, got 'the same memory'"),
        ({"rows": torch.ones(3, dtype=torch.bool)}, r"it\.rows: expected a bool or uint8 tensor of shape \[6\], got"),
        ({"rows": torch.ones(6)}, r"it\.rows: .*, got float32 of shape \[6\]"),
        ({"activation": "softplus"}, r"it\.activation: expected one of .*'sigmoid'\), got 'softplus'"),
        ({"learning_rate": -1.0}, r"it\.learning_rate: expected a finite number >= 0, got -1.0"),
        ({"learning_rate": math.inf}, r"it\.learning_rate: .*, got inf"),
        ({"learning_rate": "fast"}, r"it\.learning_rate: .*, got 'fast'"),
    ],
)
def test_parameters_that_do_not_fit_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        adam_step({"it": replace(GOOD, **change)}, step=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0}, "step: expected a whole number >= 1, got 0"),
        ({"step": 1.5}, "step: expected a whole number >= 1, got 1.5"),
        ({"betas": (0.9, 1.0)}, r"betas: expected two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        ({"betas": 0.9}, r"betas: expected two numbers in \[0, 1\), got 0.9"),
        ({"epsilon": 0.0}, "epsilon: expected a positive number, at least 1.2e-38, got 0.0"),
        ({"gradient_scale": math.nan}, "gradient_scale: expected a finite number, got nan"),
    ],
)
def test_settings_that_do_not_fit_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        adam_step({"it": GOOD}, **{"step": 1, **options})  # type: ignore[arg-type]


def test_parameters_come_by_name_and_from_one_device() -> None:
    with pytest.raises(ArgumentError, match="parameters: expected Parameters by name, got 'list'"):
        adam_step([GOOD], step=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="it: expected a Parameter, got 'Tensor'"):
        adam_step({"it": GOOD.raw}, step=1)  # type: ignore[dict-item]
    there = parameter("there", (2,))
    tensors = {name: getattr(there, name).to("meta") for name in ("raw", "gradient", "first", "second", "value")}
    there = replace(there, **tensors)
    with pytest.raises(
        ArgumentError, match=r"there\.raw: expected a tensor on cpu, where the others are, got one on meta"
    ):
        adam_step({"here": GOOD, "there": there}, step=1)
    with pytest.raises(
        ArgumentError, match="tensors: expected tensors on the CPU or a CUDA device, got tensors on meta"
    ):
        adam_step({"there": replace(there)}, step=1)


def test_nothing_changes_when_something_is_refused() -> None:
    first, wrong = parameter("first", (4,)), replace(parameter("wrong", (4,)), learning_rate=-1.0)
    before = first.raw.clone()
    with pytest.raises(ArgumentError, match=r"wrong\.learning_rate"):
        adam_step({"first": first, "wrong": wrong}, step=1)
    assert torch.equal(first.raw, before)


def test_gradients_may_lie_anyhow_and_tensors_may_want_gradients() -> None:
    spread = replace(GOOD, gradient=GOOD.gradient.T.contiguous().T, raw=GOOD.raw.clone().requires_grad_())
    plain = replace(GOOD, raw=GOOD.raw.clone())
    for one in (spread, plain):
        moments = {"first": torch.zeros(6, 3), "second": torch.zeros(6, 3), "value": None}
        adam_step({"it": replace(one, **moments)}, step=1)
    assert torch.equal(spread.raw.detach(), plain.raw)
