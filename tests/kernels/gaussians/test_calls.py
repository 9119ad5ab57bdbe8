"""Promises of calls besides the numbers: a callback before each view, times by stage, only the wanted results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels.gaussians import (
    ArgumentError,
    Camera,
    Gaussians,
    Settings,
    State,
    backward,
    backward_steps,
    forward,
    forward_steps,
)
from lumigrad.kernels.steps import Steps, complete

STAGES = {"project", "sort", "bin", "blend"}
BACKWARD_STAGES = {"blend_backward", "project_backward"}


def scene(**changes: torch.Tensor | None) -> Gaussians:
    random = torch.Generator().manual_seed(3)
    tensors: dict[str, torch.Tensor | None] = {
        "means": torch.rand(40, 3, generator=random) + torch.tensor([-0.5, -0.5, 4.0]),
        "quats": torch.rand(40, 4, generator=random),
        "scales": 0.1 * torch.rand(40, 3, generator=random),
        "opacities": torch.rand(40, generator=random),
        "sh": torch.rand(40, 4, 3, generator=random),
    }
    return Gaussians(**{**tensors, **changes})  # type: ignore[arg-type]


def cameras(count: int) -> list[Camera]:
    return [Camera.opencv(30.0, 30.0, 16.0, 12.0, np.eye(3), [0.1 * i, 0.0, 0.0], 32, 24) for i in range(count)]


def retained(gaussians: Gaussians, views: int) -> State:
    return forward(gaussians, cameras(views), Settings(), retain=True).state


class Gone(Exception):
    """The caller does not wait any more."""


def leave_at(last: int) -> tuple[list[int], Callable[[], None]]:
    asked: list[int] = []

    def ask() -> None:
        asked.append(len(asked))
        if len(asked) == last:
            raise Gone

    return asked, ask


def test_each_view_can_be_the_last() -> None:
    asked, ask = leave_at(3)
    with pytest.raises(Gone):
        forward(scene(), cameras(4), Settings(), before_view=ask)
    assert len(asked) == 3
    upstream = {"color": torch.ones(4, 24, 32, 3)}
    state = retained(scene(), 4)
    asked, ask = leave_at(2)
    with pytest.raises(Gone):
        backward(state, upstream, before_view=ask)
    assert len(asked) == 2
    # The unfinished call does not affect the next one.
    again = backward(state, upstream)
    for name, gradient in backward(retained(scene(), 4), upstream).gradients.items():
        assert torch.equal(again.gradients[name], gradient), name


def test_stages_are_timed() -> None:
    result = forward(scene(), cameras(2), Settings(), retain=True)
    assert set(result.stages()) <= STAGES
    assert sum(result.stages().values()) > 0.0
    times = backward(result.state, {"color": torch.ones(2, 24, 32, 3)}).stages()
    assert set(times) <= BACKWARD_STAGES
    assert sum(times.values()) > 0.0


def test_all_tensors_of_the_scene_are_differentiated_if_nothing_is_said() -> None:
    upstream = {"alpha": torch.ones(1, 24, 32)}
    found = backward(retained(scene(), 1), upstream).gradients
    assert set(found) == {"means", "quats", "scales", "opacities", "sh"}
    covariances = torch.tensor([0.01, 0.0, 0.0, 0.01, 0.0, 0.01]).repeat(40, 1)
    other = scene(quats=None, scales=None, covariances=covariances, sh=None, colors=torch.rand(40, 2))
    found = backward(retained(other, 1), upstream).gradients
    assert set(found) == {"means", "covariances", "opacities", "colors"}


def test_a_gradient_has_the_shape_of_what_was_given() -> None:
    views, upstream = cameras(2), {"color": torch.ones(2, 24, 32, 3)}
    sums = {}
    for name, background in (("shared", torch.rand(3)), ("each", torch.rand(2, 3)), ("none", None)):
        state = forward(scene(), views, Settings(), background=background, retain=True).state
        sums[name] = backward(state, upstream, ("background",)).gradients["background"]
    assert sums["shared"].shape == sums["none"].shape == (3,)
    assert sums["each"].shape == (2, 3)
    torch.testing.assert_close(sums["each"].sum(0), sums["shared"])


def test_nothing_is_kept_that_was_not_asked_for() -> None:
    assert forward(scene(), cameras(1), Settings()).state is None


def test_calls_that_miss_something_say_what() -> None:
    dropped = forward(scene(), cameras(1), Settings()).state
    with pytest.raises(ArgumentError, match="state: expected the state of a forward with retain=True, got NoneType"):
        backward(dropped, {"alpha": torch.zeros(1, 24, 32)})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="cameras: expected a sequence of cameras, got Camera"):
        forward(scene(), cameras(1)[0], Settings())  # type: ignore[arg-type]


def in_turns(first: Steps[Any], second: Steps[Any]) -> tuple[Any, Any]:
    """Returns the results of two calls whose steps alternate."""
    open_ones, results = {0: first, 1: second}, {}
    while open_ones:
        for number, steps in list(open_ones.items()):
            try:
                next(steps)
            except StopIteration as end:
                results[number] = end.value
                del open_ones[number]
    return results[0], results[1]


@pytest.mark.parametrize("scenes", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_calls_that_take_turns_do_not_meet(retain: bool, scenes: int) -> None:
    one, other, views = scene(), scene(opacities=torch.full((40,), 0.3)), cameras(4)
    if scenes == 2:
        one = Gaussians(**{name: torch.stack([tensor, tensor.flip(0)]) for name, tensor in one.tensors().items()})
    outputs = ("color", "ids", "radii")
    whole = [forward(each, views, Settings(), outputs=outputs, retain=retain) for each in (one, other)]
    steps = [forward_steps(each, views, Settings(), outputs=outputs, retain=retain) for each in (one, other)]
    found = in_turns(*steps)
    for mine, expected in zip(found, whole, strict=True):
        assert all(torch.equal(mine.outputs[name], expected.outputs[name]) for name in outputs)
    if retain:
        upstream = {"color": torch.rand(4, 24, 32, 3, generator=torch.Generator().manual_seed(1))}
        expected_gradients = [backward(each.state, upstream).gradients for each in whole]
        gradients = in_turns(*(backward_steps(each.state, upstream) for each in found))
        for result, wanted in zip(gradients, expected_gradients, strict=True):
            assert all(torch.equal(result.gradients[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("views", [1, 3])
def test_gradients_of_what_was_touched_alone_are_the_same(views: int) -> None:
    """Gradients of rows that touched no pixel are not written where sixteen neighbouring rows touched none."""
    shown = scene()
    tensors = {name: torch.cat([tensor, tensor]) for name, tensor in shown.tensors().items()}
    # The second half is behind the cameras.
    tensors["means"][len(shown.means) :, 2] -= 1000.0
    both = Gaussians(**tensors)
    state = forward(both, cameras(views), Settings(), retain=True).state
    upstream = {"color": torch.rand(views, 24, 32, 3, generator=torch.Generator().manual_seed(2))}
    whole = backward(state, upstream)
    unwritten = {name: torch.full_like(tensor, torch.nan) for name, tensor in both.tensors().items()}
    found = complete(backward_steps(state, upstream, into=unwritten, touched_only=True))
    assert torch.equal(found.touched, whole.touched)
    is_touched = whole.touched.bool()
    assert 0 < is_touched.sum() < len(is_touched)
    for name, expected in whole.gradients.items():
        assert torch.equal(found.gradients[name][is_touched], expected[is_touched]), name
        assert found.gradients[name].isnan().any(), name


def test_each_step_has_the_colors_of_its_views() -> None:
    colors = torch.rand(4, 40, 2, generator=torch.Generator().manual_seed(5))
    steps = forward_steps(scene(sh=None, colors=colors), cameras(4), Settings())
    found = complete(steps).outputs["color"]
    for view, camera in enumerate(cameras(4)):
        expected = forward(scene(sh=None, colors=colors[view]), [camera], Settings()).outputs["color"]
        assert torch.equal(found[view], expected[0]), view
