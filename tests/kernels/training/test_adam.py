"""Adam steps match torch's, with activations, for any rows that take part and any grouping of parameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.training import ACTIVATIONS, Parameter, adam_step
from support.backends.gaussian_engines import instruction_set
from support.backends.training_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians.cases import random_of
from support.training.adam import (
    BETAS,
    EPSILON,
    ReferenceAdam,
    activated,
    assert_same,
    copied,
    numbers,
    parameter,
    slope,
    stepped,
    used,
)

SHAPES = [(1,), (7,), (16,), (5000,), (10, 3), (333, 4), (1, 48), (200, 16, 3), (3, 4099)]
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
every_shape = pytest.mark.parametrize("shape", SHAPES)


@every_activation
@every_shape
def test_twenty_steps_are_those_of_float64_and_of_torch(
    shape: tuple[int, ...], activation: str, training_engine: Engine
) -> None:
    random = random_of(f"steps {shape}")
    mine = training_engine.moved(parameter("steps", shape, activation))
    reference = ReferenceAdam(mine.raw.cpu().double().numpy(), activation, mine.learning_rate)
    theirs = mine.raw.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=mine.learning_rate, betas=BETAS, eps=EPSILON)
    for step in range(1, 21):
        gradient = random.standard_normal(shape).astype(np.float32)
        now = replace(mine, gradient=torch.from_numpy(gradient))
        training_engine.run(adam_step, {"it": now}, step=step, betas=BETAS, epsilon=EPSILON)
        reference.step(gradient.astype(np.float64), step)
        value = {"identity": lambda x: x, "exp": torch.exp, "sigmoid": torch.sigmoid}[activation](theirs)
        (theirs.grad,) = torch.autograd.grad(value, theirs, torch.from_numpy(gradient).to(theirs.device))
        optimizer.step()
    found = numbers(mine)
    for expected in (reference.raw, theirs.detach().cpu()):
        assert_relative("raw", found["raw"], expected, 1e-6)
        assert_image(found["raw"], expected, 2e-6)
    assert_relative("first", found["first"], reference.first, 1e-6)
    assert_relative("second", found["second"], reference.second, 2e-6)
    assert_relative("value", found["value"], activated(reference.raw, activation), 2e-6)


@every_activation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_are_their_float32(dtype: torch.dtype, activation: str, training_engine: Engine) -> None:
    it = used(parameter("halves", (301, 5), activation))
    half = it.gradient.to(dtype)
    # Numbers that are subnormal in float16, a large one, and zeros of both signs.
    half.view(-1)[:6] = torch.tensor([3e-7, -6e-8, torch.finfo(dtype).max / 4096, 5.9e-5, 0.0, -0.0]).to(dtype)
    actual, _ = stepped(training_engine, {"it": replace(it, gradient=half)}, 3)
    expected, _ = stepped(training_engine, {"it": replace(it, gradient=half.float())}, 3)
    assert_same(actual["it"], expected["it"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_number_of_16_bits_is_read(dtype: torch.dtype, training_engine: Engine) -> None:
    gradient = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    it = replace(parameter("all halves", (2**16,)), gradient=gradient)
    after, result = stepped(training_engine, {"it": it})
    finite = gradient.isfinite()
    expected = (gradient.float() * np.float32(1 - BETAS[0]))[finite]
    np.testing.assert_array_equal(numbers(after["it"])["first"][finite], expected)
    assert result.statistics()["it"].not_finite == int((~finite).sum())


def test_parameters_do_not_notice_each_other(training_engine: Engine) -> None:
    many = {
        f"{activation} {shape}": used(
            parameter(f"{activation} {shape}", shape, activation, learning_rate=0.1 * k + 0.1)
        )
        for k, shape in enumerate(SHAPES)
        for activation in ACTIVATIONS
    }
    together, result = stepped(training_engine, many, 7)
    statistics = result.statistics()
    assert list(statistics) == list(many)
    for name, one in many.items():
        alone, told = stepped(training_engine, {name: one}, 7)
        assert_same(together[name], alone[name])
        assert statistics[name] == told.statistics()[name]


@pytest.mark.parametrize("seen", [0.0, 0.02, 0.5, 0.98])
@every_shape
def test_rows_that_are_not_seen_stay(shape: tuple[int, ...], seen: float, training_engine: Engine) -> None:
    it = used(parameter("rows", shape, "sigmoid"))
    rows = torch.from_numpy(random_of(f"seen {shape} {seen}").random(shape[0]) < seen)
    some, result = stepped(training_engine, {"it": replace(it, rows=rows)}, 3)
    every, _ = stepped(training_engine, {"it": it}, 3)
    expected = {
        name: torch.where(_like(rows, it), after, numbers(it)[name]) for name, after in numbers(every["it"]).items()
    }
    for name, tensor in expected.items():
        np.testing.assert_array_equal(numbers(some["it"])[name], tensor, err_msg=name)
    assert result.statistics()["it"].updated == int(rows.sum())
    as_bytes, _ = stepped(training_engine, {"it": replace(it, rows=rows.to(torch.uint8) * 128)}, 3)
    assert_same(as_bytes["it"], some["it"])


def _like(rows: torch.Tensor, of: Parameter) -> torch.Tensor:
    return rows.view(-1, *[1] * (of.raw.dim() - 1)).expand(of.raw.shape)


@pytest.mark.parametrize(("masked", "bad"), [(False, np.nan), (True, np.inf), (True, -np.inf)])
@every_shape
def test_rows_with_bad_gradients_are_skipped_and_counted(
    shape: tuple[int, ...], masked: bool, bad: float, training_engine: Engine
) -> None:
    random = random_of(f"bad {shape} {masked}")
    it = used(parameter("bad", shape, "exp"))
    spoilt = torch.from_numpy(random.random(shape) < 0.1 / np.prod(shape[1:], dtype=float))
    spoilt.view(-1)[-1] = True
    good = ~spoilt.flatten(1).any(1) if spoilt.dim() > 1 else ~spoilt
    rows = torch.from_numpy(random.random(shape[0]) < 0.7) if masked else torch.ones(shape[0], dtype=torch.bool)
    it = replace(it, rows=rows if masked else None)
    gradient = torch.where(spoilt, torch.tensor(bad, dtype=torch.float32), it.gradient)
    actual, result = stepped(training_engine, {"it": replace(it, gradient=gradient)}, 3)
    expected, told = stepped(training_engine, {"it": replace(it, rows=rows & good)}, 3)
    assert_same(actual["it"], expected["it"])
    statistics, wanted = result.statistics()["it"], told.statistics()["it"]
    assert statistics.not_finite == int((spoilt & _like(rows, it)).sum())
    assert statistics.skipped == int((rows & ~good).sum())
    assert statistics.updated == wanted.updated
    assert statistics.squares == pytest.approx(wanted.squares, rel=1e-12)
    assert statistics.largest == wanted.largest


@every_activation
def test_statistics_are_of_the_raw_gradients(activation: str, training_engine: Engine) -> None:
    it = parameter("told", (700, 11), activation)
    _, result = stepped(training_engine, {"it": it}, gradient_scale=-0.25)
    told = result.statistics()["it"]
    gradient = -0.25 * it.gradient.double().numpy() * slope(it.raw.double().numpy(), activation)
    assert told.squares == pytest.approx((gradient**2).sum(), rel=1e-6)
    assert told.largest == pytest.approx(np.abs(gradient).max(), rel=1e-6)
    assert (told.not_finite, told.skipped, told.updated) == (0, 0, 700)
    assert result.times.milliseconds()["adam"] > 0


def test_a_scale_is_a_factor_of_the_gradient(training_engine: Engine) -> None:
    it = used(parameter("scaled", (50, 3), "sigmoid"))
    actual, _ = stepped(training_engine, {"it": it}, gradient_scale=0.125)
    expected, _ = stepped(training_engine, {"it": replace(it, gradient=0.125 * it.gradient)})
    assert_same(actual["it"], expected["it"])


def test_a_value_that_nobody_wants_changes_nothing(training_engine: Engine) -> None:
    it = used(parameter("wanted", (50, 3), "exp"))
    without = training_engine.moved(replace(copied(it), value=None))
    training_engine.run(adam_step, {"it": without}, step=1, betas=BETAS, epsilon=EPSILON)
    expected, _ = stepped(training_engine, {"it": it})
    np.testing.assert_array_equal(without.raw.cpu(), numbers(expected["it"])["raw"])


def test_nothing_to_step_is_no_error(training_engine: Engine) -> None:
    empty = {"none": parameter("none", (0, 3)), "narrow": parameter("narrow", (4, 0)), "some": parameter("some", (4,))}
    _, result = stepped(training_engine, empty)
    assert list(result.statistics()) == ["some"]
    assert training_engine.run(adam_step, {}, step=1).statistics() == {}


@pytest.mark.parametrize("activation", ["exp", "sigmoid"])
def test_raw_numbers_of_any_size_leave_finite_values(activation: str, training_engine: Engine) -> None:
    raw = torch.tensor([-1e30, -200.0, -89.0, -87.0, -20.0, -1e-30, 0.0, 20.0, 87.0, 88.0, 89.0, 200.0, 1e30])
    it = replace(parameter("sizes", tuple(raw.shape), activation), raw=raw, gradient=torch.zeros_like(raw))
    after, _ = stepped(training_engine, {"it": it})
    value = numbers(after["it"])["value"].double().numpy()
    limits = (-87.0, 88.0) if activation == "exp" else (-88.0, 87.0)
    expected = activated(np.clip(raw.double().numpy(), *limits), activation)
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_extreme_gradients_leave_what_torch_leaves(training_engine: Engine) -> None:
    gradient = torch.tensor([0.0, 1e-45, 1e-30, 1e-20, 1e-10, 1e10, 1.8e19, 1e20, 3e38])
    it = replace(parameter("extremes", tuple(gradient.shape)), gradient=gradient)
    after, result = stepped(training_engine, {"it": it})
    theirs = it.raw.clone().requires_grad_()
    theirs.grad = gradient
    torch.optim.Adam([theirs], lr=it.learning_rate, betas=BETAS, eps=EPSILON).step()
    np.testing.assert_allclose(numbers(after["it"])["raw"], theirs.detach(), rtol=1e-6)
    assert result.statistics()["it"].squares == pytest.approx(float((gradient.double() ** 2).sum()))


def test_what_is_not_a_number_stays_so(training_engine: Engine) -> None:
    it = parameter("lost", (40,), "exp")
    it.raw[5] = torch.nan
    after, result = stepped(training_engine, {"it": it})
    assert result.statistics()["it"].skipped == 1
    assert after["it"].raw.isnan().nonzero().tolist() == [[5]]


@pytest.mark.parametrize("isa", _native.available_isas())
def test_the_number_of_threads_does_not_matter(isa: str, keep_threads: None) -> None:
    engine = Engine("cpu", torch.device("cpu"))
    it = {"it": used(parameter("threads", (30_000, 3), "exp"))}
    found = []
    with instruction_set(isa):
        for count in (1, 2, 5):
            _native.set_thread_count(count)
            found.append(stepped(engine, it))
    for after, result in found[1:]:
        assert_same(after["it"], found[0][0]["it"])
        assert result.statistics() == found[0][1].statistics()


@pytest.mark.parametrize(("width", "head"), [(5, 2), (48, 3), (3, 3), (16, 0), (300, 17)])
@pytest.mark.parametrize("some_rows", [False, True])
def test_the_head_of_each_row_may_have_another_rate(
    width: int, head: int, some_rows: bool, training_engine: Engine
) -> None:
    whole = training_engine.moved(parameter("head", (230, width), "identity"))
    if some_rows:
        whole = replace(whole, rows=torch.arange(230, device=whole.raw.device) % 3 != 1)
    slow, fast = copied(whole), replace(copied(whole), learning_rate=7 * whole.learning_rate)
    both = replace(copied(whole), head=head, head_learning_rate=fast.learning_rate)
    for step in (1, 2):
        for one in (slow, fast, both):
            training_engine.run(adam_step, {"it": one}, step=step, betas=BETAS, epsilon=EPSILON)
    in_head = torch.arange(width, device=whole.raw.device) < head
    assert torch.equal(both.raw, torch.where(in_head, fast.raw, slow.raw))
    assert torch.equal(both.second, slow.second)
