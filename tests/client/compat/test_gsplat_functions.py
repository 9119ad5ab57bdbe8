"""gsplat's functions other than its rasterizer, against references in double precision."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.client import Gaussians
from lumigrad.client.compat import gsplat
from lumigrad.client.compat.gsplat import color_correct, losses, utils
from lumigrad.client.compat.gsplat._helper import load_test_data
from lumigrad.client.compat.gsplat.cuda import _lidar
from lumigrad.client.compat.gsplat.cuda._torch_impl import _eval_sh_bases_fast
from lumigrad.client.compat.gsplat.scene import GaussianScene
from lumigrad.client.compat.gsplat.stage import Stage
from lumigrad.client.errors import InvalidArgument
from support.training.losses import similarity

COUNT, WIDTH, HEIGHT = 30, 40, 30
PARAMETERS = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3), "shN": (8, 3)}


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found: torch.Tensor, expected: object, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found.double(), torch.as_tensor(expected).double(), rtol=0, atol=atol)


def test_elementwise_losses_are_not_averaged():
    one, other = uniform(2, 5), uniform(2, 5, seed=1)
    close(losses.l1_loss(one, other), np.abs(one.numpy() - other.numpy()))
    close(losses.mse_loss(one, other), (one.numpy() - other.numpy()) ** 2)


@pytest.mark.parametrize("window", [11, 5])
def test_ssim_is_that_of_a_gaussian_window_before_zeros(window: int):
    one, other = uniform(2, 3, 13, 17).requires_grad_(), uniform(2, 3, 13, 17, seed=1)
    images = (each.permute(0, 2, 3, 1) for each in (one.detach(), other))
    expected = 1 - similarity(*images, "same", window // 2).mean()
    close(losses.ssim_loss(one, other, window), expected)
    few = other[:1, :1, :4, :4]
    assert torch.autograd.gradcheck(lambda image: losses.ssim_loss(image, few, window), one[:1, :1, :4, :4])
    close(losses.ssim_loss(one.float(), other.float(), window), expected, 1e-5)


def test_other_losses():
    depth, truth = torch.tensor([2.0, 0.0, 4.0], dtype=torch.float64, requires_grad=True), torch.tensor([4.0, 1.0, 0.0])
    found = losses.depth_l1_loss(depth, truth.double(), 3.0)
    close(found, 3 * (0.25 + 1.0 + 0.25) / 3)
    found.backward()
    close(depth.grad, [-0.25, 0.0, -1 / 16])
    logits = uniform(7)
    close(losses.opacity_reg_loss(logits), (1 / (1 + np.exp(-logits.numpy()))).mean())
    close(losses.scale_reg_loss(logits), np.exp(logits.numpy()).mean())
    grid = uniform(2, 3, 4, 5, 1)
    array = grid.numpy()
    close(losses.total_variation_loss(grid), sum((np.diff(array, axis=axis) ** 2).mean() for axis in (2, 3)))


def test_colours_are_corrected_by_the_maps_that_fit_best():
    reference = 0.2 + 0.6 * uniform(6, 7, 3)
    bent = reference**0.8
    found = color_correct.color_correct_quadratic(bent, reference)
    # The fit repeated in NumPy; nothing is clipped here, so the first fit is exact and later ones change little.
    x, wanted = bent.numpy().reshape(-1, 3), reference.numpy().reshape(-1, 3)
    for _ in range(5):
        terms = [x[:, i] * x[:, j] for i in range(3) for j in range(i, 3)] + [*x.T, np.ones(len(x))]
        x = np.clip(np.stack(terms, 1) @ np.linalg.lstsq(np.stack(terms, 1), wanted, rcond=None)[0], 0, 1)
    close(found, x.reshape(6, 7, 3), 1e-8)
    assert (found - reference).abs().mean() < 0.2 * (bent - reference).abs().mean()
    close(color_correct.color_correct_affine(0.5 * reference + 0.1, reference), reference)
    clipped = reference.clone()
    clipped[0, 0] = 1.0
    assert color_correct.color_correct_quadratic(clipped, reference).isfinite().all()
    with pytest.raises(ValueError, match=r"^ref: expected shape \[6, 7, 3\], got \[6, 7, 2\]"):
        color_correct.color_correct_affine(reference, reference[..., :2])


def splats(count: int = COUNT) -> dict[str, torch.Tensor]:
    return {name: (uniform(count, *shape, seed=len(name)) * 2 - 1).float() for name, shape in PARAMETERS.items()}


def test_files_keep_the_parameters(tmp_path: Path):
    given = splats()
    given["means"][3, 1] = math.nan
    path = tmp_path / "any name"
    data = gsplat.export_splats(**given, save_to=path)
    assert path.read_bytes() == data
    kept = torch.arange(COUNT) != 3
    for name, value in gsplat.load_ply_to_splats(path).items():
        assert torch.equal(value, given[name][kept]), name
    forms = {"ply": (".ply", 1e-6), "splat": (".splat", 0.02), "ply_compressed": (".compressed.ply", 0.02)}
    for form, (suffix, atol) in forms.items():
        file = tmp_path / f"scene{suffix}"
        gsplat.export_splats(**given, format=form, save_to=file)
        scene = Gaussians.load(file)
        order, reference = (np.argsort(each[:, 0]) for each in (scene.means, given["means"][kept].numpy()))
        shown = {"means": given["means"], "scales": given["scales"].exp(), "opacities": given["opacities"].sigmoid()}
        for name, expected in shown.items():
            np.testing.assert_allclose(getattr(scene, name)[order], expected[kept].numpy()[reference], atol=atol)
    gsplat.export_splats(**splats(0), save_to=path)
    assert all(len(value) == 0 for value in gsplat.load_ply_to_splats(path).values())
    with pytest.raises(ValueError, match=r"^means: expected at least one Gaussian of finite values with format="):
        gsplat.export_splats(**{**given, "means": given["means"] * math.nan}, format="ply_compressed")
    flat = {**given, "shN": given["shN"][:, :0]}
    gsplat.export_splats(**flat, save_to=path)
    assert gsplat.load_ply_to_splats(path)["shN"].shape == (COUNT - 1, 0, 3)
    path.write_bytes(path.read_bytes().replace(b"property float opacity", b"property float f_rest_0", 1))
    with pytest.raises(InvalidArgument, match="expected 3 channels of harmonics, got 1 properties f_rest_"):
        gsplat.load_ply_to_splats(path)
    with pytest.raises(ValueError, match=r"^sh0: expected shape \[30, 1, 3\], got \[30, 3\]"):
        gsplat.export_splats(**{**given, "sh0": given["sh0"][:, 0]})


def test_selective_adam_steps_visible_rows():
    parameter = torch.nn.Parameter(uniform(4, 2))
    value = parameter.detach().clone().numpy()
    mean, square = np.zeros((4, 2)), np.zeros((4, 2))
    optimizer = gsplat.SelectiveAdam([{"params": [parameter], "lr": 0.1}], eps=1e-15, betas=(0.9, 0.99))
    for step in range(5):
        seen = (uniform(4, seed=step) > 0.5).numpy()
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step(torch.from_numpy(seen))
        gradient = 2 * value
        mean[seen] = 0.9 * mean[seen] + 0.1 * gradient[seen]
        square[seen] = 0.99 * square[seen] + 0.01 * gradient[seen] ** 2
        value[seen] -= 0.1 * mean[seen] / (np.sqrt(square[seen]) + 1e-15)
        close(parameter.detach(), value)
    assert set(optimizer.state[parameter]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("shape", [(3,), (9,), (2, 6)], ids=str)
def test_selective_adam_refuses_the_rows_of_other_parameters(shape: tuple[int, ...]) -> None:
    parameter = torch.nn.Parameter(torch.zeros(6, 3))
    optimizer = gsplat.SelectiveAdam([parameter], eps=1e-8, betas=(0.9, 0.99))
    parameter.grad = torch.ones(6, 3)
    text = (
        rf"^visibility: expected a value for each of the 6 rows of a parameter, got shape {re.escape(str(list(shape)))}"
    )
    with pytest.raises(ValueError, match=text):
        optimizer.step(torch.ones(shape))
    assert not parameter.any() and not optimizer.state


def test_selective_adam_steps_by_sparse_gradients_as_by_dense_ones() -> None:
    values = []
    for as_given in (torch.Tensor.to_dense, lambda gradient: gradient.to_sparse(1)):
        parameter = torch.nn.Parameter(uniform(6, 3))
        optimizer = gsplat.SelectiveAdam([parameter], eps=1e-8, betas=(0.9, 0.99))
        parameter.grad = as_given(uniform(6, 3, seed=1) * torch.tensor([1.0, 0, 1, 1, 0, 1])[:, None])
        optimizer.step(torch.tensor([1, 0, 1, 0, 0, 1]))
        values.append(parameter.detach())
    assert torch.equal(*values)


def test_values_of_a_scene_follow_its_rows_and_a_stage_draws_it():
    params = torch.nn.ParameterDict(splats(5))
    scene = GaussianScene.from_splats(params, "house", {"tag": torch.arange(5)})
    assert scene.splats is params and scene.num_gaussians() == 5
    scene.on_duplicate(torch.tensor([1, 3]))
    assert scene.signal["tag"].tolist() == [0, 1, 2, 3, 4, 1, 3]
    scene.on_split(torch.tensor([0, 2]), torch.tensor([1, 3, 4, 5, 6]))
    assert scene.signal["tag"].tolist() == [1, 3, 4, 1, 3, 0, 2, 0, 2]
    scene.on_remove(torch.tensor([True] * 4 + [False] * 5))
    assert scene.signal["tag"].tolist() == [3, 0, 2, 0, 2]
    scene.on_relocate(torch.tensor([0]), torch.tensor([2]))
    scene.on_sample_add(torch.tensor([1]))
    assert scene.signal["tag"].tolist() == [2, 0, 2, 0, 2, 0]
    stage = Stage()
    stage.add_scene(scene, lambda splats, width: (splats, width))
    assert stage.render("house", width=3) == (params, 3) and stage.get_scene("house") is scene
    with pytest.raises(ValueError, match="house"):
        stage.add_scene(scene, print)
    with pytest.raises(KeyError, match=r"expected one of \['house'\], got 'tree'"):
        stage.render("tree")
    with pytest.raises(ValueError, match=r"^tag: expected a row for each of 5 Gaussians, got 4"):
        GaussianScene.from_splats(params, "x", {"tag": torch.zeros(4)})


def test_covariances_and_their_inverses():
    quats, scales = (uniform(2, 6, 4) - 0.5).requires_grad_(), (0.2 + uniform(2, 6, 3)).requires_grad_()
    covars, precis = gsplat.quat_scale_to_covar_preci(quats, scales)
    close(covars @ precis, torch.eye(3).expand(2, 6, 3, 3))
    w, x, y, z = torch.nn.functional.normalize(quats.detach(), dim=-1).unbind(-1)
    # Rotations of the axes by the products q a q*.
    axis = torch.stack([x, y, z], -1)
    for column, basis in enumerate(torch.eye(3, dtype=torch.float64)):
        turned = basis + 2 * torch.linalg.cross(
            axis, torch.linalg.cross(axis, basis.expand_as(axis)) + w[..., None] * basis
        )
        close((covars @ turned[..., None])[..., 0], turned * scales[..., column, None] ** 2)
    upper, nothing = gsplat.quat_scale_to_covar_preci(quats, scales, compute_preci=False, triu=True)
    assert nothing is None
    close(upper, torch.stack([covars[..., i, j] for i in range(3) for j in range(i, 3)], -1))
    assert torch.autograd.gradcheck(lambda *given: gsplat.quat_scale_to_covar_preci(*given), (quats, scales))


def film(point: torch.Tensor, k: torch.Tensor, model: str) -> torch.Tensor:
    x, y, z = point
    if model == "fisheye":
        radius = torch.sqrt(x * x + y * y)
        x, y = (torch.atan2(radius, z) / radius * each for each in (x, y))
    elif model == "pinhole":
        x, y = x / z, y / z
    return torch.stack([k[0, 0] * x + k[0, 2], k[1, 1] * y + k[1, 2]])


@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
def test_gaussians_in_cameras_and_in_pictures(model: str):
    means, (covars, _) = uniform(4, 3) - 0.5, gsplat.quat_scale_to_covar_preci(uniform(4, 4), uniform(4, 3))
    turn, _ = torch.linalg.qr(uniform(2, 3, 3))
    views = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    views[:, :3, :3], views[:, :3, 3] = turn * torch.linalg.det(turn)[:, None, None], torch.tensor([0.1, 0.2, 5.0])
    moved, covars_c = gsplat.world_to_cam(means, covars, views)
    for view in range(2):
        close(moved[view], means @ views[view, :3, :3].T + views[view, :3, 3])
        close(covars_c[view], views[view, :3, :3] @ covars @ views[view, :3, :3].T)
    k = torch.tensor([[40.0, 0, 20], [0, 42, 15], [0, 0, 1]], dtype=torch.float64)
    pixels, flat = gsplat.proj(moved, covars_c, k.expand(2, 3, 3), WIDTH, HEIGHT, model)
    for view in range(2):
        for index in range(4):
            slope = torch.autograd.functional.jacobian(lambda point: film(point, k, model), moved[view, index])
            close(pixels[view, index], film(moved[view, index], k, model))
            close(flat[view, index], slope @ covars_c[view, index] @ slope.T)


def drawn() -> dict[str, torch.Tensor]:
    views = torch.eye(4).repeat(2, 1, 1)
    views[1, 0, 3] = 0.3
    return {
        "means": (uniform(COUNT, 3) * 2 + torch.tensor([-1.0, -1, 2])).float(),
        "quats": (uniform(COUNT, 4, seed=1) - 0.5).float(),
        "scales": (0.01 + 0.02 * uniform(COUNT, 3, seed=2)).float(),
        "viewmats": views,
        "Ks": torch.tensor([[40.0, 0, 20], [0, 40, 15], [0, 0, 1]]).repeat(2, 1, 1),
    }


def test_projections_by_sigma_points():
    given = drawn()
    opacities = torch.full((COUNT,), 0.7)
    body = (given["means"], given["quats"], given["scales"])
    cameras = (given["viewmats"], given["Ks"], WIDTH, HEIGHT)
    radii, centres, depths, conics, nothing = gsplat.fully_fused_projection_with_ut(*body, opacities, *cameras)
    assert nothing is None and radii.dtype == torch.int32
    # For small Gaussians, the camera's derivative gives the same projection.
    flat = gsplat.fully_fused_projection(body[0], None, *body[1:], *cameras, opacities=opacities)
    seen = (radii > 0).all(-1) & (flat[0] > 0).all(-1)
    assert seen.sum() > COUNT
    for value, expected, atol in zip((centres, depths, conics), flat[1:], (0.02, 1e-5, 0.02), strict=False):
        close(value[seen], expected[seen], atol)
    lens = torch.tensor([[-0.2, 0.05, 0.0, 0.0]]).repeat(2, 1)
    bent = gsplat.fully_fused_projection_with_ut(*body, None, *cameras, radial_coeffs=lens)
    meta = gsplat.rasterization(
        **given, opacities=torch.ones(COUNT), colors=torch.zeros(COUNT, 3), width=WIDTH, height=HEIGHT, with_ut=True,
        packed=False, radial_coeffs=lens,
    )[2]  # fmt: skip
    for value, name in zip(bent, ("radii", "means2d", "depths", "conics"), strict=False):
        assert torch.equal(value, meta[name]), name
    with pytest.raises(gsplat.GsplatArgumentError, match=r"^calc_compensations: expected False"):
        gsplat.fully_fused_projection_with_ut(*body, opacities, *cameras, calc_compensations=True)


def test_projections_of_surfels():
    given = {name: value.requires_grad_() for name, value in drawn().items()}
    radii, centres, depths, transforms, normals = gsplat.fully_fused_projection_2dgs(
        **given, width=WIDTH, height=HEIGHT
    )
    seen = (radii > 0).all(-1)
    assert seen.sum() > COUNT
    double = {name: value.detach().double() for name, value in given.items()}
    covars, _ = gsplat.quat_scale_to_covar_preci(double["quats"], torch.tensor([[1.0, 2, 3]]).expand(COUNT, 3).double())
    axes = torch.linalg.eigh(covars)[1]
    for view in range(2):
        places = double["means"] + double["viewmats"][view, :3, 3]
        close(depths[view][seen[view]], places[seen[view], 2], 1e-5)
        # Columns are the scaled axes and the centre; an axis is known up to its sign.
        inverse = torch.linalg.inv(double["Ks"][view]) @ transforms[view].detach().double()
        for index in seen[view].nonzero().flatten():
            close(inverse[index, :, 2], places[index], 1e-5)
            for column in range(2):
                expected = axes[index, :, column] * double["scales"][index, column]
                sign = torch.sign(inverse[index, :, column] @ expected)
                close(inverse[index, :, column], expected * sign, 1e-5)
            close((normals[view, index].double() @ axes[index, :, 2]).abs(), 1.0, 1e-5)
            assert normals[view, index] @ places[index].float() < 0
    (centres.sum() + transforms.sum()).backward()
    assert all(given[name].grad.any() for name in ("means", "quats", "scales"))
    packed = gsplat.fully_fused_projection_2dgs(**drawn(), width=WIDTH, height=HEIGHT, packed=True)
    assert torch.equal(torch.stack(packed[1:3]), seen.nonzero().T) and not packed[0].any()
    assert packed[3].tolist() == [0, int(seen[0].sum()), int(seen.sum())]
    for value, expected in zip(packed[4:], (radii, centres, depths, transforms, normals), strict=True):
        assert torch.equal(value, expected[seen].detach())


def test_harmonics_in_two_parts():
    means, views, sh = uniform(5, 3), torch.eye(4, dtype=torch.float64)[None], uniform(5, 16, 3)
    views[:, 2, 3] = 3.0
    whole = gsplat.spherical_harmonics(3, means, views, sh)
    parts = gsplat.spherical_harmonics_l0(sh[:, :1]) + gsplat.spherical_harmonics_l1_plus(3, means, views, sh[:, 1:])
    close(parts, whole)
    directions = torch.nn.functional.normalize(means + torch.tensor([0, 0, 3.0]), dim=-1)
    close((_eval_sh_bases_fast(16, directions)[..., None] * sh).sum(1), whole[0])


def test_lidars_with_what_kernels_look_up():
    params = _lidar.RowOffsetStructuredSpinningLidarModelParameters(
        row_elevations_rad=torch.linspace(0.3, -0.3, 8),
        column_azimuths_rad=torch.linspace(0.5, -0.5, 20),
        row_azimuth_offsets_rad=torch.zeros(8),
        spinning_frequency_hz=10.0,
        spinning_direction=_lidar.SpinningDirection.CLOCKWISE,
    )
    columns = _lidar.compute_angles_to_columns_map(params).to("cpu")
    extended = gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(params, columns, _lidar.compute_tiling(params))
    facing = torch.tensor([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]).T[None]
    given = {**drawn(), "viewmats": facing, "Ks": None}
    images = [
        gsplat.rasterization(
            **given, opacities=torch.ones(COUNT), colors=torch.ones(COUNT, 1), width=20, height=8, with_ut=True,
            with_eval3d=True, packed=False, camera_model="lidar", global_z_order=False, lidar_coeffs=lidar,
        )[0]
        for lidar in (params, extended)
    ]  # fmt: skip
    assert images[0].shape == (1, 8, 20, 1) and torch.equal(*images)


def test_the_test_scene_of_viewers_is_cropped_and_repeated(tmp_path: Path):
    path = tmp_path / "garden.npz"
    points = np.array([[0.0, 0, 0], [1, 1, 1], [5, 0, 0]], np.float32)
    tensors = {"viewmats": np.eye(4)[None], "Ks": np.eye(3)[None], "means3d": points}
    np.savez(path, width=4, height=3, colors=np.full((3, 3), 51), **tensors)
    means, quats, scales, opacities, colors, views, ks, width, height = load_test_data(path, "cpu", scene_grid=3)
    assert means.shape == (18, 3) and (width, height) == (4, 3) and torch.equal(views, torch.eye(4)[None])
    assert {tuple(row) for row in means.tolist()} == {
        (x + d, y + d, float(d)) for x in (-4, 0, 4) for y in (-4, 0, 4) for d in (0, 1)
    }
    close(colors, torch.full((18, 3), 0.2), 1e-6)
    close(quats.norm(dim=-1), torch.ones(18), 1e-6)
    assert scales.shape == (18, 3) and opacities.shape == (18,) and ks.shape == (1, 3, 3)
    with pytest.raises(FileNotFoundError, match="pass a scene by --ckpt or --ply"):
        load_test_data(tmp_path / "nothing.npz", "cpu")


def test_points_and_normals_of_depths_are_those_of_a_plane() -> None:
    """Two cameras see a plane by z and by distance; each point of a pixel lies on its ray and on the plane."""
    viewmats = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    quats = torch.nn.functional.normalize(uniform(2, 4) - 0.4, dim=-1)
    viewmats[:, :3, :3] = utils.normalized_quat_to_rotmat(quats)
    viewmats[:, :3, 3] = uniform(2, 3, seed=1)
    Ks = torch.tensor([[[50.0, 0, 19], [0, 45, 16], [0, 0, 1]]], dtype=torch.float64).repeat(2, 1, 1)
    normal = torch.tensor([0.2, -0.3, -0.9], dtype=torch.float64)
    rows, columns = torch.meshgrid(torch.arange(HEIGHT).double(), torch.arange(WIDTH).double(), indexing="ij")
    rays = torch.stack([(columns + 0.5 - 19) / 50, (rows + 0.5 - 16) / 45, torch.ones_like(rows)], -1)
    # The plane is 4 in front of each camera, in its own frame.
    depths = (-4 / (rays @ normal))[None, ..., None].repeat(2, 1, 1, 1)
    inverse = torch.linalg.inv(viewmats)
    points = utils.depth_to_points(depths, inverse, Ks)
    seen = torch.einsum("cij,chwj->chwi", viewmats[:, :3, :3], points) + viewmats[:, None, None, :3, 3]
    close(seen, depths * rays)
    far = depths * rays.norm(dim=-1, keepdim=True)
    close(utils.depth_to_points(far, inverse, Ks, z_depth=False), points)
    scaled = inverse @ torch.diag(torch.tensor([2.0, 2, 2, 1], dtype=torch.float64))
    close(utils.depth_to_points(far, scaled, Ks, z_depth=False), points)
    normals = utils.depth_to_normal(far, inverse, Ks, z_depth=False)
    expected = (viewmats[:, :3, :3].mT @ normal / normal.norm())[:, None, None].expand(2, HEIGHT - 2, WIDTH - 2, 3)
    close(normals[:, 1:-1, 1:-1], expected)
    assert not normals[:, 0].any()
    assert not normals[:, :, -1].any()
    with pytest.raises(gsplat.GsplatArgumentError, match="camtoworlds"):
        utils.depth_to_points(depths, inverse[0], Ks)


def test_small_functions_of_gsplat(tmp_path: Path) -> None:
    quats = torch.nn.functional.normalize(uniform(5, 4) - 0.5, dim=-1)
    turns = utils.normalized_quat_to_rotmat(quats)
    close(turns @ turns.mT, torch.eye(3).expand(5, 3, 3))
    scales = uniform(5, 3, seed=1) + 0.1
    close(turns @ torch.diag_embed(scales**2) @ turns.mT, gsplat.quat_scale_to_covar_preci(quats, scales)[0])
    values = 20 * uniform(7) - 10
    close(utils.inverse_log_transform(utils.log_transform(values)), values)
    close(utils.log_transform(values), np.sign(values) * np.log1p(np.abs(values)))
    matrix = utils.get_projection_matrix(0.5, 20.0, 1.2, 0.9).cpu().double()
    for depth, expected in ((0.5, 0.0), (20.0, 1.0)):
        corner = torch.tensor([depth * math.tan(0.6), -depth * math.tan(0.45), depth, 1], dtype=torch.float64)
        close((matrix @ corner)[:3] / (matrix @ corner)[3], [1.0, -1.0, expected], 1e-6)
    splats = {name: uniform(6, *shape).float() for name, shape in PARAMETERS.items()}
    with pytest.warns(DeprecationWarning, match="export_splats"):
        utils.save_ply(splats, tmp_path / "scene.ply")
    assert all(
        torch.equal(read, splats[name]) for name, read in gsplat.load_ply_to_splats(tmp_path / "scene.ply").items()
    )
    colors = uniform(6, 3, seed=4).float()
    with pytest.warns(DeprecationWarning, match="export_splats"):
        utils.save_ply(splats, tmp_path / "scene.ply", colors)
    close(torch.tensor(Gaussians.load(tmp_path / "scene.ply").sh)[:, 0] * 0.28209479177387814 + 0.5, colors, 1e-6)
