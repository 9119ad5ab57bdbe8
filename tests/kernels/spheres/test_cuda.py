"""The CUDA engine: tile lists, threads in any order, memory on a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from lumigrad.kernels import spheres
from lumigrad.kernels.spheres.engine import CudaEngine
from support.backends.cuda_devices import CudaDevice, Device
from support.backends.engines import ENGINES, Engine, emulated
from support.backends.launches import assert_launches_of_two_views
from support.backends.steady import assert_steady_on_device
from support.closeness import assert_of_maximum, assert_same_bits
from support.spheres.case import SphereCase
from support.spheres.cases import ORTHOGONAL_POSE, POSE, Cloud, build
from support.spheres.runs import SPHERE_INPUTS, Run, Semantics, camera_of, run, settings_of, wanted_of

OUTPUTS = ("color", "alpha", "depth", "info", "sphere_ids", "weights", "hits")
# More spheres than may be looked at without tile lists, and more in a tile than a batch holds.
CROWD = build(
    "crowd", Cloud(count=2500, half_width=1.2, radii=(0.02, 0.4)), camera=POSE, gamma=0.03, width=67, height=45,
    opacities=np.random.default_rng(1).uniform(0.3, 1, 2500),
)  # fmt: skip
both_semantics = pytest.mark.parametrize("semantics", get_args(Semantics))


def everything(engine: Engine, semantics: Semantics, case: SphereCase = CROWD, **changes: object) -> Run:
    wanted = wanted_of(case) if semantics == "compat" else (*wanted_of(case), "background", "gamma")
    return run(engine, case, semantics, outputs=OUTPUTS, wanted=wanted, **changes)


def assert_same(actual: Run, expected: Run) -> None:
    assert_same_bits(actual.outputs, expected.outputs)
    assert_gradients(actual, expected)


def assert_gradients(actual: Run, expected: Run) -> None:
    for name, gradient in expected.gradients.items():
        assert_of_maximum(name, actual.gradients[name], gradient, 2e-5)
    assert actual.touched is not None and expected.touched is not None
    np.testing.assert_array_equal(actual.touched, expected.touched)


def test_compat_has_the_bits_of_the_cpu(device: Device) -> None:
    assert_same(everything(device.engine, "compat"), everything(ENGINES["cpu"](), "compat"))


def test_exact_is_as_close_to_the_cpu_as_rounding_allows(device: Device) -> None:
    actual, expected = everything(device.engine, "exact"), everything(ENGINES["cpu"](), "exact")
    assert_gradients(actual, expected)
    for name in ("color", "alpha", "depth", "weights"):
        np.testing.assert_allclose(actual.outputs[name], expected.outputs[name], rtol=0, atol=1e-5, err_msg=name)


@both_semantics
def test_tiles_that_were_not_listed_look_the_same(semantics: Semantics, device: Device) -> None:
    listed = everything(device.engine, semantics)
    for limit in (0, 1000):
        device.cuda.session.set_pair_limit(limit)
        assert_gradients(everything(device.engine, semantics), listed)
        # Exact may stop where the spheres that remain cannot be seen, and then counts more of them.
        tolerance = 0.0 if semantics == "compat" else 1e-6
        actual = everything(device.engine, semantics).outputs["color"]
        np.testing.assert_allclose(actual, listed.outputs["color"], rtol=0, atol=tolerance)


@both_semantics
def test_a_view_with_more_pairs_than_the_last_looks_the_same(semantics: Semantics, device: Device) -> None:
    sparse = build("sparse", Cloud(count=2500, half_width=1.2, radii=(0.001, 0.002)), width=67, height=45)
    run(device.engine, sparse, semantics)
    surprised = everything(device.engine, semantics)
    assert_same(surprised, everything(device.engine, semantics))


@both_semantics
def test_order_of_threads_does_not_matter(semantics: Semantics, thread_seed: int, emulation_device: Device) -> None:
    device = emulation_device
    expected = everything(device.engine, semantics)
    device.native.set_seed(thread_seed)
    assert_same(everything(device.engine, semantics), expected)


# More and fewer spheres than are looked at without lists; rows of 8, 6 and 22 columns; both projections.
IN_ORDER = [
    CROWD,
    build("few", camera=POSE, width=67, height=45, n_track=7),
    build("one channel", Cloud(channels=1), camera=ORTHOGONAL_POSE, orthogonal=True, width=33, height=50),
    build("channels", Cloud(count=61, channels=17), camera=POSE, width=50, height=33),
    build("none", Cloud(count=0), camera=POSE, width=20, height=20),
]


@both_semantics
@pytest.mark.parametrize("case", IN_ORDER, ids=lambda case: case.name)
def test_deterministic_gradients_have_the_same_bits_in_any_order_of_threads(
    case: SphereCase, semantics: Semantics, thread_seed: int, emulation_device: Device
) -> None:
    device = emulation_device
    expected = everything(device.engine, semantics, case, deterministic=True)
    device.native.set_seed(thread_seed)
    actual = everything(device.engine, semantics, case, deterministic=True)
    assert_same(actual, expected)
    assert_same_bits(actual.gradients, expected.gradients)
    assert_gradients(actual, everything(ENGINES["cpu"](), semantics, case))


@both_semantics
def test_deterministic_sums_say_when_there_are_too_many_pairs(semantics: Semantics, device: Device) -> None:
    device.cuda.session.set_pair_limit(1000)
    with pytest.raises(MemoryError, match=r"\d+ pairs of tiles and spheres.* more than the 1000"):
        everything(device.engine, semantics, deterministic=True)


def views_of(case: SphereCase, *offsets: float) -> list[spheres.Camera]:
    """The case's camera, moved sideways."""
    return [camera_of(replace(case, camera=case.camera + np.float32(x) * np.eye(len(case.camera))[0])) for x in offsets]


def retained(engine: Engine, semantics: Semantics, cameras: list[spheres.Camera]) -> spheres.State:
    arrays = (torch.from_numpy(value) for value in (CROWD.positions, CROWD.colors, CROWD.radii))
    settings = settings_of(CROWD, semantics, deterministic=True)
    return engine.forward(*arrays, cameras, settings, retain=True)[1]


def gradients_of(engine: Engine, state: spheres.State) -> dict[str, torch.Tensor]:
    """Returns the gradients of all views, and the numbers of touched pixels."""
    count = len(state.cameras)
    upstream = np.stack([np.roll(CROWD.output_gradient, view, axis=0) for view in range(count)])
    gradients, touched = engine.backward(state, {"color": torch.from_numpy(upstream)}, (*SPHERE_INPUTS, "cameras"))
    return {**gradients, "touched": touched}


@both_semantics
def test_backward_needs_only_what_forward_retained(semantics: Semantics, device: Device) -> None:
    cameras = views_of(CROWD, 0.0, 0.3, -0.2)
    expected = gradients_of(device.engine, retained(device.engine, semantics, cameras))
    state = retained(device.engine, semantics, cameras)
    everything(device.engine, semantics)
    # No more tiles can be listed.
    device.cuda.session.set_pair_limit(0)
    actual = gradients_of(device.engine, state)
    assert_same_bits(actual, expected)


@both_semantics
def test_a_state_counts_what_is_retained_of_each_view(semantics: Semantics, device: Device) -> None:
    sizes = []
    for count in (2, 3, 4):
        state = retained(device.engine, semantics, views_of(CROWD, *[0.0] * count))
        sizes.append(state.bytes - sum(image.nbytes for image in state.images.values()))
    per_view = sizes[1] - sizes[0]
    # Each sphere has a record, a rectangle and two places in the order, besides the pairs.
    assert sizes[2] - sizes[1] == per_view > 80 * len(CROWD.radii)


@both_semantics
@pytest.mark.parametrize("count", [2500, 61])
def test_views_of_both_projections_are_rendered_in_one_call(count: int, semantics: Semantics, device: Device) -> None:
    case = build("both", Cloud(count, 1.2, channels=4), min_depth=4.5, gamma=0.03, width=67, height=45, camera=POSE)
    parallel = replace(case, camera=np.array(ORTHOGONAL_POSE, np.float32), orthogonal=True)
    cameras = [camera_of(parallel), *views_of(case, 0.0, 0.4), *views_of(parallel, -0.3)]
    upstream = np.random.default_rng(3).standard_normal((4, 45, 67, 4)).astype(np.float32)
    wanted = wanted_of(case) if semantics == "compat" else (*wanted_of(case), "background", "gamma")

    def of(engine: Engine, views: slice) -> Run:
        own = {"color": upstream[views]}
        options = {"outputs": OUTPUTS, "wanted": wanted, "cameras": cameras[views], "deterministic": True}
        return run(engine, case, semantics, output_gradients=own, **options)  # type: ignore[arg-type]

    together = of(device.engine, slice(4))
    parts = [of(device.engine, slice(view, view + 1)) for view in range(4)]
    expected = {name: np.concatenate([part.outputs[name] for part in parts]) for name in OUTPUTS}
    assert_same_bits(together.outputs, expected)
    for name in SPHERE_INPUTS:
        assert_of_maximum(name, together.gradients[name], sum(part.gradients[name] for part in parts), 1e-6)
    on_cpu = of(ENGINES["cpu"](), slice(4))
    for name, gradient in on_cpu.gradients.items():
        assert_of_maximum(name, together.gradients[name], gradient, 1e-4)
    np.testing.assert_array_equal(together.touched, on_cpu.touched)  # type: ignore[arg-type]


@both_semantics
def test_launches_of_a_few_views_render_what_one_does_and_a_caller_may_stop_between_them(
    semantics: Semantics, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = emulated(spheres.forward, CudaEngine(cuda.native, 0, cuda.current_stream))
    scene = [torch.from_numpy(value).to(cuda.device) for value in (CROWD.positions, CROWD.colors, CROWD.radii)]
    views = views_of(CROWD, 0.0, 0.3, -0.2, 0.1, 0.4)
    settings = settings_of(CROWD, semantics)

    def render(ask: Callable[[], None]) -> dict[str, torch.Tensor]:
        result = forward(*scene, views, settings, outputs=OUTPUTS, before_view=ask)
        return {name: value.cpu() for name, value in result.outputs.items()}

    whole = assert_launches_of_two_views(render, 67 * 45 + 2500, monkeypatch)
    assert whole["alpha"].amax() > 0.5


# Images of one tile: rows of 8, 6, 20 and 80 columns, few tracked spheres and many.
TILES = [
    build(f"tile {channels} {n_track}", Cloud(count, 0.6, channels=channels), width=15, height=13, n_track=n_track)
    for count, channels, n_track in ((40, 3, 5), (300, 1, 2), (90, 15, 5), (33, 75, 9))
]


@both_semantics
@pytest.mark.parametrize("case", TILES, ids=lambda case: case.name)
def test_a_tile_adds_once_to_a_sphere(
    case: SphereCase, semantics: Semantics, thread_seed: int, emulation_device: Device
) -> None:
    device = emulation_device
    expected = everything(device.engine, semantics, case)
    device.native.set_seed(thread_seed)
    actual = everything(device.engine, semantics, case)
    assert_same_bits(actual.gradients, expected.gradients)
    assert_gradients(actual, everything(ENGINES["cpu"](), semantics, case))


@both_semantics
def test_a_steady_loop_allocates_nothing(semantics: Semantics, device: Device) -> None:
    def step() -> None:
        everything(device.engine, semantics)
        everything(device.engine, semantics, deterministic=True)

    assert_steady_on_device(step, device.native)


def test_a_full_device_says_how_much_was_wanted(emulation_device: Device) -> None:
    device = emulation_device
    device.native.device_trim(0)
    device.native.fail_allocations(2)
    with pytest.raises(MemoryError, match=r"allocating \d+ bytes on the device: out of memory"):
        everything(device.engine, "exact")
    everything(device.engine, "exact")


def test_stages_are_timed(device: Device) -> None:
    arrays = (CROWD.positions, CROWD.colors, CROWD.radii)
    inputs = [torch.from_numpy(value).to(device.engine.device) for value in arrays]
    cameras = [spheres.Camera.pulsar(CROWD.camera.tolist(), CROWD.width, CROWD.height)] * 2
    settings = spheres.Settings(0.03, CROWD.max_depth)
    result = emulated(spheres.forward, device.cuda)(*inputs, cameras, settings, retain=True)
    assert result.outputs["color"].cpu().isfinite().all()  # Also waits for the device.
    assert list(result.stages()) == ["setup", "sort", "bin", "blend"]
    assert len(result.times.views) == 1, "both views are in the same launches"
    upstream = {"color": torch.ones_like(result.outputs["color"])}
    gradients = emulated(spheres.backward, device.cuda)(result.state, upstream)
    assert gradients.touched.cpu().any()
    assert list(gradients.stages()) == ["blend", "finish"]
    assert len(gradients.times.views) == 1
    assert all(milliseconds > 0 for milliseconds in gradients.stages().values())


def test_memory_of_one_stream_is_not_handed_to_another(device: Device) -> None:
    handles: list[int] = [0x10, 0x20]
    contexts: list[AbstractContextManager[object]] = [nullcontext(), nullcontext()]
    if device.engine.name == "gpu":
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        handles = [stream.cuda_stream for stream in streams]
        # Outputs are read on torch's current stream.
        contexts = [torch.cuda.stream(stream) for stream in streams]
    device.native.device_trim(0)
    counts = []
    for number in (0, 1, 0, 1):
        cuda = CudaEngine(device.native, 0, lambda number=number: handles[number])  # type: ignore[misc]
        before = device.native.device_system_allocations()
        engine = Engine(device.engine.name, device.engine.device, False, emulated(spheres.forward, cuda))
        with contexts[number]:
            run(engine, CROWD, "exact")
        counts.append(device.native.device_system_allocations() - before)
    assert counts[0] == counts[1] > 0
    assert counts[2:] == [0, 0]
