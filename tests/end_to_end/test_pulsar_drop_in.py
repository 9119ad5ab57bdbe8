"""The drop-in for Pulsar's Renderer through a real worker: images, forward info and every gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.client.compat.pulsar import Renderer
from support.closeness import assert_image, assert_of_maximum
from support.spheres import compat_backward, compat_reference, oracle
from support.spheres.case import Expected, Floats, SphereCase, sphere_ids
from support.spheres.cases import compat_cases
from support.workers.worker import WorkerProcess


@dataclass(frozen=True)
class Dropped:
    """The results; gradients by the names of the protocol. A batch keeps its first axis."""

    image: Floats
    info: Floats | None
    gradients: dict[str, Floats]


def renderer_of(case: SphereCase, target: str) -> Renderer:
    """The module for a case."""
    return Renderer(
        case.width,
        case.height,
        max(len(case.radii), 1),
        orthogonal_projection=case.orthogonal,
        right_handed_system=case.right_handed,
        background_normalized_depth=case.background_depth,
        n_channels=case.channels,
        n_track=case.n_track,
        target=target,
    )


def render_dropped_in(cases: Sequence[SphereCase], target: str, *, batched: bool, min_depth: float) -> Dropped:
    """Forward and `backward()` of one case, or of several as a batch."""
    first = cases[0]
    names = ("positions", "colors", "radii", "camera", "opacities")

    def leaf(name: str) -> torch.Tensor | None:
        if getattr(first, name) is None:
            return None
        rows = np.stack([getattr(case, name) for case in cases])
        return torch.from_numpy(rows if batched else rows[0]).clone().requires_grad_()

    leaves = {name: leaf(name) for name in names}
    arguments = [leaves[name] for name in names[:4]]
    result = renderer_of(first, target)(
        *arguments,
        first.gamma,
        first.max_depth,
        min_depth=min_depth,
        bg_col=torch.from_numpy(first.background),
        opacity=leaves["opacities"],
        percent_allowed_difference=first.allowed_difference,
        max_n_hits=first.max_hits or 4294967295,
        mode=int(first.hits_only),
        return_forward_info=True,
        first_R_then_T=first.first_r_then_t,
    )
    image, info = result
    if first.hits_only:
        assert info is None
        return Dropped(image.detach().numpy(), None, {})
    upstream = np.stack([case.output_gradient for case in cases])
    image.backward(torch.from_numpy(upstream if batched else upstream[0]))
    gradients = {
        "cameras" if name == "camera" else name: value.grad.numpy()
        for name, value in leaves.items()
        if value is not None and value.grad is not None
    }
    return Dropped(image.detach().numpy(), info.numpy(), gradients)


CASES = {case.name: case for case in compat_cases()}
FILES = oracle.files()


def assert_as_expected(case: SphereCase, expected: Expected, result: Dropped, element: int | None) -> None:
    def own(values: np.ndarray) -> np.ndarray:
        return values if element is None else values[element]

    if case.hits_only:
        np.testing.assert_array_equal(own(result.image)[..., 0], expected.hits)
        return
    assert expected.image is not None and expected.info is not None and result.info is not None
    assert_image(own(result.image), expected.image)
    info = own(result.info)
    np.testing.assert_array_equal(sphere_ids(info), sphere_ids(expected.info))
    numbers = [0, 1, 2, *range(4, info.shape[-1], 2)]
    np.testing.assert_allclose(info[..., numbers], expected.info[..., numbers], rtol=1e-6, atol=1e-5)
    for name, gradient in result.gradients.items():
        tolerance = 1e-3 if case.gamma < 1e-3 or name == "cameras" else 1e-4
        assert_of_maximum(f"{case.name} {name}", own(gradient), expected.gradients[name], tolerance)


def by_reference(case: SphereCase) -> Expected:
    rendered = compat_reference.render(case)
    gradients = compat_backward.gradients(case, rendered)
    gradients["cameras"] = compat_backward.camera_gradient(case, gradients)
    return Expected(rendered.image, rendered.info, rendered.hits, gradients)


@pytest.mark.skipif(not FILES, reason=oracle.ABSENT)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_original_is_reproduced(path: Path, running: WorkerProcess) -> None:
    elements = oracle.load(path)
    first = elements[0]
    cases = [element.case for element in elements]
    result = render_dropped_in(cases, running.target, batched=first.batched, min_depth=first.min_depth)
    for element in elements:
        if element.element and element.case.opacities is not None:
            continue  # The original gives every element of a batch the opacities of the first.
        assert_as_expected(element.case, element.expected, result, element.element if first.batched else None)


@pytest.mark.parametrize("name", CASES)
def test_reference_is_reproduced(name: str, running: WorkerProcess) -> None:
    case = CASES[name]
    result = render_dropped_in([case], running.target, batched=False, min_depth=case.min_depth)
    assert_as_expected(case, by_reference(case), result, None)


@pytest.mark.parametrize("kind", ["batch", "batch_opacity"])
def test_elements_of_a_batch_share_the_near_limit_and_nothing_else(kind: str, running: WorkerProcess) -> None:
    names = [f"{kind}_{index}" for index in range(3)]
    size = CASES[names[0]].width, CASES[names[0]].height
    cases = [case for case in (CASES[name] for name in names) if (case.width, case.height) == size]
    assert len(cases) == 3
    result = render_dropped_in(cases, running.target, batched=True, min_depth=0.0)
    for index, case in enumerate(cases):
        assert_as_expected(case, by_reference(case), result, index)


def test_static_helpers_read_the_info(running: WorkerProcess) -> None:
    case = CASES["perspective_posed"]
    rendered = compat_reference.render(case)
    result = render_dropped_in([case], running.target, batched=False, min_depth=0.0)
    info = torch.from_numpy(result.info)
    ids = Renderer.sphere_ids_from_result_info_nograd(info)
    assert ids.dtype == torch.int32 and ids.shape == (1, case.height, case.width, case.n_track)
    np.testing.assert_array_equal(ids[0].numpy(), sphere_ids(rendered.info))
    depth = Renderer.depth_map_from_result_info_nograd(info)
    assert_image(depth.numpy(), rendered.info[..., 4])


def test_several_forwards_before_one_backward(running: WorkerProcess) -> None:
    cases = [CASES["perspective_posed"], CASES["right_handed"]]
    module = renderer_of(cases[0], running.target)
    positions = torch.from_numpy(cases[0].positions).requires_grad_()
    total = torch.zeros(())
    expected = np.zeros((25, 3))
    for shift in (0.0, 0.2, 0.4):
        camera = cases[0].camera.copy()
        camera[0] += shift
        image = module(
            positions,
            torch.from_numpy(cases[0].colors),
            torch.from_numpy(cases[0].radii),
            torch.from_numpy(camera),
            0.1,
            22.0,
        )
        total = total + (image * torch.from_numpy(cases[0].output_gradient)).sum()
        moved = SphereCase(**{**vars(cases[0]), "camera": camera})
        expected += by_reference(moved).gradients["positions"]
    total.backward()
    assert positions.grad is not None
    assert_of_maximum("positions", positions.grad.numpy(), expected)
