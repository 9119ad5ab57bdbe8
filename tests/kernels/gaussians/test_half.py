"""Half precision on CUDA: images within the bound that docs/gaussians.md derives, and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lumigrad.kernels import gaussians
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import Gaussians, Settings
from lumigrad.kernels.gaussians.engine import CudaEngine
from lumigrad.kernels.gaussians.settings import PRECISIONS
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.backends.gaussian_engines import Engine, cpu
from support.gaussians.case import GaussianCase, Slice
from support.gaussians.cases import Cloud, build, inria, opencv, random_of
from support.gaussians.runs import cameras_of, run, scene_of
from support.gaussians.sensor_cases import CASES as SENSORS

Images: TypeAlias = Mapping[str, NDArray[Any]]
# Errors in units of the range of what is blended, where the same Gaussians are; a pixel may also gain or lose one at
# alpha_min, or end with another at a transmittance of 1e-4.
SAME, FLIPPED, ON_AVERAGE = 5e-4, 0.01, 1e-4

SHIFT = np.eye(4)
SHIFT[:3, 3] = 0.2, -0.1, 0.3
VIEWS = (opencv(67, 45), opencv(67, 45, focal=0.7), opencv(67, 45, focal=1.6))
SMALL = {"width": 67, "height": 45}
WIDE = {"width": 2000, "height": 64, "cameras": (opencv(2000, 64),)}
NEEDLES = np.exp(random_of("half needles").uniform(-0.3, 0.3, (200, 3))) * [1e-3, 1e-3, 0.5]
SCENES = (
    build("dense", Cloud(count=2500, scales=(0.02, 0.2)), **SMALL),
    build("crowd of views", Cloud(count=600, degree=3), cameras=VIEWS, background=(0.1, 0.9, 0.5), **SMALL),
    build("large", Cloud(count=60, scales=(0.5, 3.0)), **SMALL),
    build("tiny", Cloud(count=900, scales=(1e-4, 5e-3)), **SMALL),
    build("tiny without blur", Cloud(count=900, scales=(1e-4, 5e-3)), eps2d=0.0, **SMALL),
    build("wide", Cloud(count=500, slope=0.5, scales=(1e-3, 0.05)), **WIDE),
    build("wide needles", Cloud(count=200), scales=NEEDLES, **WIDE),
    build("antialiased", Cloud(count=400, scales=(2e-3, 0.1)), antialiased=True, **SMALL),
    build("degree 1", Cloud(count=200, degree=1), **SMALL),
    build("degree 4", Cloud(count=200, degree=4), background=(0.3, 0.0, 1.0), **SMALL),
    build("one channel", Cloud(count=300, channels=1), **SMALL),
    build("slices", Cloud(count=300, degree=2), slices=(Slice(20, 90, SHIFT), Slice(120, 300, SHIFT)), **SMALL),
    build("fisheye", Cloud(count=300, slope=1.3), cameras=(opencv(model="fisheye", focal=0.5),)),
    build("inria", Cloud(count=500), cameras=(inria(),), semantics="inria_exact", near=0.2, pixel_center=0.0),
    build("fainter", Cloud(count=300, opacities=(0.01, 0.9)), alpha_min=1e-3, **SMALL),
)
IMAGES = ("color", "alpha", "transmittance", "depth", "inverse_depth")
OF_GAUSSIANS = ("radii", "means2d", "depths", "conics", "projected_opacities")
RESULTS = (*IMAGES, "contributors", *OF_GAUSSIANS)
EVERYTHING = Cloud(count=300, degree=2)
HALF = Settings(precision="half")


@dataclass
class Device:
    """A CUDA device or the emulated one: its module, and a fresh engine on it."""

    native: ModuleType
    cuda: CudaEngine
    engine: Engine


@pytest.fixture
def device(cuda: CudaDevice) -> Device:
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    forward, backward = emulated(gaussians.forward, engine), emulated(gaussians.backward, engine)
    return Device(cuda.native, engine, Engine(cuda.name, cuda.device, False, forward, backward))


def both(engine: Engine, case: GaussianCase, outputs: Sequence[str] = RESULTS) -> tuple[Images, Images]:
    """The results in full and in half precision."""
    full, half = (run(engine, case, outputs=outputs, precision=precision).outputs for precision in PRECISIONS)
    return full, half


def span_of(name: str, case: GaussianCase, full: Images) -> float:
    """At least the range of the values that are blended."""
    depths = full["depths"][full["depths"] > 0]
    harmonics = 1.0 if case.sh is None else 2.0
    return {"color": harmonics, "depth": depths.max(), "inverse_depth": 1 / depths.min()}.get(name, 1.0)


@pytest.mark.parametrize("case", SCENES, ids=lambda case: case.name.replace(" ", "_"))
def test_errors_are_within_the_bound(case: GaussianCase, device: Device) -> None:
    full, half = both(device.engine, case)
    same = full["contributors"] == half["contributors"]
    assert same.mean() > 0.98 and full["contributors"].any()
    for name in IMAGES:
        error = np.abs(full[name] - half[name]) / span_of(name, case, full)
        assert error[same].max() <= SAME, name
        assert error.max() <= FLIPPED, name
        assert error.mean() <= ON_AVERAGE, name
    # It was drawn from other records, which do not change what follows from the projection.
    assert (full["color"] != half["color"]).any()
    for name in OF_GAUSSIANS:
        np.testing.assert_array_equal(full[name], half[name], err_msg=name)


def test_records_take_fewer_bytes(emulated_cuda: CudaDevice) -> None:
    count, native = 8000, emulated_cuda.native
    case = build("half bytes", Cloud(count=count), width=8, height=8)
    peaks = []
    for precision in PRECISIONS:
        engine = CudaEngine(native, 0, emulated_cuda.current_stream)
        native.device_trim(0)
        before = native.device_bytes(0)
        emulated(gaussians.forward, engine)(scene_of(case), cameras_of(case), Settings(precision=precision))
        native.synchronize()
        peaks.append(native.device_bytes(0) - before)
    assert peaks[0] - peaks[1] == pytest.approx(24 * count, rel=0.1)


def test_tiles_that_were_not_listed_look_the_same(device: Device) -> None:
    listed = run(device.engine, SCENES[0], outputs=RESULTS, precision="half").outputs
    device.cuda.session.set_pair_limit(0)
    other = run(device.engine, SCENES[0], outputs=RESULTS, precision="half").outputs
    for name, value in listed.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_sensors_have_half_precision_in_the_picture(device: Device) -> None:
    case = SENSORS["opencv"]
    scene, camera = Gaussians(**case.scene), case.camera()
    full, half = (device.engine.forward(scene, [camera], Settings(precision=each))[0]["color"] for each in PRECISIONS)
    assert 0 < (full - half).abs().max() <= FLIPPED and (full - half).abs().mean() <= ON_AVERAGE


def test_values_beyond_sixteen_bits_become_the_largest(device: Device) -> None:
    bright = build("bright", Cloud(count=20), colors=np.full((20, 3), 1e9))
    images = device.engine.forward(scene_of(bright), cameras_of(bright), HALF, outputs=("color", "alpha"))[0]
    color, alpha = images["color"], images["alpha"]
    torch.testing.assert_close(color, (65504.0 * alpha)[..., None].expand_as(color), rtol=1e-5, atol=0.1)


def test_more_channels_are_drawn_in_full(device: Device) -> None:
    full, half = both(device.engine, build("half channels", Cloud(count=100, channels=4)), ("color", "alpha"))
    np.testing.assert_array_equal(full["color"], half["color"])


def test_the_cpu_computes_in_full() -> None:
    full, half = both(cpu(), build("half on a cpu", EVERYTHING))
    for name, value in full.items():
        np.testing.assert_array_equal(half[name], value, err_msg=name)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one of": ({"precision": "double"}, {}),
    "with deterministic": ({"deterministic": True}, {}),
    "with response 'ray'": ({"response": "ray"}, {}),
    "with primitive 'surfel'": ({"primitive": "surfel"}, {}),
    "with the output 'ids'": ({}, {"outputs": ("color", "ids")}),
    "with retain": ({}, {"retain": True}),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_needs_full_precision_refuses_half(text: str) -> None:
    settings, options = REFUSED[text]
    case = build("half refused", Cloud(count=5))
    with pytest.raises(ArgumentError, match=f"precision.*{text}"):
        gaussians.forward(scene_of(case), cameras_of(case), Settings(**{"precision": "half", **settings}), **options)
