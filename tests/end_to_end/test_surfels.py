"""Surfels on a worker: `Client.render`, `render_gaussians_2d` and gsplat's function, against double precision."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument
from lumigrad.client.compat.gsplat import GsplatArgumentError, rasterization_2dgs
from lumigrad.client.torch import render_gaussians_2d
from support.closeness import assert_image, assert_relative
from support.files.documents import ROOT, run_code_of
from support.gaussians.sensor_arguments import pose6
from support.spheres import oracle

DATA = os.environ.get(oracle.VARIABLE)
FILES = sorted(Path(DATA, "oracle", "sensors").glob("s*_2dgs*.npz")) if DATA else []
INPUTS = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds")
TOLERANCES = {"colors": 5e-4, "opacities": 5e-4, "backgrounds": 5e-4, "Ks": 2e-3}
IMAGES = ("color", "alpha", "depth", "expected_depth", "median_depth", "normals", "surface_normals", "distortion")
# Depths are divided by alpha, of which float32 has few digits where little is seen.
FROM_DEPTH = 3e-4
WIDTH, HEIGHT = 40, 30


class Case:
    """A file: its settings, its arrays, and its inputs as leaves of a graph."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as archive:
            self.arrays = {name: archive[name] for name in archive.files}
        self.settings = json.loads(str(self.arrays.pop("settings_json")))
        self.leaves = {name: torch.tensor(self.arrays[f"in_{name}"]).requires_grad_() for name in INPUTS}

    @property
    def has_depth(self) -> bool:
        return bool(self.settings["render_mode"] == "RGB+ED")

    @property
    def size(self) -> dict[str, int]:
        return {name: self.settings[name] for name in ("width", "height")}

    def assert_near(self, name: str, image: Any, tolerance: float = 5e-5) -> None:
        expected = self.arrays[f"exact_{name}"]
        found = np.asarray(image).reshape(expected.shape)[self.arrays["stable"]]
        stable = expected[self.arrays["stable"]]
        assert_image(found, stable, tolerance * np.maximum(1.0, np.abs(stable).max(axis=0)))

    def upstream(self) -> dict[str, np.ndarray]:
        """dL/d output by our names."""
        found = {name: self.arrays[f"v_{name}"] for name in ("image", "alpha", "normals")}
        image = found.pop("image")
        named = {"color": image[..., :3], "alpha": found["alpha"][..., 0], "normals": found["normals"]}
        if self.has_depth:
            named |= {"expected_depth": image[..., 3], "distortion": self.arrays["v_distort"][..., 0]}
        return {name: np.ascontiguousarray(value, np.float32) for name, value in named.items()}

    def assert_gradients(self, found: dict[str, np.ndarray], *, with_intrinsics: bool = True) -> None:
        for name in INPUTS if with_intrinsics else [name for name in INPUTS if name != "Ks"]:
            expected, actual = self.arrays[f"exact_grad_{name}"], found[name]
            if name == "viewmats":
                expected, actual = self.arrays["exact_grad_pose6"], pose6(self.arrays["in_viewmats"], actual)
            if name == "Ks":
                expected, actual = (k[..., (0, 1, 0, 1), (0, 1, 2, 2)] for k in (expected, actual))
            assert_relative(name, actual, expected, TOLERANCES.get(name, 1e-3), 1e-6)

    def loss(self, images: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum((images[name] * torch.tensor(value)).sum() for name, value in self.upstream().items())

    @property
    def gradients(self) -> dict[str, np.ndarray]:
        return {name: leaf.grad.numpy() for name, leaf in self.leaves.items() if leaf.grad is not None}


def with_name(given: dict[str, Any], name: str) -> dict[str, Any]:
    """The arguments with the background by another name: the operator's, or gsplat's."""
    return {name if key in ("background", "backgrounds") else key: value for key, value in given.items()}


def cameras_of(views: Any, matrices: Any, width: int, height: int) -> list[Camera]:
    return [
        Camera.opencv(k[0, 0], k[1, 1], k[0, 2], k[1, 2], view[:3, :3], view[:3, 3], width, height)
        for view, k in zip(np.float64(views), np.float64(matrices), strict=True)
    ]


@pytest.mark.parametrize("semantics", ["exact", "gsplat"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_client_reproduces_cases_computed_elsewhere(path: Path, semantics: Any, client: Client) -> None:
    case = Case(path)
    given = {name: case.arrays[f"in_{name}"] for name in INPUTS}
    cloud = Gaussians(*(given[name] for name in INPUTS[:4]), colors=given["colors"])
    frame = client.render(
        cloud,
        cameras_of(given["viewmats"], given["Ks"], **case.size),
        background=given["backgrounds"],
        semantics=semantics,
        primitive="surfel",
        outputs=(*IMAGES, "radii", "means2d", "depths"),
        retain=True,
    )
    case.assert_near("alpha", frame.alpha)
    case.assert_near("normals", frame.normals, 1e-4)
    image = np.concatenate([frame.color, frame.expected_depth[..., None]], -1) if case.has_depth else frame.color
    case.assert_near("image", image)
    if case.has_depth:
        case.assert_near("distort", frame.distortion)
        case.assert_near("median", frame.median_depth)
        case.assert_near("surf_normals", frame.surface_normals, FROM_DEPTH)
    seen = case.arrays["exact_visible"]
    np.testing.assert_array_equal(frame.radii[seen], case.arrays["exact_radii"][seen])
    np.testing.assert_allclose(frame.means2d[seen], case.arrays["exact_means2d"][seen], atol=2e-3)
    found = frame.backward(**case.upstream(), wanted=(*INPUTS[:5], "background", "cameras"))
    gradients = {name: found[name] for name in INPUTS[:5]}
    gradients["backgrounds"] = found.background.reshape(given["backgrounds"].shape)
    for name in ("viewmats", "Ks"):
        gradients[name] = np.zeros((len(frame.color), 4, 4) if name == "viewmats" else (len(frame.color), 3, 3))
    gradients["viewmats"][:, :3, :3] = found.camera_rotation
    gradients["viewmats"][:, :3, 3] = found.camera_translation
    gradients["Ks"][:, (0, 1, 0, 1), (0, 1, 2, 2)] = found.camera_intrinsics
    case.assert_gradients(gradients, with_intrinsics=semantics == "exact")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_gsplats_function_reproduces_cases_computed_elsewhere(path: Path, client: Client) -> None:
    case = Case(path)
    mode = case.settings["render_mode"]
    colors, alphas, normals, surface, distortion, median, meta = rasterization_2dgs(
        **case.leaves, **case.size, render_mode=mode, distloss=case.has_depth, target=client.target
    )
    case.assert_near("image", colors.detach())
    case.assert_near("alpha", alphas.detach())
    case.assert_near("normals", normals.detach(), 1e-4)
    assert median.shape == distortion.shape == alphas.shape
    if case.has_depth:
        case.assert_near("distort", distortion.detach())
        case.assert_near("median", median.detach())
        case.assert_near("surf_normals", surface.detach(), FROM_DEPTH)
        assert meta["render_distort"] is distortion
    else:
        assert surface is None and not distortion.any()
    seen = case.arrays["exact_visible"]
    np.testing.assert_array_equal(meta["radii"].numpy()[seen], case.arrays["exact_radii"][seen])
    assert not meta["radii"].numpy()[~seen].any()
    images = {"color": colors[..., :3], "alpha": alphas[..., 0], "normals": normals, "distortion": distortion[..., 0]}
    case.loss({**images, "expected_depth": colors[..., -1]}).backward()
    case.assert_gradients(case.gradients, with_intrinsics=False)
    assert meta["gradient_2dgs"].grad.abs().max() > 0


@pytest.mark.skipif(bool(FILES), reason="the files are there")
def test_the_files_are_absent() -> None:
    pytest.skip(oracle.ABSENT)


def arguments(count: int = 30, views: int = 2) -> dict[str, Any]:
    """Surfels in front of cameras, in float64, with gradients."""
    generator = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    viewmats = torch.eye(4, dtype=torch.float64).repeat(views, 1, 1)
    viewmats[:, :3, 3] = torch.tensor([0.0, 0.0, 4.0]) + 0.3 * drawn(views, 3)
    matrix = torch.tensor([[38.0, 0.0, 20.5], [0.0, 37.0, 14.5], [0.0, 0.0, 1.0]], dtype=torch.float64)
    tensors = {
        "means": 0.8 * drawn(count, 3),
        "quats": drawn(count, 4),
        "scales": 0.15 + 0.3 * drawn(count, 2).sigmoid(),
        "opacities": (drawn(count) - 0.5).sigmoid(),
        "colors": drawn(count, 3).sigmoid(),
        "viewmats": viewmats,
        "Ks": matrix.repeat(views, 1, 1),
        "background": drawn(views, 3).sigmoid(),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


SIZE = {"width": WIDTH, "height": HEIGHT}
# Directions in which matrices stay valid.
SHIFT = torch.tensor([[0.0, 0.0, 0.0, 0.6], [0.0, 0.0, 0.0, -0.4], [0.0, 0.0, 0.0, 0.5], [0.0] * 4]).double()
FOCAL = torch.tensor([[1.0, 0.0, -0.5], [0.0, 0.7, 0.4], [0.0, 0.0, 0.0]]).double()


def smooth(given: dict[str, Any], client: Client) -> torch.Tensor:
    """A loss through all outputs that are smooth, except where surfels end."""
    found = render_gaussians_2d(**given, **SIZE, outputs=IMAGES, client=client)
    total = torch.zeros((), dtype=torch.float64)
    for phase, name in enumerate(("color", "alpha", "depth", "normals", "distortion")):
        image = getattr(found, name).double()
        weights = torch.linspace(phase, 3.0 + phase, image.numel(), dtype=torch.float64).cos().reshape(image.shape)
        total = total + (image * weights).sum()
    return total


@pytest.mark.parametrize(
    ("name", "direction", "step"),
    [
        ("means", None, 4e-3),
        ("quats", None, 1e-2),
        ("scales", None, 4e-3),
        ("opacities", None, 4e-3),
        ("colors", None, 2e-2),
        ("background", None, 2e-2),
        ("viewmats", SHIFT, 4e-3),
        ("Ks", FOCAL, 5e-2),
    ],
)
def test_gradients_are_those_of_differences(client: Client, name: str, direction: Any, step: float) -> None:
    given = arguments()
    smooth(given, client).backward()
    gradient = given[name].grad
    toward = direction if direction is not None else gradient / gradient.norm()
    expected = float((gradient * toward).sum())
    with torch.no_grad():
        ahead, behind = (smooth({**given, name: given[name] + sign * step * toward}, client) for sign in (1, -1))
    assert abs(expected) > 0.05
    # Differences also see the pixels that surfels reach as they grow and move, with an alpha of 1/255.
    moves_borders = name in ("means", "quats", "scales", "opacities", "viewmats", "Ks")
    assert float(ahead - behind) / (2 * step) == pytest.approx(expected, rel=0.08 if moves_borders else 1e-3)


def test_surface_normals_have_gradients_of_the_depth_and_the_cameras(client: Client) -> None:
    """The operator computes the normals from the depth, and the worker does so for the client: both agree."""
    given = arguments()
    found = render_gaussians_2d(**given, **SIZE, outputs=("surface_normals",), client=client)
    weights = torch.linspace(0.0, 4.0, found.surface_normals.numel()).cos().reshape(found.surface_normals.shape)
    (found.surface_normals * weights).sum().backward()
    arrays = {name: tensor.detach().numpy() for name, tensor in given.items()}
    cloud = Gaussians(*(arrays[name] for name in INPUTS[:4]), colors=arrays["colors"])
    cameras = cameras_of(arrays["viewmats"], arrays["Ks"], **SIZE)
    outputs = ("surface_normals", "expected_depth")
    frame = client.render(cloud, cameras, primitive="surfel", outputs=outputs, retain=True)
    assert_image(found.surface_normals.detach(), frame.surface_normals, 2e-4)
    theirs = frame.backward(surface_normals=weights.numpy(), wanted=("means", "quats", "scales", "cameras"))
    for name in ("means", "scales"):
        ours = given[name].grad.numpy()
        assert np.linalg.norm(ours) > 1
        assert_relative(name, ours, theirs[name][:, : ours.shape[1]], 2e-2)
    ours = given["Ks"].grad[:, (0, 1, 0, 1), (0, 1, 2, 2)].numpy()
    assert_relative("Ks", ours, theirs.camera_intrinsics, 2e-2)


def test_scales_may_be_two_or_three(client: Client) -> None:
    given = arguments()
    two = render_gaussians_2d(**given, **SIZE, client=client)
    scales = torch.cat([given["scales"], torch.full((30, 1), 7.0)], -1).detach().requires_grad_()
    three = render_gaussians_2d(**{**given, "scales": scales}, **SIZE, client=client)
    assert all(torch.equal(*pair) for pair in zip(two, three, strict=True) if pair[0] is not None)
    three.color.sum().backward()
    assert scales.grad[:, :2].any() and not scales.grad[:, 2].any()
    assert three.means2d is None and three.color.shape == (2, HEIGHT, WIDTH, 3)


def test_the_operator_returns_what_is_asked_for(client: Client) -> None:
    outputs = ("means2d", "radii", "depths", "contributors", "ids", "transmittance")
    found = render_gaussians_2d(**arguments(), **SIZE, outputs=outputs, client=client)
    assert found.means2d.shape == found.radii.shape == (2, 30, 2) and found.depths.shape == (2, 30)
    assert found.alpha is None and found.contributors.dtype == found.ids.dtype == torch.int32
    found.means2d.retain_grad()
    found.color.sum().backward()
    assert found.means2d.grad.any()
    with pytest.raises(InvalidArgument, match="outputs"):
        render_gaussians_2d(**arguments(), **SIZE, outputs=("inverse_depth",), client=client)
    with pytest.raises(InvalidArgument, match="scales"):
        render_gaussians_2d(**{**arguments(), "scales": torch.ones(30, 4)}, **SIZE, client=client)


@pytest.mark.parametrize("mode", ["RGB", "D", "ED", "RGB+D", "RGB+ED"])
@pytest.mark.parametrize("packed", [False, True])
def test_gsplats_results_have_gsplats_shapes(mode: str, packed: bool, client: Client) -> None:
    given = {
        name: tensor.detach().float().requires_grad_() for name, tensor in with_name(arguments(), "backgrounds").items()
    }
    given["scales"] = torch.nn.functional.pad(given["scales"].detach(), (0, 1)).requires_grad_()
    found = rasterization_2dgs(
        **given,
        **SIZE,
        render_mode=mode,
        packed=packed,
        sparse_grad=packed,
        absgrad=True,
        target=client.target,
    )
    colors, alphas, normals, surface, distortion, median, meta = found
    channels = 3 * ("RGB" in mode) + ("D" in mode)
    assert colors.shape == (2, HEIGHT, WIDTH, channels) and normals.shape == (2, HEIGHT, WIDTH, 3)
    assert alphas.shape == distortion.shape == median.shape == (2, HEIGHT, WIDTH, 1)
    assert (surface is None) if "+" not in mode else surface.shape == (2, HEIGHT, WIDTH, 3)
    rows = (len(meta["gaussian_ids"]),) if packed else (2, 30)
    assert meta["radii"].shape == meta["means2d"].shape == meta["gradient_2dgs"].shape == (*rows, 2)
    assert meta["ray_transforms"].shape == (*rows, 3, 3) and meta["normals"].shape == (*rows, 3)
    assert meta["depths"].shape == meta["opacities"].shape == rows
    assert int(meta["tiles_per_gauss"].sum()) == len(meta["flatten_ids"]) == len(meta["isect_ids"]) > 0
    assert meta["isect_offsets"].shape == (2, 2, 3) and meta["n_cameras"] == 2
    (colors.sum() + normals.sum()).backward()
    assert meta["gradient_2dgs"].grad.any() and (meta["gradient_2dgs"].absgrad >= 0).all()
    assert given["means"].grad.is_sparse == packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sparse_gradients_of_gsplats_function_are_the_dense_ones(dtype: torch.dtype, client: Client) -> None:
    passed = with_name(arguments(), "backgrounds")
    given = {name: tensor.detach().to(dtype).requires_grad_() for name, tensor in passed.items()}
    expected: dict[str, torch.Tensor] = {}
    for sparse in (False, True):
        images = rasterization_2dgs(**given, **SIZE, packed=True, sparse_grad=sparse, target=client.target)
        images[0].square().sum().backward()
        for name in ("means", "quats", "scales"):
            found, given[name].grad = given[name].grad, None
            assert found.is_sparse == sparse and found.dtype == dtype and found.shape == given[name].shape
            assert torch.equal(found.to_dense(), expected.setdefault(name, found.to_dense()))


def test_ellipsoids_are_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r'primitive: expected "surfel" or none, got "volume"; render_gaussians'):
        render_gaussians_2d(**arguments(), **SIZE, primitive="volume", client=client)


def test_values_per_surfel_are_those_of_the_worker(client: Client) -> None:
    given = {name: tensor.detach().float() for name, tensor in with_name(arguments(), "backgrounds").items()}
    meta = rasterization_2dgs(**given, **SIZE, target=client.target)[-1]
    # The box's centre follows from the transforms (Huang et al. 2024, appendix B).
    rows = meta["ray_transforms"].double()
    signs = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
    weights = signs / (signs * rows[..., 2, :] ** 2).sum(-1, keepdim=True)
    centres = (weights[..., None, :] * rows[..., :2, :] * rows[..., 2:, :]).sum(-1)
    seen = (meta["radii"] > 0).all(-1)
    assert seen.sum() > 20
    np.testing.assert_allclose(meta["means2d"][seen], centres[seen], atol=1e-3)
    np.testing.assert_allclose(meta["depths"][seen], rows[..., 2, 2][seen], rtol=1e-5)


def test_one_camera_s_surface_normals_have_no_axis_of_cameras(client: Client) -> None:
    given = {name: tensor.detach().float() for name, tensor in with_name(arguments(views=1), "backgrounds").items()}
    found = rasterization_2dgs(**given, **SIZE, render_mode="RGB+D", depth_mode="median", target=client.target)
    assert found[3].shape == (HEIGHT, WIDTH, 3) and found[2].shape == (1, HEIGHT, WIDTH, 3)


def test_gsplats_function_refuses_what_gsplat_refuses(client: Client) -> None:
    given = {name: tensor.detach().float() for name, tensor in with_name(arguments(), "backgrounds").items()}
    for options, name in (({"distloss": True}, "distloss"), ({"depth_mode": "mean"}, "depth_mode"),
                          ({"render_mode": "d"}, "render_mode"), ({"near_plane": -1.0}, "near_plane")):  # fmt: skip
        with pytest.raises(GsplatArgumentError, match=name):
            rasterization_2dgs(**given, **SIZE, **options, target=client.target)


def test_the_page_runs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", client.target)
    names = run_code_of(ROOT / "docs" / "surfels.md")
    assert names["frame"].normals.shape == (240, 320, 3) and names["gradients"].scales.shape == (2000, 3)
    # The discs lie in the surface of a ball.
    seen = names["frame"].median_depth > 0
    agreement = (names["frame"].normals * names["frame"].surface_normals).sum(-1)[seen]
    assert np.median(agreement) > 0.8
    assert names["Ks"].grad.any()
