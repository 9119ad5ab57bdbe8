"""gsplat's functions for scenes without Gaussians, from the start or after density control has pruned them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lumigrad.client.compat.gsplat import DefaultStrategy, fully_fused_projection, rasterization, rasterization_2dgs
from support.gaussians.splats import HEIGHT, WIDTH, splats

PICTURE = {"width": WIDTH, "height": HEIGHT}


def scene(batch: tuple[int, ...] = (), count: int = 0, cameras: int = 2) -> dict[str, torch.Tensor]:
    return {**splats(*batch, count=count, cameras=cameras), "backgrounds": torch.full((*batch, cameras, 3), 0.25)}


# Sizes, after [.., C, N], of the values that `meta` has for each Gaussian.
PER_GAUSSIAN = {"means2d": (2,), "radii": (2,), "depths": (), "opacities": (), "tiles_per_gauss": ()}

OPTIONS: list[dict[str, Any]] = [
    {"packed": False},
    {"packed": True},
    {"packed": True, "sparse_grad": True},
    {"packed": False, "absgrad": True, "render_mode": "RGB+ED"},
    {"packed": False, "with_ut": True},
    {"packed": False, "with_eval3d": True},
    {"packed": False, "with_ut": True, "with_eval3d": True},
    {"packed": True, "sh_degree": 1},
    {"packed": True, "rasterize_mode": "antialiased"},
]


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_picture_is_the_background_and_meta_has_no_rows(options: dict[str, Any], batch: tuple[int, ...]):
    given = scene(batch)
    if "sh_degree" in options:
        given["colors"] = torch.zeros(*batch, 0, 4, 3, requires_grad=True)
    image, alpha, meta = rasterization(**given, **PICTURE, **options)
    assert image.shape[:-1] == (*batch, 2, HEIGHT, WIDTH) and not alpha.any()
    assert bool((image[..., :3] == 0.25).all())
    rows = (0,) if options["packed"] else (*batch, 2, 0)
    found = dict(meta.items())
    for name, sizes in {**PER_GAUSSIAN, "conics": (3,)}.items():
        assert found[name].shape == (*rows, *sizes), name
    assert found["flatten_ids"].shape == (0,) and not found["isect_offsets"].any()
    if options["packed"]:
        assert all(found[name].shape == (0,) for name in ("batch_ids", "camera_ids", "gaussian_ids"))
    found["means2d"].requires_grad and found["means2d"].retain_grad()
    image.sum().backward()
    for name in ("means", "scales", "opacities", "colors"):
        assert given[name].grad is None or given[name].grad.shape == given[name].shape, name


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"packed": True}, {"packed": True, "sparse_grad": True}, {"absgrad": True}], ids=str
)
def test_pictures_of_surfels_too(options: dict[str, Any], batch: tuple[int, ...]):
    given = scene(batch)
    image, alpha, *_, meta = rasterization_2dgs(**given, **PICTURE, **options, render_mode="RGB+ED", distloss=True)
    assert bool((image[..., :3] == 0.25).all()) and not alpha.any()
    found = dict(meta.items())
    rows = (0,) if options.get("packed") else (*batch, 2, 0)
    for name, sizes in {**PER_GAUSSIAN, "ray_transforms": (3, 3), "normals": (3,)}.items():
        assert found[name].shape == (*rows, *sizes), name
    image.sum().backward()
    assert found["gradient_2dgs"].grad.shape == (*rows, 2)


# Sparse gradients need a single scene.
PROJECTED: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    *(({}, batch) for batch in ((), (3,), (2, 3))),
    *(({"packed": True}, batch) for batch in ((), (3,), (2, 3))),
    ({"packed": True, "sparse_grad": True}, ()),
]


@pytest.mark.parametrize(("options", "batch"), PROJECTED, ids=str)
@pytest.mark.parametrize("has_covars", [False, True])
def test_projections_have_no_rows(options: dict[str, Any], batch: tuple[int, ...], has_covars: bool):
    given = scene(batch)
    bodies = (torch.zeros(*batch, 0, 6), None, None) if has_covars else (None, given["quats"], given["scales"])
    found = fully_fused_projection(
        given["means"], *bodies, given["viewmats"], given["Ks"], WIDTH, HEIGHT, opacities=given["opacities"], **options
    )
    rows = (0,) if "packed" in options else (*batch, 2, 0)
    radii, means2d, depths, conics, _ = found[-5:]
    assert [each.shape for each in (radii, means2d, depths, conics)] == [(*rows, 2), (*rows, 2), rows, (*rows, 3)]
    if "packed" in options:
        assert found[3].shape == (torch.Size(batch).numel() * 2 + 1,)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [0, 20])
def test_density_control_goes_on_when_all_are_pruned(packed: bool, count: int):
    given = scene(count=count, cameras=1)
    names = ("means", "quats", "scales", "opacities", "colors")
    start = {name: given[name].detach().clone() for name in names} | {"opacities": torch.full((count,), -9.0)}
    params = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in start.items()})
    optimizers = {name: torch.optim.Adam([params[name]], lr=1e-3) for name in params}
    strategy = DefaultStrategy(refine_start_iter=0, refine_every=2, verbose=False)
    strategy.check_sanity(params, optimizers)
    state = strategy.initialize_state(scene_scale=1.0)
    for step in range(6):
        image, _, meta = rasterization(
            params["means"], params["quats"], params["scales"].exp(), params["opacities"].sigmoid(), params["colors"],
            given["viewmats"], given["Ks"], **PICTURE, packed=packed,
        )  # fmt: skip
        strategy.step_pre_backward(params, optimizers, state, step, meta)
        (image - 0.5).square().mean().backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        strategy.step_post_backward(params, optimizers, state, step, meta, packed)
    assert len(params["means"]) == 0 and not image.any()
