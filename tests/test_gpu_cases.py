"""The cases of `make gpu-bench`, on the emulated device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from lumigrad.kernels import gaussians, meshes, training
from support.backends import emulation
from tests.gpu import cases
from tests.gpu.device import VARIANTS, Device
from tests.gpu.runner import NotHere


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    emulation.load("_emulation")
    made = Device("emulation")
    with made.engines():
        yield made


def case(device: Device, name: str) -> dict[str, Any]:
    found = {each.name: each for each in cases.cases(device)}
    return found[name].run(device)


@pytest.mark.parametrize("count", ["100k", "1M", "5M"])
def test_gaussians_are_also_drawn_in_half_precision(
    device: Device, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    forward, precisions = gaussians.forward, []

    def noted(scene: Any, cameras: Any, settings: Any, **options: Any) -> Any:
        precisions.append((settings.precision, options.get("retain", False)))
        return forward(scene, cameras, settings, **options)

    monkeypatch.setattr(gaussians, "forward", noted)
    ops = case(device, f"gaussians {count}")["ops"]
    assert list(ops) == ["forward", "backward", "forward, not retained", "forward, half"]
    assert {("full", True), ("full", False), ("half", False)} == set(precisions)


def test_a_step_takes_the_gradient_of_harmonics_as_a_worker_does(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, gradients = training.adam_step, []

    def noted(parameters: Any, **options: Any) -> Any:
        gradients.append(parameters["sh"].gradient)
        return step(parameters, **options)

    monkeypatch.setattr(training, "adam_step", noted)
    assert case(device, "training step 1M")["ops"]["step"]["runs"] == 2
    assert all(isinstance(each, training.HarmonicsGradient) and each.degree == 3 for each in gradients)


def test_inputs_of_meshes_and_adam_change_from_round_to_round(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, step, given = meshes.evaluate, training.adam_step, []

    def queried(spheres: Any, *arguments: Any, **options: Any) -> Any:
        given.append(spheres)
        return evaluate(spheres, *arguments, **options)

    def stepped(parameters: Any, **options: Any) -> Any:
        given.append(parameters["means"].gradient)
        return step(parameters, **options)

    monkeypatch.setattr(meshes, "evaluate", queried)
    monkeypatch.setattr(training, "adam_step", stepped)
    calls = cases.mesh_calls(device, "1k")
    calls = {name: call for name, call in calls.items() if name != "moved vertices"}
    for name, call in {**calls, "adam": cases.Adam(device, 50).step}.items():
        given.clear()
        for number in range(VARIANTS + 1):
            call(number)
        assert len({tuple(each.flatten().tolist()) for each in given}) == VARIANTS, name
        assert given[0] is given[VARIANTS]


def test_files_are_made_by_nvjpeg_too_where_torchvision_is(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(NotHere, match="takes torchvision"):
        case(device, "JPEG 1080p")
    made: list[tuple[int, ...]] = []
    offered = ModuleType("torchvision.io")
    offered.encode_jpeg = lambda planes, quality: made.append((*planes.shape, quality))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.io", offered)
    assert list(case(device, "JPEG 1080p")["ops"]) == ["one thread", "nvJPEG"]
    assert set(made) == {(3, 48, 64, 90)}
