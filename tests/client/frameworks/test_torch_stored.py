"""Stored scenes in the operators of PyTorch: whole, or with some tensors of the caller's, and the bytes that travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument, SceneHandle, Spheres
from lumigrad.client.torch import render_gaussians, render_spheres
from support.fault_proxy import FaultProxy
from support.workers.worker import WorkerProcess

SIZE = {"width": 16, "height": 12}
SPHERES = {**SIZE, "gamma": 0.1, "max_depth": 9.0}


def tensors(count: int, *batch: int, degree: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    uniform = lambda *shape: torch.rand(*batch, count, *shape, generator=generator)  # noqa: E731
    return {
        "means": torch.cat([2 * uniform(2) - 1, 3 + uniform(1)], dim=-1),
        "quats": uniform(4) - 0.5,
        "scales": 0.05 + 0.2 * uniform(3),
        "opacities": 0.2 + 0.7 * uniform(),
        "colors": uniform((degree + 1) ** 2, 3) - 0.3,
    }


def stored(client: Client, values: dict[str, torch.Tensor]) -> SceneHandle:
    arrays = {name: tensor.detach().numpy() for name, tensor in values.items()}
    return client.put(Gaussians(**{**arrays, "colors": None}, sh=arrays["colors"]))


def cameras(*batch: int) -> dict[str, torch.Tensor]:
    views = torch.eye(4).repeat(*batch, 2, 1, 1)
    views[..., 1, 0, 3] = 0.3
    lenses = torch.tensor([[12.0, 0, 8], [0, 12, 6], [0, 0, 1]]).repeat(*batch, 2, 1, 1)
    return {"viewmats": views.requires_grad_(), "Ks": lenses.requires_grad_()}


def spheres() -> dict[str, torch.Tensor]:
    made = tensors(30)
    return {"positions": made["means"], "colors": made["colors"][:, 0] + 0.3, "radii": made["scales"][:, 0]}


def cam_params() -> torch.Tensor:
    return torch.tensor([0.0, 0, 0, 0, 0, 0, 1.0, 1.5], requires_grad=True)


def gradients(result, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weights = torch.rand(result.color.shape, generator=torch.Generator().manual_seed(5))
    return torch.autograd.grad((result.color * weights).sum() + result.depth.sum(), inputs)


@pytest.mark.parametrize("batch", [(), (1,), (2,)], ids=str)
def test_gaussians_that_are_stored_render_as_those_that_are_sent(client, batch):
    values, views = tensors(30, *batch), cameras(*batch)
    options = {**SIZE, "outputs": ("color", "depth", "means2d", "radii"), "client": client}
    sent = render_gaussians(**values, **views, **options, sh_degree=1)
    kept = render_gaussians(scene=stored(client, values), **views, **options)
    for name in options["outputs"]:
        assert torch.equal(getattr(kept, name), getattr(sent, name)), name
    for mine, theirs in zip(gradients(kept, *views.values()), gradients(sent, *views.values()), strict=True):
        assert torch.equal(mine, theirs)


def test_spheres_that_are_stored_render_as_those_that_are_sent(client):
    values, camera = spheres(), cam_params()
    sent = render_spheres(**values, cam_params=camera, **SPHERES, client=client)
    handle = client.put(Spheres(*values.values()))
    kept = render_spheres(scene=handle, cam_params=camera, **SPHERES, client=client)
    for mine, theirs in zip(kept, sent, strict=True):
        assert torch.equal(mine.view(torch.int32), theirs.view(torch.int32))
    assert torch.equal(*gradients(kept, camera), *gradients(sent, camera))


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("own", [("opacities",), ("means", "colors"), ("colors",)], ids="-".join)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_tensors_of_the_caller_stand_in_for_stored_ones(client, own, batch, sparse):
    values, views = tensors(30, *batch), cameras(*batch)
    handle = stored(client, values)
    before = render_gaussians(scene=handle, **views, **SIZE, client=client).color
    mine = {name: (0.9 * values[name]).requires_grad_() for name in own}
    options = {**SIZE, "sh_degree": 1, "sparse": sparse, "client": client}
    sent = render_gaussians(**{**values, **mine}, **views, **options)
    kept = render_gaussians(scene=handle, **mine, **views, **options)
    assert torch.equal(kept.color, sent.color) and not torch.equal(kept.color, before)
    inputs = (*mine.values(), *views.values())
    for found, expected in zip(gradients(kept, *inputs), gradients(sent, *inputs), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(render_gaussians(scene=handle, **views, **SIZE, client=client).color, before)


def test_alternatives_stand_in_for_each_other(client):
    values, views = tensors(30), cameras()
    handle, options = stored(client, values), {**SIZE, "client": client}
    root = torch.randn(30, 3, 3, generator=torch.Generator().manual_seed(1)) / 5
    covars = (root @ root.transpose(-1, -2)).requires_grad_()
    colors = torch.rand(30, 5).requires_grad_()
    rest = {name: values[name] for name in ("means", "opacities")}
    sent = render_gaussians(**rest, quats=None, scales=None, covariances=covars, colors=colors, **views, **options)
    kept = render_gaussians(scene=handle, covariances=covars, colors=colors, **views, **options)
    assert kept.color.shape == (2, 12, 16, 5) and torch.equal(kept.color, sent.color)
    for found, expected in zip(gradients(kept, covars, colors), gradients(sent, covars, colors), strict=True):
        assert torch.equal(found, expected)


def test_spheres_of_the_caller_stand_in_for_stored_ones(client):
    values, camera = spheres(), cam_params()
    handle = client.put(Spheres(*values.values()))
    own = {"radii": (0.8 * values["radii"]).requires_grad_(), "opacities": torch.full((30,), 0.5, requires_grad=True)}
    sent = render_spheres(**{**values, **own}, cam_params=camera, **SPHERES, client=client)
    kept = render_spheres(scene=handle, **own, cam_params=camera, **SPHERES, client=client)
    assert torch.equal(kept.color, sent.color)
    for mine, theirs in zip(gradients(kept, *own.values()), gradients(sent, *own.values()), strict=True):
        assert torch.equal(mine, theirs)


def test_a_lost_scene_is_stored_again_for_both_passes(client):
    views = cameras()
    handle = stored(client, tensors(30))
    own = torch.full((30,), 0.5, requires_grad=True)
    call = lambda: render_gaussians(scene=handle, opacities=own, **views, **SIZE, client=client)  # noqa: E731
    expected = gradients(call(), own)[0]
    client.delete(handle)
    result = call()
    client.delete(client.list()[-1])
    assert torch.equal(gradients(result, own)[0], expected)


def test_moving_a_camera_before_a_stored_scene_moves_kilobytes(worker_process: WorkerProcess):
    """The scene has 5 MB and travels once; 40 steps move a camera, a picture and its gradient."""
    values, views = tensors(22_000, degree=3), cameras()
    picture = 2 * SIZE["width"] * SIZE["height"] * 3 * 4
    with FaultProxy(worker_process.target) as proxy, Client(proxy.target, lane="stream") as client:
        handle = stored(client, values)
        assert proxy.up.passed > 22_000 * 236
        up, down = proxy.up.passed, proxy.down.passed
        optimizer = torch.optim.Adam(views.values(), lr=1e-3)
        for _ in range(40):
            optimizer.zero_grad()
            result = render_gaussians(scene=handle, **views, **SIZE, outputs="color", client=client)
            result.color.square().mean().backward()
            optimizer.step()
        assert proxy.up.passed - up < 40 * (picture + 2500)
        assert proxy.down.passed - down < 40 * (picture + 2500)


def test_only_the_tensors_of_the_caller_travel(client, payload_lengths):
    values, views = tensors(1000, degree=3), cameras()
    handle = stored(client, values)
    payload_lengths.clear()
    opacities = values["opacities"].requires_grad_()
    render_gaussians(scene=handle, opacities=opacities, **views, **SIZE, client=client)
    assert payload_lengths == [4 * 1000]


REFUSED = {
    "a handle for the means": (
        lambda handle: {**tensors(30), "means": handle},
        "means: expected a tensor, got a SceneHandle; pass the handle as scene=",
    ),
    "no cameras": (
        lambda handle: {"scene": handle, "viewmats": None},
        r"viewmats: expected a tensor of shape \[.*None",
    ),
    "cameras of a batch": (
        lambda handle: {"scene": handle, **cameras(2)},
        r"viewmats: expected shape \[C, 4, 4\] for the stored scene, got \[2, 2, 4, 4\]",
    ),
    "too many": (
        lambda handle: {"scene": handle, "opacities": torch.ones(31)},
        r"opacities: expected shape \[30\], got \[31\]",
    ),
    "out of range": (
        lambda handle: {"scene": handle, "opacities": torch.full((30,), 2.0)},
        r"opacities: expected values in \[0, 1\], got values from 2.0 to 2.0",
    ),
    "another count of means": (
        lambda handle: {"scene": handle, "means": torch.ones(29, 3)},
        r"opacities.shape: expected \[29\], got \[30\]",
    ),
    "no handle": (lambda handle: {"scene": handle.scene}, "scene: expected SceneHandle, got Gaussians; pass what"),
    "none at all": (lambda handle: {}, "means: expected a tensor of shape"),
}


@pytest.mark.parametrize(("given", "text"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_argument(client, given, text):
    handle = stored(client, tensors(30))
    with pytest.raises(InvalidArgument, match=text):
        render_gaussians(**{**cameras(), **given(handle)}, **SIZE, client=client)


def test_handles_of_another_kind_are_refused(client):
    handle = client.put(Spheres(np.zeros((1, 3)), np.ones((1, 3)), np.ones(1)))
    with pytest.raises(InvalidArgument, match="scene: expected a handle of gaussians, got one of kind 'spheres'"):
        render_gaussians(scene=handle, **cameras(), **SIZE, client=client)
    levels = SceneHandle("0" * 32 + "-levels", 1, "0" * 64, "levels", 30, 2000)
    with pytest.raises(InvalidArgument, match=r"scene: expected .* of levels; call Client.render.*Frame.backward"):
        render_gaussians(scene=levels, **cameras(), **SIZE, client=client)
    with pytest.raises(InvalidArgument, match="radii: expected a tensor, got None"):
        render_spheres(
            torch.zeros(1, 3), torch.ones(1, 3), None, Camera.look_at((0, 0, 3), (0, 0, 0)), gamma=1, max_depth=9
        )
