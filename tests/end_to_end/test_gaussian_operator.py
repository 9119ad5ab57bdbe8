"""`render_gaussians` through a real worker against the float64 reference: images, and gradients of every input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from lumigrad.client import Client
from lumigrad.client.torch import RenderedGaussians, render_gaussians
from support.closeness import assert_image, assert_relative
from support.gaussians.case import Doubles, GaussianCase, OpenCVView
from support.gaussians.cases import gsplat_cases, upstream_of
from support.gaussians.reference_runs import ReferenceScene

CASES = {case.name: case for case in gsplat_cases()}
# Cases in which the operator has something to do; the kernels are tested with all.
NAMES = (
    "covariances",
    "degree_2_of_3",
    "orthographic",
    "distorted",
    "sheared",
    "three_cameras",
    "colors_per_view",
    "batch",
    "batch_colors_per_view",
    "alpha_max",
    "whole_pixels",
    "scale_modifier",
    "slices",
)
IMAGES = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth")
ROWS, COLUMNS = np.triu_indices(3)


@dataclass(frozen=True)
class Operated:
    """The results, and the gradient of every tensor that was passed."""

    result: RenderedGaussians
    gradients: dict[str, Doubles]


def leaves_of(case: GaussianCase) -> dict[str, torch.Tensor]:
    """The tensors that the operator takes, each with a gradient; covariances as matrices, scenes in a batch."""

    def leaf(values: ArrayLike, kind: type = np.float32) -> torch.Tensor:
        return torch.from_numpy(np.array(values, kind)).requires_grad_()

    leaves = {name: leaf(value) for name, value in case.tensors.items() if name != "covariances"}
    if case.covariances is not None:
        whole = np.zeros((*case.covariances.shape[:-1], 3, 3))
        whole[..., ROWS, COLUMNS] = whole[..., COLUMNS, ROWS] = case.covariances
        leaves["covariances"] = leaf(whole)
    views, matrices = np.tile(np.eye(4), (len(case.cameras), 1, 1)), np.tile(np.eye(3), (len(case.cameras), 1, 1))
    for index, camera in enumerate(case.cameras):
        assert isinstance(camera, OpenCVView)
        views[index, :3, :3], views[index, :3, 3] = camera.rotation, camera.translation
        matrices[index, (0, 1, 0, 1), (0, 1, 2, 2)] = camera.intrinsics
    scenes = () if case.scenes is None else (case.scenes, len(views) // case.scenes)
    shape = scenes or (len(views),)
    leaves["viewmats"] = leaf(views.reshape(*shape, 4, 4), np.float64)
    leaves["Ks"] = leaf(matrices.reshape(*shape, 3, 3), np.float64)
    if case.background is not None:
        per_camera = case.background.ndim == 2
        leaves["background"] = leaf(case.background.reshape(*(shape if per_camera else ()), case.channels))
    for index, piece in enumerate(case.slices):
        leaves[f"transform_{index}"] = leaf(piece.matrix, np.float64)
    return leaves


def operate(
    client: Client,
    case: GaussianCase,
    upstream: Mapping[str, ArrayLike],
    outputs: Sequence[str] = (),
    **options: object,
) -> Operated:
    """Renders, and runs backward from gradients [C, ...] of outputs."""
    leaves = leaves_of(case)
    settings = {name: value for name, value in asdict(case.options).items() if name != "sh_degree"}
    degree = case.options.sh_degree
    if case.sh is not None and degree is None:
        degree = int(case.sh.shape[-2] ** 0.5) - 1
    view = case.cameras[0]
    assert isinstance(view, OpenCVView)
    result = render_gaussians(
        leaves["means"],
        leaves.get("quats"),
        leaves.get("scales"),
        leaves["opacities"],
        leaves["colors" if case.sh is None else "sh"],
        leaves["viewmats"],
        leaves["Ks"],
        width=case.width,
        height=case.height,
        sh_degree=degree,
        background=leaves.get("background"),
        covariances=leaves.get("covariances"),
        transforms=[(piece.begin, piece.end, leaves[f"transform_{k}"]) for k, piece in enumerate(case.slices)],
        projection=view.model,
        distortion=[camera.distortion for camera in case.cameras] if view.distortion else None,
        outputs=tuple({*upstream, *outputs}),
        client=client,
        **{**settings, **options},
    )
    loss = torch.zeros((), dtype=torch.float64)
    for name, values in upstream.items():
        image = getattr(result, name)
        loss = loss + (image * torch.from_numpy(np.asarray(values, np.float32)).reshape(image.shape)).sum()
    loss.backward()
    return Operated(result, _gradients(leaves))


def _gradients(leaves: Mapping[str, torch.Tensor]) -> dict[str, Doubles]:
    found = {name: leaf.grad.double().numpy() for name, leaf in leaves.items() if leaf.grad is not None}
    view, intrinsics = found.pop("viewmats").reshape(-1, 4, 4), found.pop("Ks").reshape(-1, 3, 3)
    assert not view[:, 3].any()
    found["camera_rotation"], found["camera_translation"] = view[:, :3, :3], view[:, :3, 3]
    found["camera_intrinsics"] = intrinsics[:, (0, 1, 0, 1), (0, 1, 2, 2)]
    assert np.count_nonzero(intrinsics) <= 4 * len(intrinsics)
    if "covariances" in found:
        whole = found.pop("covariances")
        np.testing.assert_array_equal(whole, np.swapaxes(whole, -1, -2))
        # An off-diagonal number occurs twice in the matrix.
        found["covariances"] = whole[..., ROWS, COLUMNS] * np.where(ROWS == COLUMNS, 1, 2)
    if "background" in found:
        background = found.pop("background")
        found["background"] = background.reshape(-1, background.shape[-1]) if background.ndim > 1 else background
    transforms = [name for name in found if name.startswith("transform_")]
    if transforms:
        found["transforms"] = np.stack([found.pop(name) for name in transforms])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_images_and_gradients_are_the_reference_s(name: str, client: Client) -> None:
    case = CASES[name]
    scene = ReferenceScene(case)
    upstream = scene.forward().masked(upstream_of(case, IMAGES))
    expected = scene.reference(upstream)
    operated = operate(client, case, upstream)
    stable = expected.stacked("stable")
    for output in IMAGES:
        image = expected.stacked(output)
        found = getattr(operated.result, output).detach().numpy().reshape(image.shape)
        assert_image(found[stable], image[stable], 1e-5 * max(1.0, float(np.abs(image).max())))
    for gradient, values in operated.gradients.items():
        assert_relative(f"{name} {gradient}", values, expected.gradients[gradient].reshape(values.shape))
    missing = (
        set(expected.gradients) - set(operated.gradients) - {"background", "means2d", "means2d_abs", "camera_pose"}
    )
    assert not missing


@pytest.mark.parametrize("name", ["three_cameras", "batch", "slices"])
def test_a_loss_on_the_projected_centres_adds_to_that_on_the_images(name: str, client: Client) -> None:
    case = CASES[name]
    scene = ReferenceScene(case)
    upstream = scene.forward().masked(upstream_of(case, ("color",)))
    generator = np.random.default_rng(0)
    on_centres = generator.normal(size=(len(case.cameras), case.count, 2)).astype(np.float32)
    visible = operate(client, case, {"color": upstream["color"]}, ("radii",)).result.radii.numpy() > 0
    on_centres *= visible.reshape(on_centres.shape)
    expected = scene.reference(upstream, on_centres)
    operated = operate(client, case, {**upstream, "means2d": on_centres})
    for gradient, values in operated.gradients.items():
        assert_relative(f"{name} {gradient}", values, expected.gradients[gradient].reshape(values.shape))
