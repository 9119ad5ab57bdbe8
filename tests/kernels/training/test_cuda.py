"""Training steps on CUDA devices: any order of threads, factors of gradients, and memory that is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lumigrad.kernels.training import ACTIVATIONS, ArgumentError, HarmonicsGradient, Parameter, adam_step, image_loss
from support.backends.cuda_devices import CudaDevice
from support.backends.steady import assert_steady_on_device
from support.backends.training_engines import cpu, on_cuda
from support.closeness import assert_relative
from support.gaussians.colors import harmonics
from support.training.adam import BETAS, EPSILON, assert_same, copied, parameter, stepped, used
from support.training.losses import pair

PARAMETERS = {
    activation: replace(
        used(parameter(f"cuda {activation}", (900, 5), activation)), rows=torch.arange(900).remainder(3) > 0
    )
    for activation in ACTIVATIONS
}


def test_numbers_may_begin_where_four_cannot_be_read_at_once(cuda: CudaDevice) -> None:
    engine = on_cuda(cuda)
    of = used(parameter("anywhere", (900, 5), "exp"))
    expected, _ = stepped(engine, {"it": of})

    def one_further(tensor: torch.Tensor) -> torch.Tensor:
        place = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:].view(tensor.shape)
        return place.copy_(tensor)

    names = ("raw", "gradient", "first", "second", "value")
    there = engine.moved({"it": copied(of)})["it"]
    there = replace(there, **{name: one_further(getattr(there, name)) for name in names})
    assert there.raw.data_ptr() % 16 == 4
    engine.run(adam_step, {"it": there}, step=1, betas=BETAS, epsilon=EPSILON)
    assert_same(there, expected["it"])


def test_order_of_threads_does_not_matter_to_adam(thread_seed: int, emulated_cuda: CudaDevice) -> None:
    engine = on_cuda(emulated_cuda)
    spoilt = {name: replace(one, gradient=one.gradient.clone()) for name, one in PARAMETERS.items()}
    for one in spoilt.values():
        one.gradient[::100] = torch.nan
    expected, wanted = stepped(engine, spoilt, 5)
    emulated_cuda.native.set_seed(thread_seed)
    actual, told = stepped(engine, spoilt, 5)
    for name, after in expected.items():
        assert_same(actual[name], after)
    assert told.statistics() == wanted.statistics()


def harmonics_parameter(coefficients: int, degree: int) -> tuple[Parameter, HarmonicsGradient]:
    """Returns a parameter of coefficients with their gradient, and the factors of that gradient."""
    count = 500
    of = used(parameter(f"harmonics {coefficients} {degree}", (count, coefficients, 3)))
    random = torch.Generator().manual_seed(degree)
    direction = torch.nn.functional.normalize(torch.randn(count, 3, generator=random), dim=1)
    color = torch.randn(count, 3, generator=random)
    direction[::7], color[::7] = 0.0, 0.0
    color[100] = torch.nan
    gradient = torch.zeros(count, coefficients, 3)
    active = (degree + 1) ** 2
    gradient[:, :active] = (harmonics(degree, direction.double())[:, :, None] * color.double()[:, None]).float()
    of = replace(of, gradient=gradient, value=None, head=3, head_learning_rate=0.03)
    return of, HarmonicsGradient(torch.cat([direction, color], dim=1), degree)


@pytest.mark.parametrize(("coefficients", "degree"), [(4, 0), (4, 1), (9, 2), (16, 1), (16, 3), (25, 4)])
@pytest.mark.parametrize("some", [False, True])
def test_a_step_by_factors_is_that_by_the_gradient(
    coefficients: int, degree: int, some: bool, cuda: CudaDevice
) -> None:
    engine = on_cuda(cuda)
    of, factors = harmonics_parameter(coefficients, degree)
    of = replace(of, rows=torch.arange(500).remainder(3) > 0 if some else None)
    other = used(parameter("beside", (70, 4), "exp"))
    (expected, wanted), (actual, told) = (
        stepped(engine, {"sh": one, "other": other}, 5) for one in (of, replace(of, gradient=factors))
    )
    for part in ("raw", "first", "second"):
        assert_relative(part, getattr(actual["sh"], part).cpu(), getattr(expected["sh"], part).cpu(), 1e-6)
    assert_same(actual["other"], expected["other"])
    for name, statistics in wanted.statistics().items():
        mine = told.statistics()[name]
        assert (mine.skipped, mine.updated) == (statistics.skipped, statistics.updated)
        assert mine.not_finite == statistics.not_finite
        assert mine.squares == pytest.approx(statistics.squares, rel=1e-6)
        assert mine.largest == pytest.approx(statistics.largest, rel=1e-6)
    assert told.statistics()["sh"].not_finite == 3 * (degree + 1) ** 2


def test_factors_that_do_not_fit_are_refused(cuda: CudaDevice) -> None:
    engine = on_cuda(cuda)
    of, factors = harmonics_parameter(4, 1)
    flat = used(parameter("flat", (500, 5)))
    wrong = {
        "degree": replace(of, gradient=replace(factors, degree=2)),
        "factors": replace(of, gradient=replace(factors, factors=factors.factors[1:])),
        "raw": replace(flat, gradient=factors),
        "activation": replace(of, gradient=factors, activation="exp"),
    }
    for name, one in wrong.items():
        with pytest.raises(ArgumentError, match=name):
            engine.run(adam_step, engine.moved({"sh": copied(one)}), step=1)
    with pytest.raises(ArgumentError, match="a tensor on the CPU"):
        cpu().run(adam_step, {"sh": replace(of, gradient=factors)}, step=1)


IMAGES = pair("cuda", (3, 37, 45, 3))
MASK = torch.linspace(0, 1, 3 * 37 * 45).view(3, 37, 45)


def test_order_of_threads_does_not_matter_to_losses(thread_seed: int, emulated_cuda: CudaDevice) -> None:
    engine = on_cuda(emulated_cuda)
    expected = engine.run(image_loss, *IMAGES, MASK)
    emulated_cuda.native.set_seed(thread_seed)
    actual = engine.run(image_loss, *IMAGES, MASK)
    np.testing.assert_array_equal(actual.gradient, expected.gradient)
    assert actual.views() == expected.views()


def test_a_steady_loop_allocates_nothing(cuda: CudaDevice) -> None:
    engine = on_cuda(cuda)

    def step() -> None:
        stepped(engine, PARAMETERS)
        engine.run(image_loss, *IMAGES, MASK)

    assert_steady_on_device(step, cuda.native)
