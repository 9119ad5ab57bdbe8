"""2D Gaussians: images and every gradient as the reference computes them, on each engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import Camera, Gaussians, PinholeLens, Settings, forward
from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians import surfels
from support.gaussians.rotation import turned
from support.gaussians.surfel_cases import HEIGHT, IMAGES, INTRINSICS, WIDTH, SurfelCase, cloud, reference, run
from support.gaussians.surfels import Pinhole

MOTION = np.eye(4)
MOTION[:3, :3], MOTION[:3, 3] = turned(0.2, 0.3, -0.1), (0.1, -0.2, 0.15)
WIDE = cloud(20, seed=9)
WIDE["scales"] = 4 * WIDE["scales"]
CASES = {
    "colors": SurfelCase(cloud()),
    "across the camera's plane": SurfelCase(WIDE),
    "harmonics": SurfelCase(cloud(seed=5, degree=2), settings={"sh_degree": 2, "tile_size": 8}),
    "moved": SurfelCase(cloud(seed=6, degree=1), settings={"sh_degree": 1}, moved=17, transform=MOTION),
    "five channels": SurfelCase(cloud(seed=7, channels=5), settings={"semantics": "gsplat"}, background=False),
    "clipped": SurfelCase(cloud(90, seed=8), settings={"radius_clip": 4.0, "near": 2.0}),
}
TOLERANCES = {"camera_intrinsics": 2e-3, "background": 5e-4, "colors": 5e-4, "sh": 5e-4, "opacities": 5e-4}


def upstream_of(images: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns random gradients of the images; 0 where rounding decides."""
    random = torch.Generator().manual_seed(5)
    drawn = {name: torch.rand(images[name].shape, generator=random) - 0.3 for name in IMAGES}
    stable = images["stable"]
    found = {name: v * (stable[..., None] if v.dim() == 3 else stable) for name, v in drawn.items()}
    # The expected depth is a quotient of roundings where hardly anything is seen.
    clear = (images["steady"] & (images["alpha"].detach() > 0.02)).float()
    clear = 1.0 - torch.nn.functional.max_pool2d((1.0 - clear)[None, None], 3, 1, 1)[0, 0]
    found["surface_normals"] = 0.02 * drawn["surface_normals"] * clear[..., None]
    return found


@cache
def expected(name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """Returns the reference's outputs and gradients of a case, and the upstream gradients."""
    upstream = upstream_of(reference(CASES[name])[0])
    return *reference(CASES[name], upstream), upstream


@pytest.mark.parametrize("name", CASES)
def test_images_and_gradients_are_those_of_the_reference(name: str, gaussian_engine: Engine) -> None:
    images, gradients, upstream = expected(name)
    found = run(gaussian_engine, CASES[name], upstream)
    stable = images["stable"].numpy()
    assert stable.mean() > 0.8, "most pixels count"
    assert (images["alpha"].detach().numpy() > 0.1).mean() > 0.2, "there is something to see"
    for output in IMAGES:
        values = images[output].detach().numpy()
        chosen = upstream["surface_normals"].numpy().any(-1) if output == "surface_normals" else stable
        tolerance = 2e-3 if output == "surface_normals" else 5e-5 * max(1.0, float(np.abs(values).max()))
        assert_image(found.outputs[output][0][chosen], values[chosen], tolerance)
    for key, gradient in gradients.items():
        if key == "camera_intrinsics" and CASES[name].settings.get("semantics") == "gsplat":
            assert not found.gradients[key].any(), "gsplat has none"
            continue
        expects = gradient.numpy()[:3] if key == "transforms" else gradient.numpy()
        has = found.gradients[key][0, :3] if key == "transforms" else found.gradients[key].reshape(expects.shape)
        assert_relative(key, has, expects, TOLERANCES.get(key, 1e-3), 1e-6)
    assert not found.gradients["scales"][:, 2].any()
    assert found.touched.any()


def test_boxes_and_depths_are_those_of_the_reference(gaussian_engine: Engine) -> None:
    images = expected("clipped")[0]
    planes = images["planes"]
    found = run(gaussian_engine, CASES["clipped"], outputs=("radii", "means2d", "depths", "contributors")).outputs
    visible = planes.visible.numpy()
    assert 0 < visible.sum() < len(visible)
    sure = planes.sure.numpy()
    shown = np.where(visible[:, None], planes.radii.detach().numpy(), 0)
    np.testing.assert_array_equal(found["radii"][0][sure], shown[sure])
    assert_image(found["means2d"][0][visible], planes.centres.detach().numpy()[visible], 5e-4)
    assert_image(found["depths"][0][visible], planes.depths.detach().numpy()[visible], 1e-5)
    assert not found["means2d"][0][~visible].any()
    stable = images["stable"].numpy()
    np.testing.assert_array_equal(found["contributors"][0][stable], images["contributors"].numpy()[stable])


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_colors_alone_are_as_with_other_outputs(channels: int, gaussian_engine: Engine) -> None:
    """The loops for three channels, for other numbers of channels and with further features agree."""
    case = SurfelCase(cloud(channels=channels))
    made = []
    for names in (("color",), ("color", "depth"), ("color", "depth", "normals"), (*IMAGES, "contributors")):
        outputs = run(gaussian_engine, case, outputs=names).outputs
        upstream = {"color": torch.linspace(-1, 1, outputs["color"].size).reshape(outputs["color"].shape[1:])}
        made.append((outputs["color"], run(gaussian_engine, case, upstream, outputs=names).gradients))
    for color, gradients in made[1:]:
        assert_image(color, made[0][0], 1e-6)
        for key, gradient in gradients.items():
            assert_relative(key, gradient, made[0][1][key], 1e-4, 1e-6)


def test_gradients_of_box_centres_are_added(gaussian_engine: Engine) -> None:
    case = CASES["colors"]
    outputs = ("color", "means2d")
    base = run(gaussian_engine, case, {"color": torch.ones(38, 52, 3)}, outputs=outputs)
    given = torch.linspace(-1, 1, 80).reshape(40, 2)
    both = run(gaussian_engine, case, {"color": torch.ones(38, 52, 3), "means2d": given}, outputs=outputs)
    leaf = {name: value.double().requires_grad_() for name, value in case.scene.items()}
    from_boxes = _box_gradients(case, leaf, given)
    for key in ("means", "quats", "scales"):
        assert_relative(key, both.gradients[key] - base.gradients[key], from_boxes[key], 1e-3, 1e-5)


def _box_gradients(case: SurfelCase, leaves: Mapping[str, Tensor], given: Tensor) -> dict[str, np.ndarray]:
    camera = Pinhole(
        torch.tensor(case.rotation, dtype=torch.float64),
        torch.tensor(case.translation, dtype=torch.float64),
        torch.tensor(INTRINSICS, dtype=torch.float64),
    )
    turn = torch.eye(3, dtype=torch.float64).expand(len(leaves["means"]), 3, 3)
    planes = surfels.planes_of(leaves, turn, camera, (WIDTH, HEIGHT), 0.01, 0.0)
    loss = (planes.centres * given.double())[planes.visible].sum()
    names = ("means", "quats", "scales")
    found = torch.autograd.grad(loss, [leaves[key] for key in names])
    return dict(zip(names, (value.numpy() for value in found), strict=True))


def test_density_gradients_are_gsplats(gaussian_engine: Engine) -> None:
    """Expects the gradient of the third entries of a plane's first two rows, times the depth; and its absolute sums."""
    case = CASES["colors"]
    upstream = {"color": expected("colors")[2]["color"]}
    found = run(gaussian_engine, case, upstream)
    value, absolute = _density_gradients(case, upstream["color"])
    assert_relative("means2d", found.gradients["means2d"][0], value, 1e-3, 1e-6)
    assert_relative("means2d_abs", found.gradients["means2d_abs"][0], absolute, 1e-3, 1e-6)


def _density_gradients(case: SurfelCase, gradient: Tensor) -> tuple[np.ndarray, np.ndarray]:
    shifts: list[Tensor] = []
    plain = surfels.hits_of

    def shifted(planes: surfels.Planes, pixels: Tensor) -> Tensor:
        rows = planes.rows.expand(len(pixels), *planes.rows.shape).clone()
        shift = torch.zeros(len(pixels), len(planes.rows), 2, dtype=torch.float64, requires_grad=True)
        shifts.append(shift)
        rows[..., 0, 2] = rows[..., 0, 2] + shift[..., 0] * planes.depths
        rows[..., 1, 2] = rows[..., 1, 2] + shift[..., 1] * planes.depths
        return plain(replace(planes, rows=rows), pixels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surfels, "hits_of", shifted)
        images = reference(case)[0]
    found = torch.autograd.grad((images["color"] * gradient.double()).sum(), shifts)[0]
    return found.sum(0).numpy(), found.abs().sum(0).numpy()


@pytest.mark.parametrize("shape", ["edge-on", "no size", "one axis", "huge", "tiny", "behind", "on the camera's plane"])
def test_degenerate_surfels_are_finite(shape: str, gaussian_engine: Engine) -> None:
    half = float(np.sqrt(0.5))
    values: dict[str, tuple[Any, Any, Any]] = {
        "edge-on": ((0.0, 0.0, 2.0), (half, half, 0.0, 0.0), (0.3, 0.2, 0.1)),
        "no size": ((0.1, 0.0, 2.0), (1.0, 0.1, 0.2, 0.3), (0.0, 0.0, 0.0)),
        "one axis": ((0.1, 0.0, 2.0), (1.0, 0.1, 0.2, 0.3), (0.2, 0.0, 0.0)),
        "huge": ((0.1, 0.0, 2.0), (1.0, 0.1, 0.2, 0.3), (1e18, 1e15, 0.0)),
        "tiny": ((0.1, 0.0, 2.0), (1.0, 0.1, 0.2, 0.3), (1e-20, 1e-12, 0.0)),
        "behind": ((0.0, 0.0, -2.0), (1.0, 0.1, 0.2, 0.3), (0.3, 0.2, 0.1)),
        "on the camera's plane": ((0.1, 0.0, 0.02), (1.0, 0.9, 0.2, 0.3), (0.3, 0.2, 0.1)),
    }
    mean, quat, scale = values[shape]
    # An opaque surfel ends the pixels of the tested one; a saturated one is behind both.
    means = torch.tensor([mean, (0.0, 0.1, 3.0), (0.1, 0.0, 3.5)])
    quats = torch.tensor([quat, (1.0, 0.0, 0.1, 0.0), (1.0, 0.2, 0.1, 0.0)])
    scales = torch.tensor([scale, (0.8, 0.8, 0.8), (0.8, 0.8, 0.8)])
    scene = {"means": means, "quats": quats, "scales": scales, "opacities": torch.ones(3), "colors": torch.rand(3, 3)}
    case = SurfelCase(scene, rotation=np.eye(3), translation=(0.0, 0.0, 0.0))
    shapes = {name: value.shape[1:] for name, value in run(gaussian_engine, case).outputs.items()}
    found = run(gaussian_engine, case, {name: torch.ones(shape) for name, shape in shapes.items()})
    for name, array in {**found.outputs, **found.gradients}.items():
        assert np.isfinite(array).all(), name
    assert found.outputs["alpha"].max() > 0.9


def test_finite_differences_of_the_engine_agree(gaussian_engine: Engine) -> None:
    """A large surfel seen at an angle has few branches; the engine's own images give its gradients."""
    scene = {
        "means": torch.tensor([[0.1, -0.1, 2.0]]),
        "quats": torch.tensor([[1.0, 0.3, -0.2, 0.4]]),
        "scales": torch.tensor([[0.9, 0.6, 1.0]]),
        "opacities": torch.tensor([0.8]),
        "colors": torch.tensor([[0.9, 0.4, 0.2]]),
    }
    case = SurfelCase(scene, background=False)
    weights = torch.zeros(38, 52, 3)
    weights[10:26, 14:36] = torch.rand(16, 22, 3, generator=torch.Generator().manual_seed(1))
    found = run(gaussian_engine, case, {"color": weights}).gradients
    for name in ("means", "quats", "scales", "opacities", "colors"):
        direction = torch.randn(scene[name].shape, generator=torch.Generator().manual_seed(2))
        step, losses = 2e-3, []
        for sign in (1, -1):
            there = {**scene, name: scene[name] + sign * step * direction}
            image = run(gaussian_engine, replace(case, scene=there), outputs=("color",)).outputs["color"][0]
            losses.append(float((image.astype(np.float64) * weights.numpy()).sum()))
        slope = (losses[0] - losses[1]) / (2 * step)
        expects = float((found[name] * direction.numpy()).sum())
        assert abs(slope - expects) < 5e-3 * max(abs(expects), 1.0), name


def test_several_cameras_and_scenes_are_as_one_by_one(gaussian_engine: Engine) -> None:
    first, second = cloud(30, seed=1), cloud(30, seed=2)
    cameras = [
        Camera.opencv(40.0, 40.0, 20.0, 15.0, turned(0.0, 0.1 * k, 0.0), (0.1 * k, 0.0, 0.2), 40, 30) for k in range(4)
    ]
    both = {name: torch.stack([first[name], second[name]]) for name in first}
    settings = Settings(primitive="surfel")
    names = ("color", "normals", "distortion", "median_depth")
    wanted = ("means", "scales", "colors")
    outputs, state = gaussian_engine.forward(Gaussians(**both), cameras, settings, outputs=names, retain=True)
    upstream = {name: torch.ones_like(value) for name, value in outputs.items()}
    gradients = gaussian_engine.backward(state, upstream, wanted)[0]
    for index, scene in enumerate((first, second)):
        part = slice(2 * index, 2 * index + 2)
        alone, kept = gaussian_engine.forward(Gaussians(**scene), cameras[part], settings, outputs=names, retain=True)
        of_alone = gaussian_engine.backward(kept, {k: torch.ones_like(v) for k, v in alone.items()}, wanted)[0]
        for name in names:
            assert_image(outputs[name][part].numpy(), alone[name].numpy(), 1e-6)
        for name in wanted:
            assert_relative(name, gradients[name][index].numpy(), of_alone[name].numpy(), 1e-5, 1e-6)


def test_nothing_to_see_is_background_and_zeros(gaussian_engine: Engine) -> None:
    case = SurfelCase({name: value[:0] for name, value in cloud().items()})
    found = run(gaussian_engine, case).outputs
    assert (found["color"] == case.colors().numpy()).all()
    assert not any(found[name].any() for name in IMAGES if name != "color")


PINHOLE = PinholeLens(fx=40.0, fy=40.0, cx=20.0, cy=15.0)
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "fisheye": ("cameras", {"model": "fisheye"}),
    "distortion": ("cameras", {"distortion": [0.1, 0.0, 0.0, 0.0]}),
    "sensor": ("cameras", {"sensor": True}),
    "inria": ("semantics", {"semantics": "inria_exact"}),
    "antialiased": ("antialiased", {"antialiased": True}),
    "rays": ("response", {"response": "ray"}),
    "pixel centre": ("pixel_center", {"pixel_center": 0.0}),
    "conics": ("outputs", {"outputs": ("conics",)}),
    "inverse depth": ("outputs", {"outputs": ("inverse_depth",)}),
    "covariances": ("covariances", {"covariances": True}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_surfels_do_not_have_is_refused_by_its_name(name: str) -> None:
    argument, given = REFUSED[name]
    rest = dict(given)
    scene = cloud(3)
    if rest.pop("covariances", False):
        scene = {key: value for key, value in scene.items() if key not in ("quats", "scales")}
        scene["covariances"] = torch.ones(3, 6)
    outputs = rest.pop("outputs", ("color",))
    pose = (np.eye(3), np.zeros(3), 40, 30)
    lens = {key: rest.pop(key) for key in ("model", "distortion") if key in rest}
    camera = Camera.opencv(40.0, 40.0, 20.0, 15.0, *pose, **lens)
    if rest.pop("sensor", False):
        camera = Camera.sensor(PINHOLE, *pose)
    with pytest.raises(ArgumentError, match=argument):
        forward(Gaussians(**scene), [camera], Settings(primitive="surfel", **rest), outputs=outputs)


def test_outputs_of_surfels_are_refused_without_them() -> None:
    camera = SurfelCase(cloud(3)).camera()
    for name in ("median_depth", "normals", "surface_normals", "distortion"):
        with pytest.raises(ArgumentError, match="outputs"):
            forward(Gaussians(**cloud(3)), [camera], Settings(), outputs=(name,))
    with pytest.raises(ArgumentError, match="primitive"):
        Settings(primitive="disc")
