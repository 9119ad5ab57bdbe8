"""The drop-ins for Gaussians through a real worker: oracle files, and a training loop in which one line changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.client.compat.diff_gaussian_rasterization import GaussianRasterizationSettings, GaussianRasterizer
from support.closeness import assert_image, assert_relative
from support.gaussians.drop_ins import ABSENT, Archive, files, run_gsplat, run_inria
from support.workers.worker import WorkerProcess

GSPLAT, INRIA = files("g*"), files("i*")


def compare(name: str, found: np.ndarray, expected: np.ndarray, stable: np.ndarray, tolerance: float) -> None:
    """Compares the values that are not near a branch."""
    mask = np.broadcast_to(stable, expected.shape)
    assert_image(np.where(mask, found, 0), np.where(mask, expected, 0), tolerance)
    assert np.isfinite(found).all(), name


@pytest.mark.skipif(not GSPLAT, reason=ABSENT)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "dense"])
@pytest.mark.parametrize("path", GSPLAT, ids=lambda path: path.stem)
def test_gsplat_is_reproduced(path: Path, packed: bool, running: WorkerProcess) -> None:
    archive = Archive.load(path)
    arrays = archive.arrays
    result = run_gsplat(archive, running.target, packed=packed)
    np.testing.assert_array_equal(result.radii, arrays["radii"])
    visible = (arrays["radii"] > 0).all(-1, keepdims=True)
    assert_image(result.images["means2d"] * visible, arrays["means2d"] * visible, 1e-3)
    depth = float(np.abs(arrays["depths"]).max()) if archive.options["mode"] != "RGB" else 1.0
    compare("image", result.images["image"], arrays["out_image"], arrays["stable"][..., None], 1e-5 * max(1.0, depth))
    compare("alpha", result.images["alpha"], arrays["out_alpha"], arrays["stable"][..., None], 1e-5)
    for name, gradient in result.gradients.items():
        expected = arrays.get({"absgrad": "absgrad_means2d_px"}.get(name, f"grad_{name}"))
        if expected is not None:
            # Turning a round Gaussian changes nothing: its gradient is rounding.
            noise = 1e-5 if (path.stem, name) == ("g01_single", "quats") else 0.0
            assert_relative(f"{path.stem} {name}", gradient, expected, noise=noise)


@pytest.mark.skipif(not INRIA, reason=ABSENT)
@pytest.mark.parametrize("semantics", ["inria_depth", "inria_exact"])
@pytest.mark.parametrize("path", INRIA, ids=lambda path: path.stem)
def test_inria_is_reproduced(path: Path, semantics: str, running: WorkerProcess) -> None:
    archive = Archive.load(path)
    arrays, kind = archive.arrays, "gradcompat" if semantics == "inria_depth" else "grad"
    result = run_inria(archive, running.target, semantics)
    np.testing.assert_array_equal(result.radii, arrays["radii"])
    for name, image in result.images.items():
        depth = float(np.abs(arrays["view_depth"]).max()) if name == "depth" else 1.0
        compare(name, image, arrays[f"out_{name}"], arrays["stable"], 1e-5 * max(1.0, depth))
    compared = 0
    for name, gradient in result.gradients.items():
        expected = arrays.get(f"{kind}_{name}")
        if expected is not None:
            columns = expected.shape[-1] if name == "means2D" else None
            assert_relative(f"{path.stem} {name}", gradient[..., :columns], expected)
            compared += 1
    # The version with depth has no antialiasing, so there is nothing to compare its gradients with.
    assert compared or (semantics == "inria_depth" and archive.options["antialiasing"])


WIDTH, HEIGHT = 48, 36


def target_image() -> torch.Tensor:
    """A picture [H, W, 3] of two discs."""
    y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
    picture = torch.zeros(HEIGHT, WIDTH, 3)
    picture[(x - 17) ** 2 + (y - 17) ** 2 < 81] = torch.tensor([0.9, 0.2, 0.1])
    picture[(x - 31) ** 2 + (y - 21) ** 2 < 49] = torch.tensor([0.1, 0.3, 0.9])
    return picture


def parameters(count: int) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    return {
        "means": torch.nn.Parameter(torch.cat([3 * uniform(count, 2) - 1.5, 3.5 + uniform(count, 1)], dim=-1)),
        "scales": torch.nn.Parameter(torch.full((count, 3), -1.8)),
        "quats": torch.nn.Parameter(uniform(count, 4) - 0.5),
        "opacities": torch.nn.Parameter(torch.full((count,), -0.5)),
        "sh0": torch.nn.Parameter(uniform(count, 1, 3) - 0.5),
        "shN": torch.nn.Parameter(torch.zeros(count, 3, 3)),
    }


def test_a_training_loop_of_inria_runs_as_it_is(running: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", running.target)
    picture, model = target_image().permute(2, 0, 1), parameters(80)
    tangents = (WIDTH / 80, HEIGHT / 80)
    world_view = torch.eye(4).T
    projection = torch.zeros(4, 4)
    projection[0, 0], projection[1, 1], projection[3, 2] = 1 / tangents[0], 1 / tangents[1], 1.0
    projection[2, 2], projection[2, 3] = 100 / 99.99, -1 / 99.99
    full_projection = world_view @ projection.T
    optimizer = torch.optim.Adam(list(model.values()), lr=0.02)
    slopes, sightings, extents, losses = torch.zeros(80), torch.zeros(80), torch.zeros(80), []
    for _ in range(120):
        # Not a leaf, as most trainers make it.
        on_film = 1.0 * torch.zeros(80, 3, requires_grad=True)
        on_film.retain_grad()
        settings = GaussianRasterizationSettings(
            image_height=HEIGHT,
            image_width=WIDTH,
            tanfovx=tangents[0],
            tanfovy=tangents[1],
            bg=torch.zeros(3),
            scale_modifier=1.0,
            viewmatrix=world_view,
            projmatrix=full_projection,
            sh_degree=1,
            campos=torch.zeros(3),
            prefiltered=False,
            debug=False,
        )
        image, radii, depth = GaussianRasterizer(raster_settings=settings)(
            means3D=model["means"],
            means2D=on_film,
            opacities=torch.sigmoid(model["opacities"])[:, None],
            shs=torch.cat([model["sh0"], model["shN"]], dim=1),
            colors_precomp=None,
            scales=torch.exp(model["scales"]),
            rotations=torch.nn.functional.normalize(model["quats"]),
            cov3D_precomp=None,
        )
        loss = (image - picture).abs().mean() + 0.001 * depth[1].mean()
        loss.backward()
        drawn = radii > 0
        slopes[drawn] += on_film.grad[drawn, :2].norm(dim=-1)
        sightings[drawn] += 1
        extents[drawn] = torch.maximum(extents[drawn], radii[drawn].float())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.3 * losses[0]
    assert (slopes > 0).sum() > 60
    assert sightings.max() == 120 and extents.max() > 1
