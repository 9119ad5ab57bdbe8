"""gsplat's function on a worker: shapes, the dictionary, gradients for strategies, and harmonics of each camera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lumigrad.client.compat.gsplat import RollingShutterType, rasterization, rasterization_2dgs
from support.gaussians.sensor_arguments import pose6
from support.gaussians.splats import COUNT, HEIGHT, WIDTH, splats
from support.workers.worker import WorkerProcess

CAMERAS = 2
ON_A_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
KEYS = (
    "batch_ids camera_ids gaussian_ids radii means2d depths conics opacities tile_width tile_height tiles_per_gauss "
    "isect_ids flatten_ids isect_offsets width height tile_size n_batches n_cameras"
)


@pytest.fixture
def rasterize(worker_process: WorkerProcess):
    def call(tensors, **options):
        return rasterization(**tensors, width=WIDTH, height=HEIGHT, target=worker_process.target, **options)

    return call


def test_absolute_gradients_are_zeros_before_backward(rasterize):
    meta = rasterize(splats(), packed=False, absgrad=True)[2]
    assert meta["means2d"].absgrad.shape == (CAMERAS, COUNT, 2) and not meta["means2d"].absgrad.any()


@pytest.mark.parametrize("packed", [False, True])
def test_arrays_of_numpy_are_constants(rasterize, packed):
    tensors = splats()
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    (expected, _, known), (found, _, meta) = (rasterize(given, packed=packed) for given in (tensors, arrays))
    assert torch.equal(found, expected)
    for name in ("conics", "depths", "opacities"):
        torch.testing.assert_close(meta[name], known[name])


def test_one_rank_holds_all_gaussians(rasterize):
    expected, found = (rasterize(splats(), distributed=distributed)[0] for distributed in (False, True))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 1)], ids=str)
def test_results_and_the_dictionary_have_their_shapes(rasterize, batch, packed):
    colors, alphas, meta = rasterize(splats(*batch, colors=(37,)), packed=packed, tile_size=8, channel_chunk=8)
    assert colors.shape == (*batch, CAMERAS, HEIGHT, WIDTH, 37)
    assert alphas.shape == (*batch, CAMERAS, HEIGHT, WIDTH, 1)
    assert " ".join(meta) == KEYS
    views = (*batch, CAMERAS)
    rows = (len(meta["gaussian_ids"]),) if packed else (*views, COUNT)
    shapes = {"radii": (2,), "means2d": (2,), "depths": (), "conics": (3,), "opacities": (), "tiles_per_gauss": ()}
    for name, last in shapes.items():
        assert meta[name].shape == (*rows, *last), name
    assert meta["isect_offsets"].shape == (*views, 4, 5)
    assert len(meta["isect_ids"]) == len(meta["flatten_ids"]) == meta["tiles_per_gauss"].sum() > 0
    numbers = ("width", "height", "tile_size", "tile_width", "tile_height", "n_batches", "n_cameras")
    scenes = max(1, len(batch) and 2)
    assert [meta[name] for name in numbers] == [WIDTH, HEIGHT, 8, 5, 4, scenes, CAMERAS]
    assert meta["radii"].dtype == torch.int32


@pytest.mark.parametrize("batch", [(), (2, 1)], ids=str)
def test_packed_results_are_the_visible_dense_ones(rasterize, batch):
    dense_colors, dense_alphas, dense = rasterize(splats(*batch), packed=False)
    colors, alphas, packed = rasterize(splats(*batch))
    assert torch.equal(colors, dense_colors) and torch.equal(alphas, dense_alphas)
    assert dense["batch_ids"] is dense["camera_ids"] is dense["gaussian_ids"] is None
    visible = (dense["radii"] > 0).all(-1).reshape(-1, CAMERAS, COUNT)
    assert 0 < visible.sum() < visible.numel()
    ids = [packed[name] for name in ("batch_ids", "camera_ids", "gaussian_ids")]
    assert torch.equal(torch.stack(ids, -1), visible.nonzero())
    assert all(values.dtype == torch.int64 for values in ids)
    for name in ("radii", "means2d", "depths", "conics", "opacities", "tiles_per_gauss"):
        assert torch.equal(packed[name], dense[name].reshape(-1, CAMERAS, COUNT, *packed[name].shape[1:])[visible]), (
            name
        )
    assert torch.equal(packed["isect_ids"], dense["isect_ids"])
    assert torch.equal(packed["isect_offsets"], dense["isect_offsets"])
    rows = visible.flatten().nonzero().flatten()
    assert torch.equal(rows[packed["flatten_ids"]], dense["flatten_ids"].long())


def test_depths_are_the_last_channel(rasterize):
    background = {"backgrounds": torch.full((CAMERAS, 3), 0.5)}
    color, alpha, _ = rasterize(splats(), **background)
    depth, _, _ = rasterize({**splats(), "colors": None}, render_mode="D")
    expected, _, _ = rasterize(splats(), render_mode="ED", **background)
    assert depth.shape == expected.shape == (CAMERAS, HEIGHT, WIDTH, 1)
    torch.testing.assert_close(expected, depth / alpha.clamp_min(1e-10))
    assert torch.equal(rasterize(splats(), render_mode="RGB+D", **background)[0], torch.cat([color, depth], -1))
    assert torch.equal(rasterize(splats(), render_mode="RGB+ED", **background)[0], torch.cat([color, expected], -1))


def gradients(rasterize, packed: bool, batch: tuple[int, ...] = (), **options):
    tensors = splats(*batch)
    colors, alphas, meta = rasterize(tensors, packed=packed, **options)
    meta["means2d"].retain_grad()
    (colors.square().sum() + alphas.sum()).backward()
    return {name: tensor.grad for name, tensor in tensors.items()}, meta


@pytest.mark.parametrize("batch", [(), (2,), (2, 1)], ids=str)
def test_packed_and_sparse_gradients_are_the_dense_ones(rasterize, batch):
    dense, meta = gradients(rasterize, False, batch, absgrad=True)
    assert all(gradient.abs().max() > 0 for gradient in dense.values())
    visible = (meta["radii"] > 0).all(-1)
    for options in ({}, {"absgrad": True}, {"sparse_grad": True}):
        packed, packed_meta = gradients(rasterize, True, batch, **options)
        assert torch.equal(packed_meta["means2d"].grad, meta["means2d"].grad[visible])
        if "absgrad" in options:
            assert torch.equal(packed_meta["means2d"].absgrad, meta["means2d"].absgrad[visible])
        for name, gradient in packed.items():
            sparse = "sparse_grad" in options and name in ("means", "quats", "scales")
            assert gradient.is_sparse == sparse, name
            torch.testing.assert_close(gradient.to_dense(), dense[name], msg=name)
            if sparse:
                assert gradient.dense_dim() == 1
                assert torch.equal(gradient.coalesce().indices().T, visible.any(dim=-2).nonzero())
    assert (meta["means2d"].absgrad >= meta["means2d"].grad.abs() - 1e-4).all()


@pytest.mark.parametrize(
    ("dtype", "device"),
    [(torch.float64, "cpu"), (torch.float16, "cpu"), pytest.param(torch.float32, "cuda", marks=ON_A_GPU)],
    ids=str,
)
def test_sparse_gradients_come_in_the_type_and_place_of_the_input(rasterize, dtype, device):
    given = {name: tensor.detach().to(device, dtype).requires_grad_() for name, tensor in splats().items()}
    given |= {name: given[name].detach().double() for name in ("viewmats", "Ks")}
    dense = {}
    for sparse in (False, True):
        rasterize(given, packed=True, sparse_grad=sparse)[0].square().sum().backward()
        for name in ("means", "quats", "scales"):
            found, given[name].grad = given[name].grad, None
            assert (found.is_sparse, found.dtype, found.device.type) == (sparse, dtype, device), name
            assert torch.equal(found.to_dense(), dense.setdefault(name, found)) and dense[name].any(), name


def test_colors_may_be_per_camera_and_harmonics_shared_by_scenes(rasterize):
    tensors = splats(2)
    per_camera = {**tensors, "colors": torch.stack([tensors["colors"], 2 * tensors["colors"]], dim=1)}
    single, both = rasterize(tensors)[0], rasterize(per_camera)[0]
    torch.testing.assert_close(both[:, 0], single[:, 0])
    torch.testing.assert_close(both[:, 1], 2 * single[:, 1])
    shared = torch.rand(COUNT, 9, 3).requires_grad_()
    color = rasterize({**tensors, "colors": shared}, sh_degree=1)[0]
    each = rasterize({**tensors, "colors": shared.expand(2, -1, -1, -1)}, sh_degree=1)[0]
    assert torch.equal(color, each)
    color.sum().backward()
    assert shared.grad[:, :4].any() and not shared.grad[:, 4:].any()


def test_a_near_plane_of_zero_is_accepted(rasterize):
    assert torch.equal(rasterize(splats(), near_plane=0.0)[0], rasterize(splats(), near_plane=1e-6)[0])


@pytest.mark.parametrize("sparse", [False, True])
def test_scales_count_by_their_absolute_values(rasterize, sparse):
    """Optimizers without an activation step scales through 0."""
    signs = torch.where(torch.rand(COUNT, 3, generator=torch.Generator().manual_seed(1)) < 0.5, -1.0, 1.0)
    positive, mixed = splats(), splats()
    mixed["scales"] = (mixed["scales"].detach() * signs).requires_grad_()
    images = []
    for tensors in (positive, mixed):
        images.append(rasterize(tensors, packed=sparse, sparse_grad=sparse)[0])
        images[-1].square().sum().backward()
    assert torch.equal(*images)
    for name, tensor in positive.items():
        one, other = tensor.grad, mixed[name].grad
        assert one.is_sparse == other.is_sparse and one.to_dense().abs().max() > 0
        factor = signs if name == "scales" else 1.0
        torch.testing.assert_close(other.to_dense() * factor, one.to_dense(), msg=name)


ROLLING: dict[str, Any] = {"with_ut": True, "packed": False}
ROLLING |= {"rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM}
ALONG: dict[str, Any] = {**ROLLING, "with_eval3d": True, "render_mode": "RGB-Ed"}
CASES: list[tuple[Callable[..., Any], tuple[int, ...], dict[str, Any]]] = [
    (rasterization, (), {"packed": False, "render_mode": "RGB+ED"}),
    (rasterization, (2,), {"packed": True, "sparse_grad": True}),
    (rasterization, (), ROLLING),
    (rasterization, (2,), ALONG),
    (rasterization_2dgs, (), {}),
]


def harmonics(*batch: int) -> dict[str, torch.Tensor]:
    # More coefficients than are used, and some colours are clamped at 0.
    colors = torch.rand(*batch, CAMERAS, COUNT, 16, 3, generator=torch.Generator().manual_seed(1)) - 0.6
    return {**splats(*batch), "colors": colors}


def of_camera(tensors: dict[str, torch.Tensor], camera: int, batch: int) -> dict[str, torch.Tensor]:
    """The arguments of a call for one camera, with coefficients [.., N, K, D]."""
    found = dict(tensors)
    for name in {"viewmats", "viewmats_rs", "Ks"} & set(found):
        found[name] = found[name].narrow(batch, camera, 1)
    return {**found, "colors": found["colors"].select(batch, camera)}


@pytest.mark.parametrize(("function", "batch", "options"), CASES)
def test_harmonics_of_each_camera_are_those_of_calls_of_its_own(
    function: Callable[..., Any], batch: tuple[int, ...], options: dict[str, Any], worker_process: WorkerProcess
) -> None:
    tensors = harmonics(*batch)
    if "rolling_shutter" in options:
        tensors["viewmats_rs"] = tensors["viewmats"].detach() + 0.3 * torch.eye(4).roll(3, 1).tril(-3).T
    leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    given = {"sh_degree": 2, "width": WIDTH, "height": HEIGHT, "target": worker_process.target, **options}

    def taken() -> dict[str, torch.Tensor]:
        found = {name: leaf.grad.to_dense() for name, leaf in leaves.items() if leaf.grad is not None}
        for leaf in leaves.values():
            leaf.grad = None
        for name in {"viewmats", "viewmats_rs"} & set(found):
            # A worker's gradients are tangent to a sensor's rotation, those through the matrix are not: compare poses.
            matrices = (values.detach().reshape(-1, 4, 4).numpy() for values in (leaves[name], found[name]))
            found[name] = torch.from_numpy(pose6(*matrices))
        return found

    image = function(**leaves, **given)[0]
    upstream = torch.rand(image.shape, generator=torch.Generator().manual_seed(8))
    image.backward(upstream)
    found = taken()
    single = [function(**of_camera(leaves, camera, len(batch)), **given)[0] for camera in range(CAMERAS)]
    expected = torch.cat(single, len(batch))
    torch.testing.assert_close(image, expected, rtol=1e-4, atol=1e-5)
    expected.backward(upstream)
    theirs = taken()
    assert found.keys() == theirs.keys() >= {"colors", "means", "viewmats"}
    for name, gradient in theirs.items():
        atol = 1e-4 * max(float(gradient.abs().max()), 1e-3)
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-3, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert all(bool(found[name].any()) for name in ("colors", "means", "viewmats"))


def test_extra_signals_go_with_harmonics_of_each_camera(worker_process: WorkerProcess) -> None:
    tensors, signals = harmonics(), torch.rand(COUNT, 2)
    given = {"sh_degree": 1, "width": WIDTH, "height": HEIGHT, "target": worker_process.target}
    plain = rasterization(**tensors, **given)[0]
    image, _, meta = rasterization(**tensors, **given, extra_signals=signals, backgrounds=torch.zeros(CAMERAS, 3))
    torch.testing.assert_close(image, plain)
    assert meta["render_extra_signals"].max() > 0.1
