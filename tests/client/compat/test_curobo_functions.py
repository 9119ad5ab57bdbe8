"""`SdfMeshWarpPy` and `SweptSdfMeshWarpPy`: values, gradients, buffers, slots and refusals, and the oracle's cases."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.client.compat.curobo import CuroboArgumentError, SdfMeshWarpPy, register_mesh, unregister_mesh
from support.calls.curobo_calls import ABSENT, IDENTITY, Slots, Term, files, oracle_term
from support.meshes import shapes as mesh_shapes

BOX = mesh_shapes.box((1.0, 1.0, 1.0))


def at(*rows: tuple[float, ...]) -> torch.Tensor:
    """Spheres (1, 1, n, 4)."""
    return torch.tensor([[list(rows)]])


def along(*xs: float, radius: float = 0.1) -> torch.Tensor:
    """(1, h, 1, 4): one sphere that moves along the x axis."""
    return torch.tensor([[[[x, 0.0, 0.0, radius]] for x in xs]])


def test_costs_and_gradients_are_those_of_the_formula():
    # Clearances of the inflated sphere: free, in the curved part, in contact, inside, off.
    spheres = at((0.8, 0, 0, 0.1), (0.65, 0, 0, 0.1), (0.55, 0, 0, 0.1), (0.4, 0, 0, 0.1), (0.55, 0, 0, -0.1))
    spheres.requires_grad_()
    term = Term(Slots.of(BOX), weight=2.0, activation=0.1)
    cost = term(spheres)
    expected = [0.0, 2 * 0.05**2 / 0.2, 2 * (0.15 - 0.05), 2 * (0.3 - 0.05), 0.0]
    np.testing.assert_allclose(cost.detach()[0, 0], expected, atol=1e-6)
    cost.sum().backward()
    slopes = [0.0, -2 * 0.5, -2.0, -2.0, 0.0]
    np.testing.assert_allclose(spheres.grad[0, 0, :, 0], slopes, atol=1e-5)
    np.testing.assert_allclose(spheres.grad[..., 1:3], 0, atol=1e-5)
    np.testing.assert_array_equal(spheres.grad[..., 3], 0)
    buffer, gradient, sparsity = term.buffers_for(spheres)
    assert cost.data_ptr() == buffer.data_ptr()
    assert not buffer.requires_grad
    assert torch.equal(gradient, spheres.grad)
    assert torch.equal(sparsity, (buffer != 0).to(torch.uint8))


def test_the_search_radius_hides_what_is_deep_inside():
    spheres = at((0.0, 0.0, 0.0, 0.05), (0.45, 0.0, 0.0, 0.05))
    cost = Term(Slots.of(BOX), reach=0.1)(spheres)
    np.testing.assert_allclose(cost[0, 0], [0.0, 0.1], atol=1e-6)


def test_poses_are_world_to_mesh():
    turn = math.sqrt(0.5)
    # World to mesh: turned by 90 degrees about z, then shifted.
    inverse = (0.3, 0.0, 0.0, turn, 0.0, 0.0, turn, 9.0)
    long = mesh_shapes.box((2.0, 0.2, 0.2))
    # (x, y) goes to (-y + 0.3, x): the long axis of the mesh lies along y, around y = 0.3.
    spheres = at((0.0, 1.29, 0.0, 0.0), (0.0, 1.31, 0.0, 0.0), (0.0, -0.69, 0.0, 0.0), (0.2, 0.3, 0.0, 0.0))
    cost = Term(Slots.of(long, inverse))(spheres)
    np.testing.assert_allclose(cost[0, 0], [0.01, 0.0, 0.01, 0.0], atol=1e-6)


def test_only_enabled_slots_in_use_count():
    handle = register_mesh(BOX.vertices, BOX.faces)
    poses = torch.tensor([[IDENTITY] * 4])
    used, enable = torch.tensor([3], dtype=torch.int32), torch.tensor([[1, 2, 1, 1]], dtype=torch.uint8)
    index = torch.tensor([[handle, handle, handle, -1]])
    spheres = at((0.4, 0.0, 0.0, 0.0))
    assert Term(Slots(index, poses, enable, used))(spheres).item() == pytest.approx(0.2, abs=1e-6)
    enable[0, 0] = 0
    assert Term(Slots(index, poses, enable, used))(spheres).item() == pytest.approx(0.1, abs=1e-6)
    used[0] = 0
    assert Term(Slots(index, poses, enable, used))(spheres).item() == 0


def test_rows_see_their_environment():
    handle = register_mesh(BOX.vertices, BOX.faces)
    poses = torch.tensor([[IDENTITY], [(5.0, *IDENTITY[1:])]])
    ones = torch.ones(2, 1, dtype=torch.uint8), torch.ones(2, dtype=torch.int32)
    slots = Slots(torch.tensor([[handle], [handle]]), poses, *ones)
    spheres = at((0.4, 0.0, 0.0, 0.0), (-5.4, 0.0, 0.0, 0.0)).expand(3, 1, 2, 4)
    cost = Term(slots, environments=torch.tensor([1, 0, 1], dtype=torch.int32))(spheres)
    np.testing.assert_allclose(cost[:, 0], [[0.0, 0.1], [0.1, 0.0], [0.0, 0.1]], atol=1e-6)
    np.testing.assert_allclose(Term(slots)(spheres)[:, 0], [[0.1, 0.0]] * 3, atol=1e-6)
    with pytest.raises(CuroboArgumentError, match=r"^env_query_idx"):
        Term(slots, environments=torch.tensor([0, 1, 2], dtype=torch.int32))(spheres)


def test_return_loss_multiplies_and_otherwise_the_upstream_gradient_is_ignored():
    for return_loss, factor in ((False, 1.0), (True, 3.0)):
        spheres = at((0.4, 0.0, 0.0, 0.0)).requires_grad_()
        (3.0 * Term(Slots.of(BOX), return_loss=return_loss)(spheres)).sum().backward()
        assert spheres.grad[0, 0, 0, 0].item() == pytest.approx(-factor, abs=1e-5)


def test_fields_are_distances_positive_inside():
    spheres = at((0.7, 0.0, 0.0, 0.1), (0.4, 0.0, 0.0, 0.1), (3.0, 0.0, 0.0, 0.1), (0.4, 0.0, 0.0, -1.0))
    spheres.requires_grad_()
    value = Term(Slots.of(BOX), esdf=True, activation=0.3)(spheres)
    np.testing.assert_allclose(value.detach()[0, 0], [-0.2, 0.1, -0.5, 0.0], atol=1e-6)
    value.sum().backward()
    np.testing.assert_allclose(spheres.grad[0, 0, :2, 0], [-1.0, -1.0], atol=1e-5)


def test_gradients_are_written_only_if_the_spheres_require_them():
    term = Term(Slots.of(BOX))
    spheres = at((0.4, 0.0, 0.0, 0.0))
    term(spheres)
    assert not term.buffers_for(spheres)[1].any()
    with torch.no_grad():
        assert not term(spheres.requires_grad_()).requires_grad
    assert term.buffers_for(spheres)[1][0, 0, 0, 0] == -1


def test_buffers_hold_nothing_of_earlier_calls():
    """The original keeps an old gradient if a call without gradients found no cost in between."""
    term = Term(Slots.of(BOX))
    inside, outside = at((0.4, 0.0, 0.0, 0.0)), at((2.0, 0.0, 0.0, 0.0))
    term(inside.clone().requires_grad_())
    term(outside)
    spheres = outside.clone().requires_grad_()
    term(spheres).sum().backward()
    assert not spheres.grad.any() and not term.buffers_for(spheres)[1].any()
    for buffer in term.buffers_for(spheres):
        buffer.fill_(7)
    spheres.grad = None
    cost = term(spheres)
    cost.sum().backward()
    assert not cost.any() and not spheres.grad.any()
    _, gradient, sparsity = term.buffers_for(spheres)
    assert not gradient[..., :3].any() and not sparsity.any()
    # The radius has no gradient: its place in the buffer is left alone.
    assert (gradient[..., 3] == 7).all()


def test_a_second_call_does_not_change_the_gradient_of_the_first():
    term = Term(Slots.of(BOX))
    first, second = (at((x, 0.0, 0.0, 0.0)).requires_grad_() for x in (0.4, -0.4))
    total = term(first).sum()
    term(second)
    total.backward()
    assert first.grad[0, 0, 0, 0] == -1
    # The second call leaves the first one's graph alone, although both results are in one buffer.
    ways = term(first), term(second)
    assert ways[0].data_ptr() == ways[1].data_ptr()
    first.grad = None
    ways[0].sum().backward()
    assert first.grad[0, 0, 0, 0] == -1 and second.grad is None


def test_sweeps_see_what_is_between_time_steps():
    wall = Slots.of(mesh_shapes.box((0.3, 1.0, 1.0)))
    spheres = along(-0.45, 0.45)
    assert not Term(wall)(spheres).any()
    cost = Term(wall, steps=4)(spheres.requires_grad_())
    assert (cost > 0).all()
    cost.sum().backward()
    assert torch.isfinite(spheres.grad).all()
    assert not Term(wall, steps=0)(spheres).any()


def test_the_speed_metric_scales_all_but_the_first_and_the_last():
    spheres = along(0.40, 0.41, 0.43, radius=0.0)
    slots = Slots.of(BOX)
    plain = Term(slots, steps=0)(spheres).flatten()
    scaled = Term(slots, steps=0, speed=True, dt=0.1)(spheres).flatten()
    np.testing.assert_allclose(scaled, plain * torch.tensor([1.0, 0.03 / 0.2, 1.0]), rtol=1e-5)


def test_rays_tell_inside_from_outside_where_a_mesh_is_not_a_solid():
    spheres = at((0.4, 0.0, 0.0, 0.0), (0.6, 0.0, 0.0, 0.0))
    # Inside out: the rays meet the fronts of faces.
    turned = mesh_shapes.turned_inside_out(BOX)
    np.testing.assert_allclose(Term(Slots.of(turned), esdf=True)(spheres)[0, 0], [-0.1, -0.1], atol=1e-6)
    # A box without its top: the ray upward misses, the two others meet backs.
    lid = mesh_shapes.open_box((1.0, 1.0, 1.0))
    np.testing.assert_allclose(Term(Slots.of(lid), esdf=True)(spheres)[0, 0], [0.1, -0.1], atol=1e-6)
    np.testing.assert_allclose(Term(Slots.of(BOX), esdf=True)(spheres)[0, 0], [0.1, -0.1], atol=1e-6)


def test_handles_are_of_content():
    handle = register_mesh(BOX.vertices, BOX.faces)
    assert handle == register_mesh(torch.from_numpy(BOX.vertices.copy()), BOX.faces.tolist()) > 0
    assert handle != register_mesh(BOX.vertices * 2, BOX.faces)
    assert handle == register_mesh(BOX.vertices, BOX.faces.ravel().tolist())
    with pytest.raises(CuroboArgumentError, match=r"^faces: expected \[F, 3\], or three numbers a triangle, got 35"):
        register_mesh(BOX.vertices, BOX.faces.ravel()[:-1])
    assert torch.tensor([handle]).dtype == torch.int64 and torch.tensor([handle]).item() == handle


def test_forgotten_handles_are_refused():
    handle = register_mesh(BOX.vertices * 0.5, BOX.faces)
    slots = Slots.of(BOX)
    slots.mesh_idx = torch.tensor([[handle]])
    Term(slots)(at((0.0, 0.0, 0.0, 0.0)))
    unregister_mesh(handle)
    with pytest.raises(CuroboArgumentError, match=r"^mesh_idx\[0, 0\]: expected a handle from register_mesh, got"):
        Term(slots)(at((0.0, 0.0, 0.0, 0.0)))


def test_other_types_are_taken():
    spheres = at((0.4, 0.0, 0.0, 0.0)).double().requires_grad_()
    term = Term(Slots.of(BOX))
    term.slots.mesh_pose_inverse = term.slots.mesh_pose_inverse.double()
    term(spheres).sum().backward()
    assert spheres.grad.dtype == torch.float64 and spheres.grad[0, 0, 0, 0] == -1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"weight": "much"}, "weight: expected a number"),
        ({"max_dist": torch.tensor([-1.0])}, "max_dist: "),
        ({"activation_distance": torch.tensor([-1.0])}, "activation_distance: "),
        ({"query_spheres": torch.full((1, 1, 1, 4), math.nan)}, "query_spheres"),
        ({"out_grad": None}, r"out_grad: expected a tensor of shape \[1, 1, 1, 4\], got NoneType"),
        ({"mesh_idx": torch.zeros(1, 2, dtype=torch.int64)}, r"mesh_pose_inverse: expected shape \[1, 2, 8\], got"),
        ({"mesh_pose_inverse": torch.zeros(1, 1, 8)}, r"mesh_pose_inverse\[0, 0\]: expected x y z and a unit"),
        ({"mesh_enable": 1}, "mesh_enable: expected a tensor, got int"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(change, text):
    spheres, term = at((0.4, 0.0, 0.0, 0.0)), Term(Slots.of(BOX))
    arguments = {
        "query_spheres": spheres,
        **dict(zip(("out_cost", "out_grad", "sparsity_idx"), term.buffers_for(spheres), strict=True)),
        "weight": torch.ones(1),
        "activation_distance": torch.zeros(1),
        **vars(term.slots),
        "max_dist": torch.tensor([0.5]),
    }
    with pytest.raises(CuroboArgumentError, match=f"^{text}"):
        SdfMeshWarpPy.apply(*{**arguments, **change}.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_may_be_on_a_gpu():
    spheres = at((0.4, 0.0, 0.0, 0.0)).cuda().requires_grad_()
    cost = Term(Slots.of(BOX))(spheres)
    cost.sum().backward()
    assert cost.device.type == spheres.grad.device.type == "cuda"
    assert spheres.grad[0, 0, 0, 0].item() == -1


@pytest.mark.skipif(not files(), reason=ABSENT)
@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
@pytest.mark.parametrize("calls", [1, 2], ids=["fresh", "used"])
def test_costs_and_gradients_are_those_of_double_precision(path: Path, calls: int):
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    term = oracle_term(arrays)
    for _ in range(calls):
        spheres = torch.from_numpy(arrays["spheres"].copy()).requires_grad_()
        cost = term(spheres)
        cost.sum().backward()
    weight, expected = float(arrays["weight"]), arrays["ref_cost"]
    tolerance = 1e-5 * weight + 1e-4 * np.abs(expected).max()
    wrong = arrays["ref_ok_cost"] & ~(np.abs(cost.detach().numpy() - expected) <= tolerance)
    assert not wrong.any(), np.argwhere(wrong)
    difference = np.abs(spheres.grad.numpy() - arrays["ref_grad"]).max(axis=-1)
    # Rounding may exceed the tiny gradient of a case that hardly touches, so the tolerance has a floor.
    scale = max(np.abs(arrays["ref_grad"]).max(), 1e-2 * weight)
    wrong = arrays["ref_ok_grad"] & ~(difference <= 2e-3 * scale)
    assert not wrong.any(), np.argwhere(wrong)
    buffer, gradient, sparsity = term.buffers_for(spheres)
    assert cost.data_ptr() == buffer.data_ptr()
    assert torch.equal(gradient, spheres.grad)
    assert torch.equal(sparsity != 0, buffer != 0)
