"""Calls that are spread over several workers return the results of one worker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Cuboid, Gaussians, Mesh, Obstacle, World
from lumigrad.client.torch import mesh_distance, render_gaussians
from support.files.documents import ROOT, run_code_of
from support.workers.fleet import cloud, fleet, targets
from support.workers.mixed_load import FACES, VERTICES
from support.workers.worker import WorkerProcess

# Sums of gradients differ in the order of their terms.
TOLERANCE = {"rtol": 2e-4, "atol": 1e-5}
ORBIT = [Camera.orbit((0, 0, 0), 5.0, 50.0 * turn, 20.0, width=32, height=24) for turn in range(7)]


@pytest.fixture(scope="module")
def workers() -> Iterator[list[WorkerProcess]]:
    with fleet(2) as processes:
        yield processes


@pytest.fixture(scope="module")
def client(workers: list[WorkerProcess]) -> Iterator[Client]:
    with Client(targets(workers)) as several:
        yield several


@pytest.fixture(scope="module")
def lone(workers: list[WorkerProcess]) -> Iterator[Client]:
    with Client(workers[0].target) as one:
        yield one


def gaussians(count: int = 60) -> Gaussians:
    random = np.random.default_rng(3)
    means, colors = random.normal(size=(count, 3)), random.random((count, 3))
    quats = random.normal(size=(count, 4))
    return Gaussians(means, quats, np.full((count, 3), 0.2), np.full(count, 0.6), colors=colors)


def close(found, expected) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        scale = float(np.abs(array).max(initial=0))
        tolerance = TOLERANCE["rtol"] * scale + TOLERANCE["atol"]
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("stored", [False, True])
def test_views_are_the_same_and_gradients_sums(client: Client, lone: Client, stored: bool) -> None:
    scene = client.put(gaussians()) if stored else gaussians()
    backgrounds = np.random.default_rng(4).random((len(ORBIT), 3))
    options = {"outputs": ("color", "alpha", "depth", "radii"), "background": backgrounds, "retain": True}
    spread, whole = client.render(scene, ORBIT, spread=True, **options), lone.render(gaussians(), ORBIT, **options)
    assert len({info.target for info in client.infos() if info.contexts}) == 2
    for name, array in whole.items():
        np.testing.assert_array_equal(spread[name], array, err_msg=name)
    upstream = np.random.default_rng(5).normal(size=whole.color.shape)
    for wanted in (("means", "colors", "opacities", "cameras", "background", "means2d"), ()):
        found = spread.backward(upstream, alpha=whole.alpha, wanted=wanted)
        close(found, whole.backward(upstream, alpha=whole.alpha, wanted=wanted))
    # After the release, every worker renders its part again.
    spread.release()
    close(spread.backward(upstream), whole.backward(upstream))


@pytest.mark.parametrize("count", [2, 3])
def test_a_share_of_one_camera_has_a_background_of_its_own(client: Client, lone: Client, count: int) -> None:
    backgrounds = np.random.default_rng(7).random((count, 3))
    whole = lone.render(gaussians(), ORBIT[:count], background=backgrounds)
    spread = client.render(gaussians(), ORBIT[:count], background=backgrounds, spread=True)
    np.testing.assert_array_equal(spread.color, whole.color)
    found = spread.backward(np.ones_like(whole.color), wanted=("background", "cameras"))
    close(found, whole.backward(np.ones_like(whole.color), wanted=("background", "cameras")))
    assert found.background.shape == (count, 3)


@pytest.mark.parametrize("min_depth", [0.0, 4.0])
def test_spheres_begin_behind_the_film_of_the_camera_with_the_largest_focal_length(
    client: Client, lone: Client, min_depth: float
) -> None:
    cameras = [Camera.pulsar([0, 0, -5, 0, 0, 0, focal, 2], 24, 24) for focal in (1.0, 3.9)]
    options = {"outputs": ("color", "hits"), "min_depth": min_depth, "max_depth": 9.0}
    spread, whole = client.render(cloud(1), cameras, spread=True, **options), lone.render(cloud(1), cameras, **options)
    for name, array in whole.items():
        np.testing.assert_array_equal(spread[name], array, err_msg=name)
    upstream = np.random.default_rng(11).normal(size=whole.color.shape)
    wanted = ("positions", "cameras")
    close(spread.backward(upstream, wanted=wanted), whole.backward(upstream, wanted=wanted))


def test_sparse_rows_are_merged(client: Client, lone: Client) -> None:
    looks = [Camera.look_at((x, 0, -4), (x, 0, 0), (0, -1, 0), fov_degrees=12, width=32, height=24) for x in (-2, 2)]
    spread, whole = client.render(gaussians(), looks, spread=True), lone.render(gaussians(), looks)
    upstream = np.ones_like(whole.color)
    found = spread.backward(upstream, sparse=True)
    expected = whole.backward(upstream, sparse=True)
    np.testing.assert_array_equal(found["index"], expected["index"])
    assert 0 < len(found["index"]) < 60
    close(found, expected)


def test_files_and_spheres(client: Client, lone: Client) -> None:
    scene = client.put(cloud(1))
    spread = client.render(scene, ORBIT, image_format="png", spread=True)
    assert spread.encoded["color"] == lone.render(cloud(1), ORBIT, image_format="png").encoded["color"]
    assert len(spread.encoded["color"]) == len(ORBIT)


def test_what_cannot_be_shared_is_not(client: Client, lone: Client) -> None:
    one = gaussians()
    colors = np.random.default_rng(6).random((len(ORBIT), 60, 3))
    for scene in (
        Gaussians(one.means, one.quats, one.scales, one.opacities, colors=colors),
        client.get(client.put(one).scene_id),
    ):
        frame = client.render(scene, ORBIT, spread=True)
        assert type(frame).__name__ == "Frame"
    single = client.render(one, ORBIT[0], spread=True)
    np.testing.assert_array_equal(single.color, lone.render(one, ORBIT[0]).color)


@pytest.mark.parametrize("shape", [(5, 4, 6), (1, 4, 6)])
def test_distances_are_the_same_and_gradients_sums(client: Client, lone: Client, shape: tuple[int, ...]) -> None:
    world = World([Obstacle(Mesh(VERTICES, FACES), name="wedge"), Obstacle(Cuboid((1, 1, 1)), (2, 0, 0, 1, 0, 0, 0))])
    spheres = np.random.default_rng(8).normal(size=(*shape, 4)).astype(np.float32)
    spheres[..., 3] = 0.2
    options = {"outputs": ("distance", "cost", "normal"), "activation_distance": 0.3, "sweep": True, "retain": True}
    stored = client.put(world)
    whole = lone.query(world, spheres, positive="inside", **options)
    for asked in (world, stored):
        spread = client.query(asked, spheres, positive="inside", spread=True, **options)
        for name, array in whole.items():
            np.testing.assert_array_equal(spread[name], array, err_msg=name)
        upstream = np.random.default_rng(9).normal(size=shape)
        wanted = ("spheres", "poses", "weight")
        found = spread.backward(upstream, distance=upstream, wanted=wanted)
        close(found, whole.backward(upstream, distance=upstream, wanted=wanted))
        spread.release()


def test_the_code_about_spreading_runs(workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", ",".join(targets(workers)))
    names = run_code_of(ROOT / "docs" / "scale_out.md")
    assert names["frame"].color.shape == (12, 72, 96, 3) and names["distances"].shape == (64, 30, 8)
    assert names["gradients"].means.shape == (500, 3)
    names["client"].close()


def test_operators_spread_too(client: Client, lone: Client) -> None:
    cameras, count = 4, 40
    generator = torch.Generator().manual_seed(1)

    def leaves() -> dict[str, torch.Tensor]:
        generator.manual_seed(1)
        views = torch.eye(4).repeat(cameras, 1, 1)
        views[:, 2, 3] = 6.0 + torch.arange(cameras)
        values = {
            "means": torch.randn(count, 3, generator=generator),
            "quats": torch.randn(count, 4, generator=generator),
            "scales": torch.full((count, 3), 0.2),
            "opacities": torch.full((count,), 0.5),
            "colors": torch.rand(count, 3, generator=generator),
            "viewmats": views,
        }
        return {name: value.requires_grad_() for name, value in values.items()}

    matrices = torch.tensor([[30.0, 0, 16], [0, 30, 12], [0, 0, 1]]).repeat(cameras, 1, 1)
    found, expected = leaves(), leaves()
    for inputs, by, spread in ((found, client, True), (expected, lone, False)):
        image = render_gaussians(**inputs, Ks=matrices, width=32, height=24, client=by, spread=spread)
        (image.color.square().sum() + image.expected_depth.sum()).backward()
    close({n: t.grad.numpy() for n, t in found.items()}, {n: t.grad.numpy() for n, t in expected.items()})
    spheres = torch.rand(4, 3, 5, 4, generator=generator)
    costs = []
    for by, spread in ((client, True), (lone, False)):
        leaf = spheres.clone().requires_grad_()
        mesh_distance(
            leaf, Mesh(VERTICES, FACES), activation_distance=0.5, client=by, spread=spread
        ).cost.sum().backward()
        costs.append(leaf.grad.numpy())
    close({"spheres": costs[0]}, {"spheres": costs[1]})


def test_a_mesh_that_is_updated_is_seen_by_worlds_on_every_worker(client: Client, lone: Client) -> None:
    mesh = client.put(Mesh(VERTICES, FACES))
    world = client.put(World([Obstacle(mesh, name="wedge")]))
    spheres = np.random.default_rng(10).normal(size=(6, 1, 8, 4)).astype(np.float32)
    client.query(world, spheres, spread=True)
    for factor in (1.5, 2.0):
        mesh = client.update(mesh, vertices=VERTICES * factor)
        expected = lone.query(World([Obstacle(Mesh(VERTICES * factor, FACES))]), spheres).distance
        np.testing.assert_allclose(client.query(world, spheres, spread=True).distance, expected, atol=1e-6)
