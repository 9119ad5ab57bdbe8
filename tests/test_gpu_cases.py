"""The cases of `make gpu-bench`, on the emulated device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.kernels import meshes, training
from support.backends import emulation
from tests.benchmarks import captured_scenes
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


@pytest.mark.parametrize("name", [*cases.SCENES, "5M"])
def test_scenes_of_gaussians_are_timed_with_their_stages(device: Device, name: str) -> None:
    try:
        found = case(device, f"gaussians, {name}")
    except NotHere as error:
        assert re.search(r"no scenes/\S+ .*in the folder LUMIGRAD_TEST_DATA", str(error))
        pytest.skip(str(error))
    assert list(found["ops"]) == ["forward", "backward", "forward, not retained"]
    assert {"forward blend", "backward blend_backward"} <= set(found["stages_ms"])


def test_captured_scenes_are_skipped_with_a_reason(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TEST_DATA", "/nowhere")
    for name, missing in {"garden x9": "garden.npz", "fitted capture": "plush.spz", "trained person": "biker"}.items():
        with pytest.raises(NotHere, match=f"no scenes/.*{missing}.* in the folder LUMIGRAD_TEST_DATA"):
            case(device, f"gaussians, {name}")


def test_a_garden_has_copies_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TEST_DATA", str(tmp_path))
    file = tmp_path / captured_scenes.GARDEN[0]
    file.parent.mkdir(parents=True)
    points = np.array([[0.5, 1.0, 1.5], [0.0, 0.0, 2.5]], np.float32)
    np.savez(
        file, means3d=points, colors=np.full((2, 3), 255, np.uint8), viewmats=np.eye(4)[None],
        Ks=np.diag([300.0, 200.0, 1.0])[None], width=648, height=420,
    )  # fmt: skip
    made = captured_scenes.garden(3, width=1296)
    assert sorted(map(tuple, made.means.tolist())) == [
        (0.5 + 4 * x, 1.0 + 4 * y, 1.5) for x in (-1, 0, 1) for y in (-1, 0, 1)
    ]
    assert (made.width, made.height, made.intrinsics[:2]) == (1296, 840, (600.0, 400.0))
    assert made.sh.shape == (9, 16, 3)


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
