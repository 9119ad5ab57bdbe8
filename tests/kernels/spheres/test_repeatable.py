"""Repeated calls have the same bits on any threads, agree on all instruction sets, and take no new memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from support.backends.engines import ENGINES, Engine
from support.backends.gaussian_engines import instruction_set
from support.backends.steady import assert_steady_on_host
from support.closeness import assert_image, assert_relative, assert_same_bits, spread_out
from support.spheres.case import SphereCase
from support.spheres.cases import POSE, Cloud, build
from support.spheres.runs import SPHERE_INPUTS, Run, Semantics, camera_of, run, settings_of, wanted_of

OUTPUTS = ("color", "alpha", "depth", "info", "sphere_ids", "weights", "hits")
CASE = build(
    "repeatable", Cloud(count=3000, half_width=2.5, radii=(0.02, 0.5)), camera=POSE, gamma=0.02, width=150, height=131,
    opacities=np.random.default_rng(1).uniform(0.3, 1, 3000),
)  # fmt: skip
# Enough spheres for several threads to number those that reach into several bands of the image.
LARGE = build(
    "large", Cloud(count=9000, half_width=2.5, radii=(0.02, 0.2)), camera=POSE, gamma=0.02, width=96, height=80
)
both_semantics = pytest.mark.parametrize("semantics", get_args(Semantics))


@pytest.fixture
def cpu() -> Engine:
    return ENGINES["cpu"]()


def everything(engine: Engine, case: SphereCase, semantics: Semantics, **changes: object) -> Run:
    wanted = wanted_of(case) if semantics == "compat" else (*wanted_of(case), "background", "gamma")
    return run(engine, case, semantics, outputs=OUTPUTS, wanted=wanted, **changes)


@both_semantics
def test_same_call_twice_gives_the_same_bits(semantics: Semantics, engine: Engine) -> None:
    first, second = everything(engine, CASE, semantics), everything(engine, CASE, semantics)
    assert_same_bits(second.outputs, first.outputs)
    for name, gradient in first.gradients.items():
        if engine.repeatable:
            np.testing.assert_array_equal(gradient, second.gradients[name], err_msg=name)
        else:
            # A GPU adds up gradients in no particular order.
            assert_relative(name, second.gradients[name], gradient, 1e-5)


@both_semantics
def test_gradients_have_the_same_bits_where_that_is_asked_for(semantics: Semantics, engine: Engine) -> None:
    first, second = (everything(engine, CASE, semantics, deterministic=True) for _ in range(2))
    assert_same_bits(second.outputs, first.outputs)
    assert_same_bits(second.gradients, first.gradients)
    usual = everything(engine, CASE, semantics)
    for name, gradient in first.gradients.items():
        assert_relative(name, usual.gradients[name], gradient, 1e-5)


@both_semantics
@pytest.mark.parametrize("case", [CASE, LARGE], ids=["3000", "9000"])
def test_the_number_of_threads_does_not_matter(
    case: SphereCase, semantics: Semantics, cpu: Engine, keep_threads: None
) -> None:
    runs = []
    for count in (1, 2, 3):
        _native.set_thread_count(count)
        assert _native.thread_count() == count
        runs.append(everything(cpu, case, semantics))
    for other in runs[1:]:
        assert_same_bits(other.outputs, runs[0].outputs)
        for name, gradient in runs[0].gradients.items():
            assert_relative(name, other.gradients[name], gradient, 1e-5)


@both_semantics
@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_instruction_set_gives_the_same_image(isa: str, semantics: Semantics, cpu: Engine) -> None:
    reference = everything(cpu, CASE, semantics)
    with instruction_set(isa):
        assert _native.current_isa() == isa
        result = everything(cpu, CASE, semantics)
    if semantics == "compat":
        # The original's arithmetic leaves no freedom.
        assert_same_bits(result.outputs, reference.outputs)
    else:
        off = np.abs(result.outputs["color"] - reference.outputs["color"]).max(-1)
        assert (off < 1e-5).mean() > 0.995
    for name, gradient in reference.gradients.items():
        assert_relative(name, result.gradients[name], gradient, 1e-4 if semantics == "compat" else 1e-3)


def test_portable_is_always_available() -> None:
    assert _native.available_isas()[0] == "portable"


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="sse9"):
        _native.set_isa("sse9")


@both_semantics
def test_a_steady_loop_allocates_nothing(semantics: Semantics, cpu: Engine) -> None:
    cases = [CASE, build("smaller", Cloud(count=500), width=64, height=64, opacities=np.full(500, 0.5))]
    assert_steady_on_host(lambda: [everything(cpu, case, semantics) for case in cases])


def test_calls_from_several_threads_do_not_disturb_each_other(cpu: Engine) -> None:
    cases = [
        build(f"thread {index}", Cloud(count=400 + 50 * index), camera=POSE, width=60 + index, height=50)
        for index in range(4)
    ]
    alone = [everything(cpu, case, "compat" if index % 2 else "exact") for index, case in enumerate(cases)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            futures = [
                pool.submit(everything, cpu, case, "compat" if index % 2 else "exact")
                for index, case in enumerate(cases)
            ]
            for future, expected in zip(futures, alone, strict=True):
                result = future.result()
                assert_same_bits(result.outputs, expected.outputs)
                assert_same_bits(result.gradients, expected.gradients)


@both_semantics
def test_states_live_as_long_as_they_are_held(semantics: Semantics, engine: Engine) -> None:
    first = build("first", Cloud(count=200), camera=POSE)
    other = build("other", Cloud(count=700), width=90, height=90)
    upstream = {"color": torch.from_numpy(first.output_gradient[None])}

    def forward(case: SphereCase) -> object:
        tensors = (torch.from_numpy(value) for value in (case.positions, case.colors, case.radii))
        _, state = engine.forward(
            *tensors,
            [camera_of(case)],
            settings_of(case, semantics),
            background=torch.from_numpy(case.background),
            retain=True,
        )
        return state

    held = forward(first)
    expected, _ = engine.backward(held, upstream, SPHERE_INPUTS)  # type: ignore[arg-type]
    for _ in range(3):
        forward(other)
    again, _ = engine.backward(held, upstream, SPHERE_INPUTS)  # type: ignore[arg-type]
    for name in SPHERE_INPUTS:
        assert_relative(name, again[name], expected[name], 1e-6)


@both_semantics
def test_inputs_need_not_be_contiguous(semantics: Semantics, engine: Engine) -> None:
    case = build("strided", Cloud(count=120), camera=POSE, opacities=np.random.default_rng(2).random(120))

    def outputs(strided: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(spread_out(values) if strided else values)

        results, state = engine.forward(
            tensor(case.positions), tensor(case.colors), tensor(case.radii), [camera_of(case)],
            settings_of(case, semantics), opacities=tensor(case.opacities), background=tensor(case.background),
            retain=True,
        )  # fmt: skip
        gradients, _ = engine.backward(state, {"color": tensor(case.output_gradient[None])}, wanted_of(case))
        return results, gradients

    plain, strided = outputs(False), outputs(True)
    assert_image(strided[0]["color"], plain[0]["color"], 0)
    for name, gradient in plain[1].items():
        assert_relative(name, strided[1][name], gradient, 1e-6)


@both_semantics
def test_autograd_is_neither_needed_nor_disturbed(semantics: Semantics, engine: Engine) -> None:
    case = build("no autograd", Cloud(count=50), camera=POSE)
    tensors = [torch.from_numpy(value) for value in (case.positions, case.colors, case.radii)]
    expected, _ = engine.forward(*tensors, [camera_of(case)], settings_of(case, semantics))
    with torch.inference_mode():
        inside, _ = engine.forward(*tensors, [camera_of(case)], settings_of(case, semantics))
    recording = [tensor.clone().requires_grad_() for tensor in tensors]
    outside, _ = engine.forward(*recording, [camera_of(case)], settings_of(case, semantics))
    assert not outside["color"].requires_grad
    for result in (inside, outside):
        torch.testing.assert_close(result["color"], expected["color"], rtol=0, atol=0)
