"""The CUDA engine: tile lists, threads in any order, memory on a device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians.engine import CudaEngine
from support.backends.cuda_devices import CudaDevice, Device
from support.backends.engines import emulated
from support.backends.gaussian_engines import Engine, cpu
from support.backends.launches import assert_launches_of_two_views
from support.backends.steady import assert_steady_on_device
from support.closeness import assert_image, assert_relative, assert_same_bits
from support.gaussians.case import GaussianCase
from support.gaussians.cases import Cloud, build, inria, opencv, random_of, upstream_of
from support.gaussians.runs import OUTPUTS, Run, cameras_of, run, scene_of

LOSS = ("color", "alpha", "depth")
TURN = opencv(67, 45, rotation=np.eye(3), translation=np.array([0.2, 0.1, 0.4]))
# More Gaussians in a tile than a batch holds, in two views.
CROWD = build(
    "crowd", Cloud(count=2500, scales=(0.02, 0.2), degree=1), width=67, height=45, cameras=(opencv(67, 45), TURN),
    background=(0.1, 0.3, 0.5),
)  # fmt: skip
# More features than a pixel keeps at a time.
COLORFUL = build("colorful", Cloud(count=700, channels=21), background=np.linspace(-0.2, 0.9, 21))
INRIA = build(
    "inria crowd", Cloud(count=700, scales=(0.02, 0.4)), cameras=(inria(),), semantics="inria_depth", near=0.2,
    pixel_center=0.0,
)  # fmt: skip
CASES = {case.name: case for case in (CROWD, COLORFUL, INRIA)}
# Gaussians in more rows of tiles, and in more tiles, than a warp lists at a time.
LARGE = build("large", Cloud(count=70, scales=(4.0, 9.0), opacities=(0.005, 0.05)), width=112, height=640)
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def usual() -> Callable[..., Run]:
    """Returns results of a fresh engine, computed once for each case and device."""
    made: dict[tuple[str, str, bool], Run] = {}

    def find(device: Device, name: str, deterministic: bool = False) -> Run:
        key = device.engine.name, name, deterministic
        if key not in made:
            made[key] = everything(device.engine, CASES[name], deterministic=deterministic)
        return made[key]

    return find


def everything(engine: Engine, case: GaussianCase = CROWD, **changes: object) -> Run:
    return run(engine, case, outputs=OUTPUTS, upstream=upstream_of(case, LOSS), **changes)


def assert_gradients(actual: Run, expected: Run, tolerance: float = 2e-5) -> None:
    for name, gradient in expected.gradients.items():
        assert_relative(name, actual.gradients[name], gradient, tolerance)


def assert_same_touched(actual: Run, expected: Run) -> None:
    assert actual.touched is not None and expected.touched is not None
    np.testing.assert_array_equal(actual.touched, expected.touched)


@every_case
def test_the_cpu_sees_the_same(name: str, device: Device, usual: Callable[..., Run]) -> None:
    actual, expected = usual(device, name), everything(cpu(), CASES[name])
    for output in ("color", "alpha", "depth"):
        assert_image(actual.outputs[output], expected.outputs[output], 2e-5)
    assert_gradients(actual, expected, 1e-4)


@every_case
def test_tiles_that_were_not_listed_look_the_same(name: str, device: Device, usual: Callable[..., Run]) -> None:
    listed = usual(device, name)
    device.cuda.session.set_pair_limit(0)
    other = everything(device.engine, CASES[name])
    assert_same_bits(other.outputs, listed.outputs)
    assert_gradients(other, listed)
    assert_same_touched(other, listed)


@pytest.mark.parametrize("count", [1, 33, 255, 256, 257, 513, 700])
def test_lists_of_any_length_are_differentiated_in_segments_as_in_one_go(count: int, device: Device) -> None:
    cloud = Cloud(count=count, scales=(0.3, 3.0), opacities=(0.004, 0.05))
    layers = build(f"{count} layers", cloud, width=27, height=19, background=(0.1, 0.3, 0.5))
    listed = everything(device.engine, layers)
    assert_gradients(listed, everything(cpu(), layers), 1e-4)
    device.cuda.session.set_pair_limit(0)
    whole = everything(device.engine, layers)
    assert_same_bits(whole.outputs, listed.outputs)
    assert_gradients(listed, whole)


def test_large_gaussians_are_listed_in_all_their_tiles(device: Device) -> None:
    listed = run(device.engine, LARGE, outputs=OUTPUTS)
    assert listed.outputs["contributors"].min() > 20
    device.cuda.session.set_pair_limit(0)
    assert_same_bits(run(device.engine, LARGE, outputs=OUTPUTS).outputs, listed.outputs)


def test_a_view_with_more_pairs_than_the_last_looks_the_same(device: Device, usual: Callable[..., Run]) -> None:
    sparse = build("sparse", Cloud(count=2500, scales=(1e-3, 2e-3)), width=67, height=45, cameras=CROWD.cameras)
    run(device.engine, sparse)
    surprised, prepared = everything(device.engine), usual(device, "crowd")
    assert_same_bits(surprised.outputs, prepared.outputs)
    assert_gradients(surprised, prepared)


@every_case
def test_order_of_threads_does_not_matter(
    name: str, thread_seed: int, emulation_device: Device, usual: Callable[..., Run]
) -> None:
    device = emulation_device
    expected, exactly = usual(device, name), usual(device, name, deterministic=True)
    device.native.set_seed(thread_seed)
    actual = everything(device.engine, CASES[name])
    assert_same_bits(actual.outputs, expected.outputs)
    assert_gradients(actual, expected)
    assert_same_touched(actual, expected)
    again = everything(device.engine, CASES[name], deterministic=True)
    assert_same_bits(again.gradients, exactly.gradients)


def test_views_of_different_lenses_are_rendered_in_one_call(device: Device) -> None:
    lenses = ({}, {"distortion": (-0.1, 0.02, 0.0, 0.0)}, {"model": "fisheye"}, {"model": "orthographic"})
    views = tuple(opencv(focal=0.3 if lens else 1.0, **lens) for lens in lenses)
    colors = random_of("lenses").random((4, 60, 3))
    together = build("lenses", cameras=views, colors=colors)
    upstream = upstream_of(together, LOSS)
    actual = run(device.engine, together, outputs=LOSS, upstream=upstream)
    parts = []
    for view, camera in enumerate(views):
        alone = build("lenses", cameras=(camera,), colors=colors[view])
        own = {name: value[view : view + 1] for name, value in upstream.items()}
        parts.append(run(device.engine, alone, outputs=LOSS, upstream=own))
    assert_same_bits(actual.outputs, {name: np.concatenate([part.outputs[name] for part in parts]) for name in LOSS})
    for name in ("means", "quats", "scales", "opacities"):
        assert_relative(name, actual.gradients[name], sum(part.gradients[name] for part in parts), 1e-5)
    for name in ("camera_pose", "camera_intrinsics", "means2d", "means2d_abs"):
        assert_relative(name, actual.gradients[name], np.concatenate([part.gradients[name] for part in parts]), 1e-5)


def test_a_steady_loop_allocates_nothing(device: Device) -> None:
    colorful = build("small and colorful", Cloud(count=200, channels=21), width=40, height=30)

    def step() -> None:
        everything(device.engine, INRIA)
        everything(device.engine, colorful, deterministic=True)

    assert_steady_on_device(step, device.native)


def test_a_full_device_says_how_much_was_wanted(emulation_device: Device) -> None:
    device = emulation_device
    device.native.device_trim(0)
    device.native.fail_allocations(2)
    with pytest.raises(MemoryError, match=r"allocating \d+ bytes on the device: out of memory"):
        everything(device.engine)
    everything(device.engine, INRIA)


def test_a_device_without_memory_for_lists_draws_without_them(emulation_device: Device) -> None:
    device = emulation_device
    device.native.device_trim(0)
    listed = everything(device.engine)
    device.native.device_trim(0)
    # Leaves all memory that a call needs in the pool, except for the lists.
    device.cuda.session.set_pair_limit(0)
    everything(device.engine)
    device.cuda.session.set_pair_limit(1 << 31)
    device.native.fail_allocations(2)
    other = everything(device.engine)
    assert_same_bits(other.outputs, listed.outputs)
    assert_gradients(other, listed)


def test_deterministic_sums_say_when_there_are_too_many_pairs(device: Device) -> None:
    device.cuda.session.set_pair_limit(1000)
    with pytest.raises(MemoryError, match=r"\d+ pairs of tiles and Gaussians.* more than the 1000"):
        everything(device.engine, deterministic=True)


def test_stages_are_timed(device: Device) -> None:
    result = emulated(gaussians.forward, device.cuda)(
        gaussians.Gaussians(
            **{name: value.to(device.engine.device) for name, value in scene_of(CROWD).tensors().items()}
        ),
        cameras_of(CROWD),
        gaussians.Settings(),
        retain=True,
    )
    assert result.outputs["color"].cpu().isfinite().all()  # Also waits for the device.
    assert list(result.stages()) == ["project", "sort", "bin", "blend"]
    upstream = {"color": torch.ones_like(result.outputs["color"])}
    gradients = emulated(gaussians.backward, device.cuda)(result.state, upstream)
    assert gradients.touched.cpu().any()
    assert list(gradients.stages()) == ["blend_backward", "project_backward"]
    assert all(milliseconds > 0 for milliseconds in gradients.stages().values())


def test_memory_is_that_of_the_scene_the_images_and_the_pairs(device: Device) -> None:
    case = build("memory", Cloud(count=8_000, scales=(0.02, 0.05)), width=128, height=128, cameras=(opencv(128, 128),))
    device.native.device_trim(0)
    scene = scene_of(case)
    outputs = ("color", "radii")
    results, state = device.engine.forward(scene, cameras_of(case), gaussians.Settings(), outputs=outputs, retain=True)
    device.engine.backward(state, {"color": torch.ones((1, 128, 128, 3))}, None)
    inputs = sum(value.numel() * value.element_size() for value in scene.tensors().values())
    images = 128 * 128 * 4 * 5
    # Each visible Gaussian lies in at least one tile.
    pairs = int((results["radii"] > 0).all(-1).sum())
    assert state.kept.bytes < device.native.device_bytes(0) < 2 * inputs + images + 64 * pairs


def test_launches_of_a_few_views_render_what_one_does_and_a_caller_may_stop_between_them(
    cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = emulated(gaussians.forward, CudaEngine(cuda.native, 0, cuda.current_stream))
    arrays = {name: value for name, value in vars(scene_of(CROWD)).items() if value is not None}
    scene = gaussians.Gaussians(**{name: value.to(cuda.device) for name, value in arrays.items()})
    first, second = cameras_of(CROWD)
    views = [first, second, first, first, second]
    background = torch.from_numpy(random_of("views").random((len(views), 3), np.float32)).to(cuda.device)

    def render(ask: Callable[[], None]) -> dict[str, torch.Tensor]:
        settings = gaussians.Settings()
        result = forward(scene, views, settings, background=background, outputs=OUTPUTS, before_view=ask)
        return {name: value.cpu() for name, value in result.outputs.items()}

    assert_launches_of_two_views(render, 67 * 45 + 2500, monkeypatch)
