"""`mesh_distance` in PyTorch: shapes, gradients against finite differences over the wire, and what travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.client import Cuboid, Distances, InvalidArgument, Mesh, Obstacle, VoxelGrid, World
from lumigrad.client.torch import MeshDistances, mesh_distance
from support.meshes import shapes as mesh_shapes
from support.rotations import rotations

TORUS = mesh_shapes.torus(24, 12)
MESH = Mesh(TORUS.vertices, TORUS.faces, "torus")
POSES = torch.tensor([[0.1, -0.05, 0.02, 0.9, 0.1, -0.2, 0.3], [0.6, 0.5, 0.1, 1.0, 0.2, 0.0, 0.0]])
OPTIONS = {"activation_distance": 0.2}
SWEPT = {"sweep": True, "samples": 64, "speed_metric": True, "time_step_s": 0.5, **OPTIONS}


def obstacles() -> list[Obstacle]:
    poses = POSES.double().tolist()
    return [Obstacle(MESH, poses[0]), Obstacle(Cuboid((0.3, 0.4, 0.5)), poses[1])]


WORLD = World(obstacles())


def spheres(**kinds) -> torch.Tensor:
    """(2, 4, 3, 4): two paths past the obstacles."""
    generator = torch.Generator().manual_seed(5)
    start = torch.rand(2, 1, 3, 3, generator=generator) * 1.2 - 0.6
    steps = 0.12 * torch.randn(2, 3, 3, 3, generator=generator)
    centres = torch.cat([start, start + steps.cumsum(dim=1)], dim=1)
    radii = 0.05 + 0.05 * torch.rand(2, 4, 3, 1, generator=generator)
    return torch.cat([centres, radii], dim=-1).to(**kinds)


def inputs() -> dict[str, torch.Tensor]:
    return {"spheres": spheres(), "poses": POSES.clone(), "weight": torch.tensor(2.0)}


LAST = torch.zeros(4, 4).index_put((torch.tensor(3), torch.tensor(0)), torch.tensor(0.5))


def ask(client, tensors, **options) -> MeshDistances:
    return mesh_distance(**{"world": WORLD, **tensors, "client": client, **options})


def loss_of(result: MeshDistances) -> torch.Tensor:
    """A weighted sum in float64, so that finite differences see more than rounding."""
    total = torch.zeros((), dtype=torch.float64)
    for value in result:
        if value is not None:
            weights = torch.sin(torch.arange(value.numel(), dtype=torch.float64) + 1).reshape(value.shape)
            total = total + (value.double() * weights).sum()
    return total


def test_results_have_their_shapes(client):
    result = ask(client, inputs(), **OPTIONS)
    assert isinstance(result, MeshDistances)
    assert result.cost.shape == result.distance.shape == (2, 4, 3)
    assert not result.cost.requires_grad and not result.distance.requires_grad
    for count in (1, 2):
        rows = spheres()[(0,) * (3 - count)]
        part = ask(client, {"spheres": rows}, **OPTIONS)
        expected = ask(client, {"spheres": rows.reshape(*(1,) * (3 - count), *rows.shape)}, **OPTIONS)
        assert part.cost.shape == part.distance.shape == rows.shape[:-1]
        assert torch.equal(part.distance, expected.distance.reshape(part.distance.shape))
    only = ask(client, inputs(), outputs="distance")
    assert only.cost is None and torch.equal(only.distance, result.distance)


# Distances do not depend on the weight.
@pytest.mark.parametrize(
    ("name", "output"),
    [("spheres", "cost"), ("poses", "cost"), ("weight", "cost"), ("spheres", "distance"), ("poses", "distance")],
)
@pytest.mark.parametrize("options", [OPTIONS, SWEPT], ids=["static", "swept"])
def test_gradients_are_those_of_finite_differences(client, name, options, output):
    tensors = inputs()
    tensors[name].requires_grad_()
    loss_of(ask(client, tensors, outputs=output, **options)).backward()
    gradient = tensors[name].grad.double().flatten()
    generator = torch.Generator().manual_seed(3)
    step = 2e-4
    for _ in range(4):
        direction = torch.randn(gradient.numel(), generator=generator).double()
        direction /= direction.norm()
        ends = []
        for sign in (-1, 1):
            moved = inputs()
            moved[name] = (moved[name].double().flatten() + sign * step * direction).reshape(moved[name].shape).float()
            ends.append(loss_of(ask(client, moved, outputs=output, **options)).item())
        measured = (ends[1] - ends[0]) / (2 * step)
        scale = (gradient.abs() * direction.abs()).sum().item()
        assert measured == pytest.approx((gradient @ direction).item(), abs=0.02 * scale)


def test_both_outputs_together_give_the_sum_of_both_gradients(client):
    parts = []
    for outputs in (("cost",), ("distance",), ("cost", "distance")):
        rows = spheres().requires_grad_()
        result = ask(client, {"spheres": rows}, outputs=outputs, **OPTIONS)
        sum(value.sum() for value in result if value is not None).backward()
        parts.append(rows.grad)
    torch.testing.assert_close(parts[0] + parts[1], parts[2], atol=1e-5, rtol=1e-5)


def test_worlds_come_in_many_forms(client):
    expected = ask(client, {"spheres": spheres()}, **OPTIONS)
    for world in (obstacles(), tuple(obstacles()), client.put(WORLD)):
        result = ask(client, {"spheres": spheres()}, world=world, **OPTIONS)
        assert torch.equal(result.cost, expected.cost) and torch.equal(result.distance, expected.distance)
    alone = ask(client, {"spheres": spheres()}, world=World([Obstacle(MESH)]))
    for world in (MESH, [MESH], Obstacle(MESH), client.put(MESH)):
        np.testing.assert_array_equal(client.query(world, spheres()).distance, alone.distance)
        assert torch.equal(ask(client, {"spheres": spheres()}, world=world).distance, alone.distance)


def test_points_are_spheres_of_radius_0(client):
    points = spheres()[..., :3].clone().requires_grad_()
    padded = torch.nn.functional.pad(points.detach(), (0, 1)).requires_grad_()
    for tensor in (points, padded):
        loss_of(ask(client, {"spheres": tensor}, **OPTIONS)).backward()
    assert torch.equal(points.grad, padded.grad[..., :3])


def test_poses_take_the_place_of_the_worlds_own(client):
    elsewhere = POSES + torch.tensor([0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    expected = ask(client, {"spheres": spheres()}, world=WORLD.with_poses(elsewhere))
    handle = client.put(WORLD)
    for world in (WORLD, handle):
        result = ask(client, {"spheres": spheres(), "poses": elsewhere}, world=world)
        torch.testing.assert_close(result.distance, expected.distance, atol=1e-6, rtol=0)
    # The stored world keeps its own poses.
    assert torch.equal(
        ask(client, {"spheres": spheres()}, world=handle).distance, ask(client, {"spheres": spheres()}).distance
    )


def matrices_of(poses: torch.Tensor) -> torch.Tensor:
    """Matrices [I, 4, 4] of poses [I, 7], by the textbook's formula."""
    last = torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(len(poses), 1, 4)
    return torch.cat([torch.cat([rotations(poses[:, 3:]), poses[:, :3, None]], -1), last], -2)


# In each, another component of the quaternion is the largest.
@pytest.mark.parametrize("turn", [(4, 1, 2, 3), (1, -4, 2, 3), (1, 2, 4, -3), (-1, 2, 3, 4)])
def test_poses_may_be_matrices(client, turn):
    poses = torch.cat([POSES[:, :3], torch.tensor([turn, turn[::-1]], dtype=torch.float32)], -1).requires_grad_()
    found = []
    for form in (poses, matrices_of(poses), matrices_of(poses)[:, :3]):
        loss = loss_of(ask(client, {"spheres": spheres(), "poses": form}, **OPTIONS))
        found.append((loss.detach(), *torch.autograd.grad(loss, poses)))
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0], atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(gradient, found[0][1], atol=1e-4 * found[0][1].abs().max().item(), rtol=1e-3)


def test_poses_may_be_positions(client):
    positions = POSES[:, :3].clone().requires_grad_()
    whole = torch.cat([POSES[:, :3], torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(2, 4)], -1).requires_grad_()
    for poses in (positions, whole):
        loss_of(ask(client, {"spheres": spheres(), "poses": poses}, **OPTIONS)).backward()
    torch.testing.assert_close(positions.grad, whole.grad[:, :3])


def test_an_obstacle_is_found_by_the_gradient_of_its_pose(client):
    box = World([Obstacle(Cuboid((0.4, 0.8, 1.2)))])
    surface = torch.tensor([[0.2, 0.1, 0.3], [-0.2, -0.3, 0.4], [0.1, 0.4, -0.5], [-0.1, -0.4, 0.2], [0.15, 0.2, 0.6]])
    # The box's true pose: shifted, and turned by 0.3 radians about z.
    turn = torch.tensor([[0.9553, -0.2955, 0.0], [0.2955, 0.9553, 0.0], [0.0, 0.0, 1.0]])
    points = torch.nn.functional.pad(surface @ turn.T + torch.tensor([0.2, -0.1, 0.15]), (0, 1))
    poses = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]], requires_grad=True)
    optimizer = torch.optim.Adam([poses], lr=0.02)
    handle, losses = client.put(box), []
    for _ in range(150):
        optimizer.zero_grad()
        found = mesh_distance(points, handle, poses=poses, client=client, outputs="distance")
        losses.append(found.distance.square().sum())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 1e-3 * losses[0]


def test_stored_worlds_cost_no_upload(client, payload_lengths):
    world = client.put(World([*obstacles(), Obstacle(VoxelGrid(np.ones((30, 30, 30)), 0.1))]))
    rows = spheres().requires_grad_()
    ask(client, {"spheres": rows}, world=world).distance.sum().backward()
    assert payload_lengths == [rows.numel() * 4, rows.numel()]


def test_only_what_is_needed_is_asked_for(client, differentiated):
    asked = differentiated(Distances)
    tensors = inputs()
    tensors["spheres"].requires_grad_()
    tensors["weight"].requires_grad_()
    result = ask(client, tensors, **OPTIONS)
    result.distance.sum().backward(retain_graph=True)
    result.cost.sum().backward()
    assert asked == [(("distance",), ("spheres", "weight")), (("cost",), ("spheres", "weight"))]


def test_curobo_has_gradients_of_the_cost_by_centres_only(client):
    tensors = inputs()
    tensors["spheres"].requires_grad_()
    result = ask(client, tensors, semantics="curobo", max_distance=0.5, samples=4, sweep=True, **OPTIONS)
    assert result.cost.requires_grad and not result.distance.requires_grad
    result.cost.sum().backward()
    assert tensors["spheres"].grad[..., :3].any() and not tensors["spheres"].grad[..., 3].any()
    tensors["poses"].requires_grad_()
    with pytest.raises(InvalidArgument, match=r'^poses: .* semantics="curobo".*pass semantics="exact" or poses.detach'):
        ask(client, tensors, semantics="curobo")
    with torch.no_grad():
        ask(client, tensors, semantics="curobo")


def test_tensors_of_other_types_are_taken(client):
    rows, poses = spheres(dtype=torch.float64).requires_grad_(), POSES.double().requires_grad_()
    ask(client, {"spheres": rows, "poses": poses, "weight": torch.tensor([2.0])}, **OPTIONS).cost.sum().backward()
    assert rows.grad.dtype == poses.grad.dtype == torch.float64
    listed = mesh_distance(spheres().tolist(), WORLD, client=client)
    assert torch.equal(listed.distance, ask(client, {"spheres": spheres()}).distance)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spheres": torch.zeros(3)}, r"^spheres: expected shape \[B, H, S, 4\], \[H, S, 4\] or \[S, 4\]"),
        ({"poses": torch.zeros(1, 7)}, r"^poses: expected shape \[2, 7\], \[2, 3\], .*, got \[1, 7\]"),
        (
            {"poses": 2 * torch.eye(4)[:3].repeat(2, 1, 1)},
            "^poses: expected a rotation .*; take scale and mirror out of it",
        ),
        ({"poses": torch.eye(4).repeat(2, 1, 1) + LAST}, "^poses: expected the last row 0 0 0 1, got"),
        ({"poses": torch.zeros(2, 7)}, "poses"),
        ({"weight": torch.ones(2)}, r"^weight: expected one number, got shape \[2\]"),
        ({"world": "box"}, "^world: expected World, Mesh or SceneHandle, got 'box'"),
        ({"world": ["box"]}, r"^obstacles\[0\]: expected Obstacle, Mesh, "),
        ({"outputs": ("cost", "normal")}, "^outputs: expected some of cost, distance, got normal"),
        ({"semantics": "fast"}, "^semantics: expected one of"),
        ({"activation_distance": -0.1}, "activation_distance"),
        ({"environments": [0, 0, 0]}, r"^environments: expected shape \[2\], got \[3\]"),
    ],
)
def test_refusals_name_the_argument(client, change, text):
    with pytest.raises(InvalidArgument, match=text):
        ask(client, {**inputs(), **change})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_on_a_gpu_come_back_there(client):
    tensors = {name: tensor.cuda().requires_grad_() for name, tensor in inputs().items()}
    result = ask(client, tensors, **OPTIONS)
    assert all(tensor.device.type == "cuda" for tensor in result)
    (result.cost.sum() + result.distance.sum()).backward()
    assert all(tensor.grad.device.type == "cuda" for tensor in tensors.values())
