"""Sensors through `render_gaussians` and gsplat's function on a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import (
    Camera,
    Client,
    FisheyeLens,
    Gaussians,
    InvalidArgument,
    PinholeLens,
    SpinningLidar,
    UnscentedTransform,
    Windshield,
)
from lumigrad.client.compat import gsplat
from lumigrad.client.compat.gsplat import (
    BivariateWindshieldModelParameters,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RollingShutterType,
    UnscentedTransformParameters,
)
from lumigrad.client.torch import render_gaussians
from support.backends.gaussian_engines import cpu
from support.closeness import assert_image, assert_relative
from support.files.documents import ROOT, run_code_of
from support.gaussians.lidars import CASES as LIDARS
from support.gaussians.sensor_arguments import leaf, lidar_parameters, operator_arguments, pose6
from support.gaussians.sensor_cases import (
    CASES,
    END,
    FOCAL,
    FTHETA,
    GLASS,
    HEIGHT,
    RAY_CASES,
    SLICES,
    START,
    WIDTH,
    run,
    scene,
)


def test_classes_of_gsplat_are_accepted_or_refused(client: Client) -> None:
    plain = {**sensor_arguments(), "packed": False, "target": client.target}
    named = gsplat.rasterization(**plain, renderer_config=gsplat.RendererConfig_MixedBatch())[0]
    assert torch.equal(named, gsplat.rasterization(**plain)[0])
    with pytest.raises(gsplat.GsplatArgumentError, match=r"^renderer_config: .* with with_eval3d=False"):
        gsplat.rasterization(**plain, renderer_config=gsplat.RendererConfig_ParallelBatch())


def sensor_arguments() -> dict[str, Any]:
    """A rolling OpenCV lens behind glass."""
    tensors = scene(30)
    glass = BivariateWindshieldModelParameters()
    glass.horizontal_poly, glass.vertical_poly = leaf(GLASS.horizontal), leaf(GLASS.vertical)
    return {
        **{name: tensor.clone().requires_grad_() for name, tensor in tensors.items()},
        "viewmats": leaf(START[None], torch.float64),
        "viewmats_rs": leaf(END[None], torch.float64),
        "Ks": leaf([[[FOCAL["fx"], 0, FOCAL["cx"]], [0, FOCAL["fy"], FOCAL["cy"]], [0, 0, 1]]], torch.float64),
        "radial_coeffs": leaf([[-0.2, 0.05]], torch.float64),
        "tangential_coeffs": leaf([[0.003, -0.002]], torch.float64),
        "external_distortion_coeffs": glass,
        "rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM,
        "with_ut": True,
        "width": WIDTH,
        "height": HEIGHT,
        "ut_params": UnscentedTransformParameters(alpha=1.0),
    }


def loss(arguments: dict[str, Any], client: Client) -> torch.Tensor:
    # No limits at which contributions begin and end, so that differences are smooth.
    limits = {"alpha_min": 1e-6, "transmittance_min": 0.0}
    result = render_gaussians(**operator_arguments(arguments), **limits, outputs=("alpha",), client=client)
    weights = torch.linspace(0, 1.5, result.color.numel(), dtype=torch.float64).cos().reshape(result.color.shape)
    return (result.color.double() * weights).sum()


def moved_along(arguments: dict[str, Any], name: str, direction: torch.Tensor, step: float) -> dict[str, Any]:
    return {**arguments, name: (arguments[name] + step * direction).detach()}


@pytest.mark.parametrize(
    ("name", "direction", "step"),
    [
        ("radial_coeffs", [[1.0, 0.3]], 1e-3),
        ("tangential_coeffs", [[0.5, 1.0]], 1e-3),
        ("viewmats_rs", np.outer([0.6, -0.4, 0.2, 0], [0, 0, 0, 1])[None], 2e-3),
        ("viewmats", np.outer([0.6, -0.4, 0.2, 0], [0, 0, 0, 1])[None], 2e-3),
        ("Ks", [[[1.0, 0, -0.5], [0, 0.7, 0.2], [0, 0, 0]]], 0.05),
    ],
)
def test_gradients_are_those_of_differences(client: Client, name: str, direction: Any, step: float) -> None:
    arguments = sensor_arguments()
    loss(arguments, client).backward()
    toward = torch.tensor(np.asarray(direction), dtype=torch.float64)
    expected = float((arguments[name].grad * toward).sum())
    with torch.no_grad():
        ahead, behind = (loss(moved_along(arguments, name, toward, sign * step), client) for sign in (1, -1))
    assert abs(expected) > 0.05
    assert float(ahead - behind) / (2 * step) == pytest.approx(expected, rel=0.02)
    glass = arguments["external_distortion_coeffs"]
    assert glass.horizontal_poly.grad.abs().max() > 0 and glass.horizontal_poly.grad.shape == (10,)


@pytest.mark.parametrize("model", ["pinhole", "ftheta"])
def test_gradients_by_the_jacobian_are_those_of_differences(client: Client, model: str) -> None:
    """All numbers of the lens are checked at once; their gradients include second derivatives of the lens."""
    arguments = {name: value for name, value in sensor_arguments().items() if name not in BY_JACOBIAN}
    leaves = {name: arguments[name] for name in ("means", "scales", "Ks", "viewmats")}
    glass = arguments["external_distortion_coeffs"]
    leaves |= {"horizontal": glass.horizontal_poly, "vertical": glass.vertical_poly}
    if model == "ftheta":
        del arguments["radial_coeffs"], arguments["tangential_coeffs"]
        polynomial, linear = leaf(FTHETA.angle_to_pixel_distance), leaf(FTHETA.linear)
        leaves |= {"polynomial": polynomial, "linear": linear}
        inverse = torch.tensor(FTHETA.pixel_distance_to_angle)
        kind = FThetaPolynomialType.ANGLE_TO_PIXELDIST
        arguments["ftheta_coeffs"] = FThetaCameraDistortionParameters(kind, inverse, polynomial, 1.4, linear)
        arguments["camera_model"] = model
    else:
        leaves |= {name: arguments[name] for name in ("radial_coeffs", "tangential_coeffs")}
    loss(arguments, client).backward()
    random = torch.Generator().manual_seed(7)
    found = 0.0
    ways = {}
    for name, tensor in leaves.items():
        scale = {"Ks": 20.0, "polynomial": 5.0, "viewmats": 0.0}.get(name, 0.3)
        ways[name] = scale * torch.randn(tensor.shape, generator=random, dtype=torch.float64)
        if name == "Ks":
            ways[name] *= torch.tensor([[1.0, 0, 1], [0, 1, 1], [0, 0, 0]])
        if name == "viewmats":
            ways[name][0, :3, 3] = torch.tensor([0.5, -0.4, 0.6])
        assert tensor.grad is not None and bool(tensor.grad.any()), name
        found += float((tensor.grad * ways[name]).sum())
    values = []
    with torch.no_grad():
        for step in (1e-3, -1e-3):
            for name, tensor in leaves.items():
                tensor += step * ways[name]
            values.append(float(loss(arguments, client)))
            for name, tensor in leaves.items():
                tensor -= step * ways[name]
    assert abs(found) > 0.05
    assert (values[0] - values[1]) / 2e-3 == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
def test_rays_go_with_projection_by_the_jacobian(client: Client, model: str) -> None:
    arguments = sensor_arguments()
    names = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "width", "height")
    given = {name: arguments[name] for name in names} | {"camera_model": model, "with_eval3d": True}
    # Sigma points may be far outside the image: in a parallel view, Gaussians near the camera are not small there.
    anywhere = UnscentedTransformParameters(in_image_margin_factor=20.0)
    sigma_points = {**given, "with_ut": True, "ut_params": anywhere}
    outputs = ("alpha", "hit_distance")
    by_points = render_gaussians(**operator_arguments(sigma_points), outputs=outputs, client=client)
    result = render_gaussians(**operator_arguments(given), outputs=outputs, client=client)
    # Both ways find the same Gaussians visible, so the pixels are those of the same rays.
    assert (result.color - by_points.color).abs().max() < 1e-6 < result.color.abs().max()
    (result.color.sum() + result.hit_distance.sum()).backward()
    assert all(bool(given[name].grad.any()) for name in ("means", "scales", "viewmats", "Ks"))
    image, alpha, meta = gsplat.rasterization(
        **given, packed=False, render_mode="RGB-Ed", return_normals=True, target=client.target
    )
    assert (alpha[..., 0] - result.alpha).abs().mean() < 2e-3 and image.shape[-1] == 4
    assert meta["normals"].abs().max() > 0.1 and bool((meta["radii"] > 0).any())
    with pytest.raises(gsplat.GsplatArgumentError, match="packed: expected False with with_eval3d=True"):
        gsplat.rasterization(**given, packed=True, target=client.target)


def test_both_poses_of_moving_slices_have_the_gradients_of_differences(client: Client) -> None:
    ends = [leaf(matrix, torch.float64) for matrix in (SLICES[0].matrix, SLICES[0].matrix_end)]
    still = leaf(SLICES[1].matrix, torch.float64)

    def arguments_with(*matrices: torch.Tensor) -> dict[str, Any]:
        return {**sensor_arguments(), "transforms": [(0, 4, still), (8, 24, *matrices)]}

    loss(arguments_with(*ends), client).backward()
    assert still.grad is not None and bool(still.grad.any())
    for k, push in enumerate(((0.6, -0.4, 0.2), (-0.3, 0.5, 0.4))):
        toward = torch.zeros(4, 4, dtype=torch.float64)
        toward[:3, 3] = torch.tensor(push)
        grad = ends[k].grad
        assert grad is not None
        expected, values = float((grad * toward).sum()), []
        with torch.no_grad():
            for step in (2e-3, -2e-3):
                changed = [end + step * toward if k == i else end for i, end in enumerate(ends)]
                values.append(float(loss(arguments_with(*changed), client)))
        assert abs(expected) > 0.05
        assert (values[0] - values[1]) / 4e-3 == pytest.approx(expected, rel=0.02)


def test_a_turn_of_the_end_pose_has_the_gradient_of_differences(client: Client) -> None:
    arguments = sensor_arguments()
    loss(arguments, client).backward()
    xi = np.array([0.0, 0, 0, 0.5, -0.7, 0.4])
    expected = float(pose6(END[None], arguments["viewmats_rs"].grad.numpy())[0] @ xi)
    skew = np.zeros((4, 4))
    skew[:3, :3] = np.cross(xi[3:], np.eye(3)).T
    values = []
    with torch.no_grad():
        for step in (1e-3, -1e-3):
            turn = torch.linalg.matrix_exp(torch.tensor(step * skew)) @ torch.tensor(END)
            values.append(float(loss({**arguments, "viewmats_rs": turn[None]}, client)))
    assert (values[0] - values[1]) / 2e-3 == pytest.approx(expected, rel=0.02)


def test_the_client_renders_and_differentiates_sensors(client: Client) -> None:
    arguments = sensor_arguments()
    result = render_gaussians(**operator_arguments(arguments), outputs=("alpha",), client=client)
    (2 * result.color).sum().backward()
    cloud = Gaussians(**{name: arguments[name].detach().numpy() for name in ("means", "quats", "scales", "opacities")},
                      colors=arguments["colors"].detach().numpy())  # fmt: skip
    camera = Camera.sensor(
        PinholeLens(**FOCAL, radial=(-0.2, 0.05), tangential=(0.003, -0.002)),
        START[:3, :3],
        START[:3, 3],
        WIDTH,
        HEIGHT,
        shutter="top_to_bottom",
        end_rotation=END[:3, :3],
        end_translation=END[:3, 3],
        windshield=Windshield(horizontal=np.float32(GLASS.horizontal), vertical=np.float32(GLASS.vertical)),
    )
    frame = client.render(client.put(cloud), camera, unscented=UnscentedTransform(alpha=1.0), retain=True)
    np.testing.assert_array_equal(frame.color, result.color[0].detach().numpy())
    gradients = frame.backward(color=np.full_like(frame.color, 2), wanted=("cameras", "lenses"))
    assert gradients.camera_pose_end.shape == (6,) and gradients.lens_radial.shape == (6,)
    np.testing.assert_allclose(gradients.lens_radial[:2], arguments["radial_coeffs"].grad[0], rtol=1e-5)
    np.testing.assert_allclose(gradients.camera_translation_end, arguments["viewmats_rs"].grad[0, :3, 3], rtol=1e-5)
    spread = client.render(cloud, [camera, camera], unscented=UnscentedTransform(alpha=1.0), spread=True)
    assert spread.backward(color=spread.color, wanted=("lenses",)).windshield_vertical.shape == (2, 6)


def test_the_client_renders_and_differentiates_along_rays(client: Client) -> None:
    case = RAY_CASES["given"]
    assert case.rays is not None
    rays = leaf(case.rays[None], torch.float32)
    film = [[case.lens.fx, 0, case.lens.cx], [0, case.lens.fy, case.lens.cy], [0, 0, 1]]
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in case.scene.items()}
    arguments: dict[str, Any] = {
        **tensors,
        "viewmats": leaf(START[None], torch.float64),
        "Ks": leaf([film], torch.float64),
        "radial_coeffs": leaf([case.lens.radial], torch.float64),
        "tangential_coeffs": leaf([case.lens.tangential], torch.float64),
        "thin_prism_coeffs": leaf([case.lens.thin_prism], torch.float64),
        "rays": rays,
        "width": WIDTH,
        "height": HEIGHT,
        "with_ut": True,
        "with_eval3d": True,
        "outputs": ("alpha", "hit_distance", "expected_hit_distance", "normals", "means2d"),
    }
    result = render_gaussians(**operator_arguments(arguments), client=client)
    assert result.hit_distance is not None and result.normals is not None and result.means2d is not None
    assert not result.means2d.requires_grad
    (result.hit_distance.sum() + 2 * result.normals.sum()).backward()
    lens = PinholeLens(**vars(case.lens))
    pose = START[:3, :3], START[:3, 3], WIDTH, HEIGHT
    cameras = [Camera.sensor(lens, *pose, rays=case.rays.numpy()), Camera.sensor(lens, *pose, rays=case.rays.numpy())]
    cloud = Gaussians(**{name: tensor.numpy() for name, tensor in case.scene.items()})
    names = ("hit_distance", "expected_hit_distance", "normals")
    spread = client.render(cloud, cameras, response="ray", outputs=names, spread=True)
    frame = client.render(client.put(cloud), cameras[0], response="ray", outputs=names, retain=True)
    for name in names:
        np.testing.assert_array_equal(spread[name][1], frame[name])
        assert_image(frame[name], getattr(result, name)[0].detach().numpy(), 1e-5)
    upstream = {"hit_distance": np.ones_like(frame.hit_distance), "normals": np.full_like(frame.normals, 2)}
    gradients = frame.backward(**upstream, wanted=("rays", "means"))
    assert rays.grad is not None and rays.grad.abs().max() > 0
    np.testing.assert_allclose(gradients.rays, rays.grad[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients.means, tensors["means"].grad, rtol=1e-5, atol=1e-5)
    stacked = {name: np.stack([value, value]) for name, value in upstream.items()}
    assert spread.backward(**stacked, wanted=("rays",)).rays.shape == (2, HEIGHT, WIDTH, 6)


def test_the_client_renders_and_differentiates_lidars(client: Client) -> None:
    """Images and gradients are those of the kernels; the largest tables work as well."""
    case = LIDARS["moving"]
    lidar = SpinningLidar(**vars(case.lens))
    assert case.end is not None
    camera = Camera.sensor(
        lidar,
        case.start[:3, :3],
        case.start[:3, 3],
        *lidar.size,
        shutter="left_to_right",
        end_rotation=case.end[:3, :3],
        end_translation=case.end[:3, 3],
    )
    cloud = Gaussians(**{name: tensor.numpy() for name, tensor in case.scene.items()})
    names = ("color", "hit_distance")
    frame = client.render(cloud, camera, response="ray", depth_order="distance", outputs=names, retain=True)
    made = run(cpu(), case, {"hit_distance": torch.ones(case.height, case.width)})
    for name in names:
        np.testing.assert_array_equal(frame[name], made.outputs[name])
    gradients = frame.backward(hit_distance=np.ones_like(frame.hit_distance), wanted=("lenses", "cameras"))
    for name in ("lidar_elevations", "lidar_azimuths", "lidar_offsets", "camera_pose_end"):
        np.testing.assert_array_equal(gradients[name], made.gradients[name][0])
    widest = SpinningLidar(row_elevations=[0.0], column_azimuths=np.linspace(-3, 3, 65536))
    scan = Camera.sensor(widest, np.eye(3), np.zeros(3), *widest.size)
    found = client.render(cloud, scan, response="ray", depth_order="distance", outputs=("alpha",), retain=True)
    assert found.alpha.shape == (1, 65536) and found.alpha.any()
    assert found.backward(alpha=found.alpha, wanted=("lenses",)).lidar_azimuths.shape == (65536,)
    for argument, change in {
        "row_azimuth_offsets": {"row_azimuth_offsets": [0.0, 0.0]},
        "column_azimuths": {"column_azimuths": []},
        "row_elevations": {"row_elevations": [[0.0]]},
        "direction": {"direction": "up"},
    }.items():
        with pytest.raises(InvalidArgument, match=f"^{argument}: expected"):
            SpinningLidar(**{"row_elevations": [0.0], "column_azimuths": [0.0], **change})
    with pytest.raises(InvalidArgument, match=r"^camera: expected one with focal lengths"):
        scan.K  # noqa: B018


def test_the_operator_moves_lidars_as_the_kernels_do(client: Client) -> None:
    case = LIDARS["moving"]
    lidar = case.lens
    tables = {
        "lidar_elevations": leaf(lidar.row_elevations, torch.float64),
        "lidar_azimuths": leaf(lidar.column_azimuths, torch.float64),
        "lidar_offsets": leaf(lidar.row_azimuth_offsets, torch.float64),
    }
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in case.scene.items()}
    colors = tensors.pop("sh")
    start, end = leaf(case.start[None], torch.float64), leaf(np.array(case.end)[None], torch.float64)
    arguments: dict[str, Any] = {
        **tensors,
        "colors": colors,
        "sh_degree": 2,
        "viewmats": start,
        "viewmats_rs": end,
        "width": 1,
        "height": 1,
        "camera_model": "lidar",
        "lidar_coeffs": lidar_parameters(tables),
        "with_ut": True,
        "with_eval3d": True,
        "global_z_order": False,
        "outputs": ("alpha", "hit_distance"),
        "client": client,
    }
    result = render_gaussians(**operator_arguments(arguments))
    made = run(cpu(), case, {"hit_distance": torch.ones(case.height, case.width)})
    assert result.hit_distance is not None
    assert_image(result.hit_distance[0].detach().numpy(), made.outputs["hit_distance"], 1e-5)
    result.hit_distance.sum().backward()
    for name, table in tables.items():
        assert_relative(name, table.grad.numpy(), made.gradients[name][0], 1e-5, 1e-6)
    assert_relative("end", end.grad[0, :3, 3].numpy(), made.gradients["camera_translation_end"][0], 1e-5, 1e-6)


def test_opencvs_cameras_are_projected_by_sigma_points_on_request(client: Client) -> None:
    tensors = {name: tensor.numpy() for name, tensor in CASES["opencv"].scene.items()}
    pose = START[:3, :3], START[:3, 3], WIDTH, HEIGHT
    film = {**FOCAL, "fx": 40.0, "fy": 41.0}
    plain = Camera.opencv(*film.values(), *pose, model="fisheye")
    sensor = Camera.sensor(FisheyeLens(**film), *pose)
    cloud = Gaussians(**tensors)
    by_points = client.render(cloud, plain, projection_method="unscented", depth_order="distance")
    np.testing.assert_array_equal(by_points.color, client.render(cloud, sensor, depth_order="distance").color)
    assert np.abs(by_points.color - client.render(cloud, plain).color).max() > 1e-3


def test_scenes_of_a_batch_have_their_own_lenses(client: Client) -> None:
    arguments = sensor_arguments()
    batched = {
        name: torch.stack([value, value]).detach() if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    batched["radial_coeffs"] = torch.stack([arguments["radial_coeffs"], 0 * arguments["radial_coeffs"]]).detach()
    batched["radial_coeffs"].requires_grad_()
    result = render_gaussians(**operator_arguments(batched), client=client)
    alone = render_gaussians(**operator_arguments(arguments), client=client)
    assert torch.equal(result.color[0], alone.color) and not torch.equal(result.color[1], alone.color)
    result.color[0].sum().backward()
    assert batched["radial_coeffs"].grad[0].abs().max() > 0 == batched["radial_coeffs"].grad[1].abs().max()


BY_JACOBIAN = {"with_ut": False, "viewmats_rs": None, "rolling_shutter": None, "ut_params": None}
SENSOR = Camera.sensor(PinholeLens(**FOCAL, radial=(-0.2, 0.05)), START[:3, :3], START[:3, 3], WIDTH, HEIGHT)
OTHER = Camera.sensor(PinholeLens(**FOCAL), START[:3, :3], START[:3, 3], WIDTH, HEIGHT)
VIEWS = {"viewmats": torch.tensor(START[None]), "Ks": torch.eye(3)[None]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"camera": SENSOR, "lens": {"k1": torch.zeros(1)}}, "lens: expected names of coefficients that the camera has"),
    ({"camera": SENSOR, "lens": {"radial": torch.zeros(1, 3)}}, "lens['radial']: expected shape [1, 2], got [1, 3]"),
    ({"camera": [SENSOR, OTHER]}, "camera: expected cameras that differ in poses and coefficients alone, but number 1"),
    ({"camera": []}, "camera: expected a Camera or a sequence of at least one, got none"),
    ({"camera": Camera.pulsar([0.0] * 8, 8, 8)}, "camera: expected one of OpenCV's or a sensor, got PulsarModel"),
    ({"camera": SENSOR, "width": 5}, "width: expected None with a camera, got 5"),
    ({"camera": SENSOR, "viewmats_end": VIEWS["viewmats"]}, 'viewmats_end: expected None with the shutter "global"'),
    ({"camera": SENSOR, "outputs": ("normals",)}, 'outputs: normals needs response="ray"'),
    ({"camera": SENSOR, "tile_size": 7}, "tile_size: expected None or one of (4, 8, 16), got 7"),
    ({"camera": SENSOR, "antialiased": True}, "antialiased: expected false with sigma points"),
    ({"camera": SENSOR, "unscented": 3}, "unscented: expected UnscentedTransform, got 3"),
    ({"camera": SENSOR, "tile_bounds": "none"}, "tile_bounds: expected one of"),
    ({**VIEWS, "width": 8}, "width, height: expected numbers of pixels without a camera"),
    ({**VIEWS, "width": 8, "height": 6, "projection": "ftheta"}, "projection: expected one of"),
]


@pytest.mark.parametrize(("change", "text"), REFUSED)
def test_arguments_that_do_not_fit_are_refused(client: Client, change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        render_gaussians(**scene(30), **change, client=client)
    assert text in str(error.value)


def test_a_camera_is_drawn_as_the_client_draws_it(client: Client) -> None:
    tensors = scene(30)
    cloud = Gaussians(**{name: tensor.numpy() for name, tensor in tensors.items()})
    for cameras in (SENSOR, [OTHER, OTHER], Camera.opencv(*FOCAL.values(), START[:3, :3], START[:3, 3], WIDTH, HEIGHT)):
        found = render_gaussians(**tensors, camera=cameras, background=0.25, outputs=(), client=client).color
        expected = client.render(cloud, cameras, background=0.25).color
        np.testing.assert_array_equal(found, expected if isinstance(cameras, list) else expected[None])
    pose = torch.tensor(START[None]).requires_grad_()
    render_gaussians(**tensors, camera=SENSOR, viewmats=pose, client=client).color.sum().backward()
    assert pose.grad is not None and bool(pose.grad.any())


def test_the_code_of_the_document_runs(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUMIGRAD_TARGET", client.target)
    names: dict[str, Any] = run_code_of(ROOT / "docs" / "sensors.md")
    assert np.abs(names["gradients"].camera_pose_end).min() > 0
    assert names["gradients"].lens_radial.shape == (6,)
    assert names["hit"].any() and names["slopes"].camera_pose_end.any()
    assert names["radial"].grad.abs().min() > 0 and names["end"].grad[0, :3, 3].abs().min() > 0
    assert 0.1 < (names["returned"].alpha > 0.5).mean() < 0.6 and Path("lidar.png").stat().st_size > 1000
