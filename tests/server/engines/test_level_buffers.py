"""Images that are sent as levels are written as levels by the kernels, without an image of floats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from lumigrad.kernels.gaussians.engine import CudaEngine
from lumigrad.kernels.steps import complete
from lumigrad.server.core.call import Call
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.gaussians import GAUSSIANS, gaussian_plan
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.runner import EngineRunner, Task
from lumigrad.v1 import image_pb2, scene_pb2
from support.backends.cuda_devices import emulated
from support.backends.footprint import LIMITS
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec
from support.models.account_machine import Caller

UINT8, PNG = image_pb2.IMAGE_FORMAT_UINT8, image_pb2.IMAGE_FORMAT_PNG
OUTPUTS = ("color", "alpha")


@dataclass(frozen=True)
class Request:
    """A forward pass of a stored scene."""

    task: Task
    formats: ImageFormats
    scene: dict[str, torch.Tensor]

    def inputs(self) -> dict[str, torch.Tensor]:
        return self.scene


class Kernels(CudaEngine):
    """The CUDA kernels in the emulation; notes which images each call writes."""

    def __init__(self) -> None:
        super().__init__(emulated().native, 0, lambda: 0)
        self.written: list[set[str]] = []

    def forward(self, views: Any, settings: Any, arrays: Any, *options: Any, **more: Any) -> Any:
        self.written.append({name for name in (*OUTPUTS, "color_levels") if arrays.get(name) is not None})
        return super().forward(views, settings, arrays, *options, **more)


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    made = Kernels()
    with mock.patch("lumigrad.kernels.gaussians.forward.engine_for", lambda _: made):
        yield made


def request_of(formats: dict[str, int], x: float = 0.0) -> Request:
    cloud = gaussian_cloud(coefficients=0)
    cloud["colors"] = np.random.default_rng(7).uniform(-0.5, 1.5, cloud["colors"].shape).astype(np.float32)
    spec = gaussian_spec(camera_of(x=x), camera_of(x=x + 0.2), outputs=OUTPUTS)
    plan = gaussian_plan(spec, {name: array.shape for name, array in cloud.items()}, LIMITS, "spec")
    entries = [image_pb2.OutputFormat(name=name, format=kind) for name, kind in formats.items()]
    task = Task(GAUSSIANS, plan, "spec", scene_pb2.SceneRef(scene_id="scene", version=1))
    scene = {name: torch.from_numpy(array) for name, array in cloud.items()}
    return Request(task, ImageFormats.of(entries, plan, "formats"), scene)


def call_of() -> Call:
    return Call("Test.Call", Caller())


def rendered(*requests: Request, retain: bool = False) -> Sequence[Any]:
    """Returns the colours of requests; several are rendered as one batch."""
    runner = EngineRunner(Transfer(torch.device("cpu")))
    if len(requests) == 1:
        result = complete(runner.forward(requests[0], call_of(), retain=retain)).result
        assert (result.state is not None) == retain
        return [result.outputs["color"]]
    entries = [runner.batch_entry(request, call_of()) for request in requests]
    assert len({entry.key for entry in entries if entry is not None}) == 1
    return [each.result.outputs["color"] for each in entries[0].run([entry.item for entry in entries])]


def levels_of(values: Any) -> Any:
    return np.rint(np.clip(values, 0, 1) * np.float32(255)).astype(np.uint8)


@pytest.mark.parametrize("kind", [UINT8, PNG])
def test_the_kernels_write_levels_in_place_of_floats(kernels: Kernels, kind: int) -> None:
    (floats,) = rendered(request_of({}))
    assert floats.min() < 0 and floats.max() > 1
    (levels,) = rendered(request_of({"color": kind}))
    np.testing.assert_array_equal(levels, levels_of(floats))
    assert kernels.written == [{"color", "alpha"}, {"color_levels", "alpha"}]


def test_a_pass_that_is_retained_has_floats_too(kernels: Kernels) -> None:
    (floats,) = rendered(request_of({}))
    (levels,) = rendered(request_of({"color": UINT8}), retain=True)
    np.testing.assert_array_equal(levels, levels_of(floats))
    assert kernels.written[-1] == {"color", "color_levels", "alpha"}


def test_a_batch_is_written_as_levels_if_all_its_calls_want_them(kernels: Kernels) -> None:
    floats = [rendered(request_of({}, x))[0] for x in (0.0, 0.3)]
    both = rendered(request_of({"color": UINT8}), request_of({"color": PNG}, 0.3))
    for actual, expected in zip(both, floats, strict=True):
        np.testing.assert_array_equal(actual, levels_of(expected))
    assert kernels.written[-1] == {"color_levels", "alpha"}
    one, other = rendered(request_of({"color": UINT8}), request_of({}, 0.3))
    np.testing.assert_array_equal(one, levels_of(floats[0]))
    np.testing.assert_array_equal(other, floats[1])
    assert kernels.written[-1] == {"color", "alpha"}
