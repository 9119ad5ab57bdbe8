"""gsplat's projection and harmonics in plain torch, against a worker's results and finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from lumigrad.client.compat.gsplat import GsplatArgumentError, fully_fused_projection, spherical_harmonics
from lumigrad.client.torch import render_gaussians
from support.rotations import rotations
from support.workers.worker import WorkerProcess

WIDTH, HEIGHT = 40, 30
NAMES = ("means", "quats", "scales", "viewmats", "Ks", "opacities")


def scene(
    *batch: int, count: int = 60, cameras: int = 2, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Gaussians in front of and behind turned cameras, some far outside the picture."""
    generator = torch.Generator().manual_seed(5)
    uniform = lambda *shape: torch.rand(*batch, *shape, generator=generator, dtype=dtype)  # noqa: E731
    turns = torch.linalg.qr(uniform(cameras, 3, 3) - 0.5 + 3 * torch.eye(3, dtype=dtype)).Q
    turns = turns * torch.diagonal(turns, dim1=-2, dim2=-1).sign()[..., None, :]
    views = torch.eye(4, dtype=dtype).repeat(*batch, cameras, 1, 1)
    views[..., :3, :3], views[..., :3, 3] = turns, uniform(cameras, 3) - 0.5
    return {
        "means": torch.cat([8 * uniform(count, 2) - 4, 6 * uniform(count, 1) - 1], dim=-1),
        "quats": uniform(count, 4) - 0.5,
        "scales": 0.02 + 0.3 * uniform(count, 3),
        "opacities": uniform(count),
        "viewmats": views,
        "Ks": torch.tensor([[40.0, 0, 18], [0, 35, 15], [0, 0, 1]], dtype=dtype).repeat(*batch, cameras, 1, 1),
    }


def covariances(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Covariances [.., N, 3, 3]."""
    axes = rotations(tensors["quats"]) * tensors["scales"][..., None, :]
    return axes @ axes.mT


def projected(tensors: dict[str, torch.Tensor], **options: Any) -> tuple[torch.Tensor, ...]:
    given = {"covars": None, **{name: tensors[name] for name in NAMES}, **options}
    return fully_fused_projection(**given, width=WIDTH, height=HEIGHT)  # type: ignore[return-value]


@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("given", ["quats", "covars"])
def test_ellipses_are_those_of_a_worker(
    given: str, model: str, compensated: bool, worker_process: WorkerProcess
) -> None:
    tensors = scene(2)
    if model == "ortho":
        tensors["Ks"][..., :2, :2] *= 0.2
    shape = {name: tensors[name] for name in ("quats", "scales")}
    six = None
    if given == "covars":
        shape = {"quats": None, "scales": None, "covariances": covariances(tensors)}
        six = shape["covariances"][..., (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)]
    outputs = ("radii", "means2d", "depths", "conics", "projected_opacities")
    expected = render_gaussians(
        **{**{name: tensors[name] for name in ("means", "opacities", "viewmats", "Ks")}, **shape},
        colors=torch.rand(2, 60, 1), width=WIDTH, height=HEIGHT, antialiased=compensated,
        projection="orthographic" if model == "ortho" else model,
        outputs=outputs, client=worker_process.target,
    )  # fmt: skip
    options: dict[str, Any] = {"calc_compensations": compensated, "camera_model": model, "covars": six}
    radii, means2d, depths, conics, compensations = projected(tensors, **options)
    visible = (radii > 0).all(-1)
    assert 10 < visible.sum() < visible.numel() and not means2d[~visible].any() and not conics[~visible].any()
    torch.testing.assert_close(radii, expected.radii)
    torch.testing.assert_close(means2d, expected.means2d, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(depths, expected.depths)
    scale = expected.conics.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    torch.testing.assert_close(conics / scale, expected.conics / scale, rtol=0, atol=1e-4)
    if compensated:
        shown = torch.where(visible, compensations * tensors["opacities"][:, None], 0)
        torch.testing.assert_close(shown, expected.projected_opacities, rtol=1e-4, atol=1e-6)
    else:
        assert compensations is None


@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("given", ["quats", "covars"])
def test_gradients_are_those_of_finite_differences(given: str, model: str) -> None:
    tensors = scene(count=7, dtype=torch.float64)
    # A Gaussian on a fisheye's axis, where its formulas have a limit, and another close to it.
    tensors["viewmats"][0] = torch.eye(4)
    tensors["means"][:2] = torch.tensor([[0.0, 0.0, 3.0], [0.02, -0.01, 2.0]])
    # A Gaussian so far outside the picture that a pinhole's Jacobian is clamped.
    tensors["means"][2], tensors["scales"][2] = torch.tensor([3.2, 0.0, 2.0]), torch.tensor([0.9, 1.0, 1.1])
    tensors["opacities"][:3] = 0.9
    if model == "ortho":
        tensors["Ks"][..., :2, :2] *= 0.2
    moved = ["means", "viewmats", "Ks"]
    if given == "covars":
        tensors["covars"] = covariances(tensors)[..., (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)]
        moved.append("covars")
    else:
        moved += ["quats", "scales"]

    def results(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        changed = {**tensors, **dict(zip(moved, values, strict=True))}
        options = {"covars": changed.get("covars"), "calc_compensations": True, "camera_model": model}
        return projected(changed, **options)[1:]

    found = results(*(tensors[name] for name in moved))
    assert (found[1] > 0).sum() > 5 and (found[1][0, :3] > 0).all()
    assert gradcheck(
        results, [tensors[name].clone().requires_grad_() for name in moved], eps=1e-6, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_packed_results_are_the_visible_rows(batch: tuple[int, ...]) -> None:
    tensors = scene(*batch)
    radii, *dense, _ = projected(tensors)
    visible = (radii > 0).all(-1)
    *ids, indptr, packed_radii, means2d, depths, conics, compensations = projected(tensors, packed=True)
    assert compensations is None and all(index.dtype == torch.int64 for index in ids)
    assert torch.equal(torch.stack(ids, -1), visible.reshape(-1, 2, 60).nonzero())
    counts = visible.reshape(-1, 60).sum(-1)
    assert indptr.dtype == torch.int32 and torch.equal(indptr.diff().long(), counts) and indptr[0] == 0
    assert torch.equal(packed_radii, radii[visible])
    for one, other in zip((means2d, depths, conics), dense, strict=True):
        torch.testing.assert_close(one, other[visible])


def test_gradients_of_packed_results_are_sparse_on_request() -> None:
    gradients = []
    for sparse in (False, True):
        tensors = {name: value.requires_grad_() for name, value in scene().items()}
        *_, means2d, depths, conics, _ = projected(tensors, packed=True, sparse_grad=sparse)
        (means2d.sum() + depths.square().sum() + conics.sum()).backward()
        gradients.append({name: tensors[name].grad for name in ("means", "quats", "scales", "viewmats")})
    for name, gradient in gradients[0].items():
        other = gradients[1][name]
        assert gradient is not None and other is not None and other.is_sparse == (name != "viewmats")
        torch.testing.assert_close(other.to_dense(), gradient, rtol=1e-4, atol=1e-5)
    with pytest.raises(GsplatArgumentError, match=r"^sparse_grad: expected False without packed=True"):
        projected(scene(), sparse_grad=True)
    with pytest.raises(GsplatArgumentError, match=r"^sparse_grad: expected False with leading sizes \[2\]"):
        projected(scene(2), packed=True, sparse_grad=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"means": torch.zeros(3)}, r"means: expected shape \[.., N, 3\]"),
        ({"quats": None}, "quats: expected a tensor, got None; pass it, or covars"),
        ({"covars": torch.zeros(60, 3, 3)}, r"covars: expected shape \[60, 6\]"),
        ({"camera_model": "lidar"}, "camera_model: expected one of pinhole, ortho, fisheye, got 'lidar'"),
    ],
)
def test_wrong_arguments_of_the_projection_are_explained(change: dict[str, Any], text: str) -> None:
    with pytest.raises(GsplatArgumentError, match=f"^{text}"):
        projected(scene(), **change)


@pytest.mark.parametrize("degree", range(5))
def test_harmonics_have_the_colors_of_a_worker(degree: int, worker_process: WorkerProcess) -> None:
    tensors = scene()
    coefficients = torch.rand(60, 25, 3, generator=torch.Generator().manual_seed(1)) - 0.5
    values = spherical_harmonics(degree, tensors["means"], tensors["viewmats"], coefficients)
    assert values.shape == (2, 60, 3)
    options: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "client": worker_process.target}
    expected = render_gaussians(**tensors, colors=coefficients, sh_degree=degree, **options)
    found = render_gaussians(**tensors, colors=(values + 0.5).clamp_min(0), **options)
    assert expected.color.max() > 0.1
    torch.testing.assert_close(found.color, expected.color, rtol=1e-5, atol=1e-5)


def test_harmonics_have_gradients_to_coefficients_means_and_both_poses() -> None:
    tensors = scene(2, count=5, dtype=torch.float64)
    ends = tensors["viewmats"] + torch.tensor([0.0, 0.0, 0.0, 0.3], dtype=torch.float64)
    coefficients = torch.rand(5, 16, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    given = [value.clone().requires_grad_() for value in (tensors["means"], tensors["viewmats"], coefficients, ends)]

    def values(means: torch.Tensor, views: torch.Tensor, coeffs: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return spherical_harmonics(3, means, views, coeffs, viewmats_rs=ends)

    assert gradcheck(values, given)
    # Colours depend on the camera's position alone; without an end pose, on that of the start.
    centre = -(tensors["viewmats"][..., :3, :3].mT @ tensors["viewmats"][..., :3, 3:])[..., 0]
    views = torch.eye(4, dtype=torch.float64).repeat(2, 2, 1, 1)
    views[..., :3, 3] = -centre
    given = tensors["means"], tensors["viewmats"], coefficients
    torch.testing.assert_close(spherical_harmonics(3, given[0], views, coefficients), spherical_harmonics(3, *given))


def test_packed_and_masked_harmonics_are_rows_of_all() -> None:
    tensors = scene(2)
    coefficients = torch.rand(60, 9, 3)
    every = spherical_harmonics(2, tensors["means"], tensors["viewmats"], coefficients)
    mask = torch.rand(2, 2, 60) < 0.5
    masked = spherical_harmonics(2, tensors["means"], tensors["viewmats"], coefficients, masks=mask)
    assert torch.equal(masked, torch.where(mask[..., None], every, 0))
    scenes, cameras, gaussians = mask.nonzero().unbind(-1)
    packed = spherical_harmonics(
        2, tensors["means"], tensors["viewmats"], coefficients[gaussians],
        batch_ids=scenes, camera_ids=cameras, gaussian_ids=gaussians,
    )  # fmt: skip
    torch.testing.assert_close(packed, every[mask])
    each = spherical_harmonics(2, tensors["means"], tensors["viewmats"], coefficients.expand(2, -1, -1, -1))
    assert torch.equal(each, every)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: spherical_harmonics(5, t["means"], t["viewmats"], torch.zeros(60, 36, 1)), "degrees_to_use: "),
        (
            lambda t: spherical_harmonics(2, t["means"], t["viewmats"], torch.zeros(60, 4, 1)),
            r"coeffs: expected at least 9 coefficients for the degree 2, got shape \[60, 4, 1\]",
        ),
        (
            lambda t: spherical_harmonics(
                0, t["means"], t["viewmats"], torch.zeros(1, 1, 1), gaussian_ids=torch.tensor([3])
            ),
            "camera_ids: expected indices beside gaussian_ids, got None",
        ),
    ],
)
def test_wrong_arguments_of_harmonics_are_explained(
    call: Callable[[dict[str, torch.Tensor]], torch.Tensor], text: str
) -> None:
    with pytest.raises(GsplatArgumentError, match=f"^{text}"):
        call(scene())
