"""Repeated calls have the same bits on any threads, agree on all instruction sets, and take no new memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians import Settings
from support.backends.gaussian_engines import Engine, cpu, instruction_set
from support.backends.steady import assert_steady_on_host
from support.closeness import assert_image, assert_relative, assert_same_bits, spread_out
from support.gaussians.case import GaussianCase
from support.gaussians.cases import Cloud, build, opencv, upstream_of
from support.gaussians.runs import OUTPUTS, Run, cameras_of, run, scene_of

LOSS = ("color", "alpha", "depth")
CROWD = Cloud(count=4000, slope=0.6, scales=(0.005, 0.2), degree=3)
# Relative to the norm. Gradients of rotations have differed by 1.1e-5 when summed in another order.
OTHER_ORDER = 3e-5
CASE = build("repeatable", CROWD, width=150, height=131, background=(0.2, 0.4, 0.6))


def everything(engine: Engine, case: GaussianCase, **changes: object) -> Run:
    return run(engine, case, outputs=OUTPUTS, upstream=upstream_of(case, LOSS), **changes)


def assert_same_gradients(first: Run, second: Run) -> None:
    assert_same_bits(second.gradients, first.gradients)
    np.testing.assert_array_equal(first.touched, second.touched)  # type: ignore[arg-type]


def test_same_call_twice_gives_the_same_bits(gaussian_engine: Engine) -> None:
    first, second = everything(gaussian_engine, CASE), everything(gaussian_engine, CASE)
    assert_same_bits(second.outputs, first.outputs)
    if gaussian_engine.repeatable:
        assert_same_gradients(first, second)
    for name, gradient in first.gradients.items():
        assert_relative(name, second.gradients[name], gradient, OTHER_ORDER)


def test_gradients_have_the_same_bits_where_that_is_asked_for(gaussian_engine: Engine) -> None:
    first = everything(gaussian_engine, CASE, deterministic=True)
    second = everything(gaussian_engine, CASE, deterministic=True)
    assert_same_bits(second.outputs, first.outputs)
    assert_same_gradients(first, second)
    usual = everything(gaussian_engine, CASE)
    for name, gradient in first.gradients.items():
        assert_relative(name, usual.gradients[name], gradient, OTHER_ORDER)


def test_each_number_of_threads_repeats_itself_and_all_give_the_same_image(keep_threads: None) -> None:
    runs = []
    for threads in (1, 2, 7):
        _native.set_thread_count(threads)
        runs.append(everything(cpu(), CASE))
        again = everything(cpu(), CASE)
        assert_same_bits(again.outputs, runs[-1].outputs)
        assert_same_gradients(runs[-1], again)
    for other in runs[1:]:
        assert_same_bits(other.outputs, runs[0].outputs)
        for name, gradient in runs[0].gradients.items():
            assert_relative(name, other.gradients[name], gradient, 1e-5)


@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_instruction_set_gives_the_same_image(isa: str) -> None:
    reference = everything(cpu(), CASE)
    with instruction_set(isa):
        result = everything(cpu(), CASE)
    for name in ("color", "alpha", "transmittance"):
        off = np.abs(result.outputs[name] - reference.outputs[name])
        assert (off < 1e-5).mean() > 0.999, name
    for name, gradient in reference.gradients.items():
        assert_relative(name, result.gradients[name], gradient, 1e-3)


def test_a_steady_loop_allocates_nothing() -> None:
    engine = cpu()
    cases = [CASE, build("smaller", Cloud(count=500), width=64, height=64)]
    assert_steady_on_host(lambda: [everything(engine, case) for case in cases])


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    engine = cpu()
    cases = [build(f"thread {index}", Cloud(count=400 + 50 * index), width=60 + index, height=50) for index in range(4)]
    alone = [everything(engine, case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            futures = [pool.submit(everything, engine, case) for case in cases]
            for future, expected in zip(futures, alone, strict=True):
                result = future.result()
                assert_same_bits(result.outputs, expected.outputs)
                assert_same_gradients(expected, result)


def test_states_live_as_long_as_they_are_held(gaussian_engine: Engine) -> None:
    first, other = build("first", Cloud(count=200)), build("other", Cloud(count=700), width=90, height=90)
    upstream = {name: torch.from_numpy(value) for name, value in upstream_of(first, LOSS).items()}

    def forward(case: GaussianCase) -> object:
        scene, cameras = scene_of(case), cameras_of(case)
        return gaussian_engine.forward(scene, cameras, Settings(), outputs=LOSS, retain=True)[1]

    held = forward(first)
    expected, _ = gaussian_engine.backward(held, upstream, None)  # type: ignore[arg-type]
    for _ in range(3):
        state = forward(other)
        gradients = {name: torch.from_numpy(value) for name, value in upstream_of(other, LOSS).items()}
        gaussian_engine.backward(state, gradients, None)  # type: ignore[arg-type]
    again, _ = gaussian_engine.backward(held, upstream, None)  # type: ignore[arg-type]
    assert set(again) == set(first.tensors)
    for name, gradient in expected.items():
        assert_relative(name, again[name], gradient, 0 if gaussian_engine.repeatable else OTHER_ORDER)


def test_a_state_counts_what_it_keeps(gaussian_engine: Engine) -> None:
    scene = scene_of(CASE)
    _, state = gaussian_engine.forward(scene, cameras_of(CASE), Settings(), outputs=LOSS, retain=True)
    inputs = sum(value.nbytes for value in CASE.tensors.values())
    images = CASE.width * CASE.height * 4 * (3 + 2)
    assert inputs + images < state.bytes < 3 * (inputs + images) + (8 << 20)


def test_inputs_need_not_be_contiguous(gaussian_engine: Engine) -> None:
    case = build("strided", Cloud(count=120, degree=1))
    upstream = upstream_of(case, LOSS)
    plain = run(gaussian_engine, case, outputs=LOSS, upstream=upstream)
    tensors = {name: spread_out(value) for name, value in case.tensors.items()}
    spread = build("strided", Cloud(count=120, degree=1))
    for name, value in tensors.items():
        object.__setattr__(spread, name, value)
    assert not spread.means.flags.c_contiguous
    result = run(gaussian_engine, spread, outputs=LOSS, upstream=upstream)
    for name, image in plain.outputs.items():
        assert_image(result.outputs[name], image, 0)
    for name, gradient in plain.gradients.items():
        assert_relative(name, result.gradients[name], gradient, 1e-6)


def test_autograd_is_neither_needed_nor_disturbed(gaussian_engine: Engine) -> None:
    case = build("no autograd", Cloud(count=50), cameras=(opencv(),))
    expected, _ = gaussian_engine.forward(scene_of(case), cameras_of(case), Settings())
    with torch.inference_mode():
        inside, _ = gaussian_engine.forward(scene_of(case), cameras_of(case), Settings())
    scene = scene_of(case)
    recording = type(scene)(**{name: value.clone().requires_grad_() for name, value in scene.tensors().items()})
    outside, _ = gaussian_engine.forward(recording, cameras_of(case), Settings())
    assert not outside["color"].requires_grad
    for result in (inside, outside):
        torch.testing.assert_close(result["color"], expected["color"], rtol=0, atol=0)
