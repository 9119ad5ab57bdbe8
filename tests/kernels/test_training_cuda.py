"""What only CUDA devices have: an order of threads that must not matter, memory that is kept, and the CPU's results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lumigrad.kernels.training import ACTIVATIONS, adam_step, image_loss
from lumigrad.kernels.training.engine import CudaEngine
from support.backends.cuda_devices import CudaDevice
from support.backends.training_engines import Engine, cpu, on_cuda
from support.closeness import assert_relative
from support.training.adam import BETAS, EPSILON, assert_same, copied, numbers, parameter, stepped, used
from support.training.losses import pair


def engine_on(cuda: CudaDevice) -> Engine:
    return on_cuda(cuda.name, cuda.device, CudaEngine(cuda.native, 0, cuda.current_stream))


PARAMETERS = {
    activation: replace(
        used(parameter(f"cuda {activation}", (900, 5), activation)), rows=torch.arange(900).remainder(3) > 0
    )
    for activation in ACTIVATIONS
}


def test_the_cpu_steps_the_same(cuda: CudaDevice) -> None:
    (actual, told), (expected, wanted) = (stepped(one, PARAMETERS, 5) for one in (engine_on(cuda), cpu()))
    for name, after in expected.items():
        for part, tensor in numbers(after).items():
            assert_relative(part, numbers(actual[name])[part].nan_to_num(), tensor.nan_to_num(), 1e-7)
        assert told.statistics()[name].squares == pytest.approx(wanted.statistics()[name].squares, rel=1e-6)


def test_numbers_may_begin_where_four_cannot_be_read_at_once(cuda: CudaDevice) -> None:
    engine = engine_on(cuda)
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
    engine = engine_on(emulated_cuda)
    spoilt = {name: replace(one, gradient=one.gradient.clone()) for name, one in PARAMETERS.items()}
    for one in spoilt.values():
        one.gradient[::100] = torch.nan
    expected, wanted = stepped(engine, spoilt, 5)
    emulated_cuda.native.set_seed(thread_seed)
    actual, told = stepped(engine, spoilt, 5)
    for name, after in expected.items():
        assert_same(actual[name], after)
    assert told.statistics() == wanted.statistics()


IMAGES = pair("cuda", (3, 37, 45, 3))
MASK = torch.linspace(0, 1, 3 * 37 * 45).view(3, 37, 45)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_the_cpu_compares_images_the_same(padding: str, cuda: CudaDevice) -> None:
    actual, expected = (one.run(image_loss, *IMAGES, MASK, padding=padding) for one in (engine_on(cuda), cpu()))
    assert_relative("gradient", actual.gradient.cpu(), expected.gradient, 2e-6)
    for mine, other in zip(actual.views(), expected.views(), strict=True):
        assert mine == pytest.approx(other, rel=1e-6)


def test_order_of_threads_does_not_matter_to_losses(thread_seed: int, emulated_cuda: CudaDevice) -> None:
    engine = engine_on(emulated_cuda)
    expected = engine.run(image_loss, *IMAGES, MASK)
    emulated_cuda.native.set_seed(thread_seed)
    actual = engine.run(image_loss, *IMAGES, MASK)
    np.testing.assert_array_equal(actual.gradient, expected.gradient)
    assert actual.views() == expected.views()


def test_a_steady_loop_allocates_nothing(cuda: CudaDevice) -> None:
    engine = engine_on(cuda)

    def step() -> None:
        stepped(engine, PARAMETERS)
        engine.run(image_loss, *IMAGES, MASK)

    for _ in range(3):
        step()
    before = cuda.native.device_system_allocations()
    for _ in range(3):
        step()
    assert cuda.native.device_system_allocations() == before
