"""Parameters of sensors in gsplat's function: gsplat's own classes are accepted, and errors name its arguments."""

from __future__ import annotations

from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lumigrad.client.compat import gsplat
from support.gaussians.sensor_arguments import lidar_parameters
from support.gaussians.splats import HEIGHT, WIDTH, splats
from support.workers.worker import WorkerProcess

SIZE = {"width": WIDTH, "height": HEIGHT}
TABLES = {"lidar_elevations": torch.linspace(0.3, -0.3, 8), "lidar_azimuths": torch.linspace(0.5, -0.5, 20)}
TABLES |= {"lidar_offsets": torch.zeros(8)}
ALONG = {"with_ut": True, "with_eval3d": True, "packed": False}


class Polynomial(IntEnum):
    """A copy of gsplat's enumeration."""

    PIXELDIST_TO_ANGLE = 0
    ANGLE_TO_PIXELDIST = 1


def scene() -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in splats(cameras=1).items()}


def f_theta(reference: Any) -> Any:
    """The attributes of gsplat's own class, whose reference is a number."""
    return SimpleNamespace(
        reference_poly=reference,
        pixeldist_to_angle_poly=[0.0, 1 / 40, 0, 0, 0, 0],
        angle_to_pixeldist_poly=[0.0, 44.0, 0, -2, 0, 0],
        max_angle=0.9,
        linear_cde=[1.0, 0.0, 0.0],
    )


def rendered(target: str, **options: Any) -> torch.Tensor:
    given: dict[str, Any] = {**scene(), **SIZE, "packed": False, "with_ut": True, "target": target, **options}
    return gsplat.rasterization(**given)[0]


@pytest.mark.parametrize("name", ["ANGLE_TO_PIXELDIST", "PIXELDIST_TO_ANGLE"])
def test_the_reference_of_gsplats_own_f_theta_lens_is_a_number(name: str, worker_process: WorkerProcess) -> None:
    images = [
        rendered(worker_process.target, camera_model="ftheta", ftheta_coeffs=f_theta(reference))
        for reference in (gsplat.FThetaPolynomialType[name], Polynomial[name], int(Polynomial[name]))
    ]
    assert images[0].max() > 0.3 and torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])
    other = 1 - Polynomial[name]
    others = rendered(worker_process.target, camera_model="ftheta", ftheta_coeffs=f_theta(other))
    assert not torch.equal(images[0], others)


def test_an_f_theta_lens_without_a_limit_sees_all_around(worker_process: WorkerProcess) -> None:
    images = []
    for angle in (torch.pi, 1000.0):
        lens = f_theta(gsplat.FThetaPolynomialType.ANGLE_TO_PIXELDIST)
        lens.max_angle = angle
        images.append(rendered(worker_process.target, camera_model="ftheta", ftheta_coeffs=lens))
    assert images[0].max() > 0.3 and torch.equal(*images)


def test_cameras_may_share_rays(worker_process: WorkerProcess) -> None:
    generator = torch.Generator().manual_seed(1)
    rays = torch.zeros(HEIGHT, WIDTH, 6)
    rays[..., 3:] = torch.nn.functional.normalize(
        torch.randn(HEIGHT, WIDTH, 3, generator=generator) * 0.2 + torch.eye(3)[2], dim=-1
    )
    views = {"viewmats": torch.eye(4).expand(2, 4, 4), "Ks": scene()["Ks"].expand(2, 3, 3)}
    given = [shape.clone().requires_grad_() for shape in (rays.expand(2, -1, -1, -1), rays[None], rays)]
    images = [rendered(worker_process.target, with_eval3d=True, rays=each, **views) for each in given]
    assert images[0].max() > 0.3 and torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])
    for image in images:
        image.sum().backward()
    torch.testing.assert_close(given[2].grad, given[0].grad.sum(0))
    torch.testing.assert_close(given[1].grad[0], given[0].grad.sum(0))
    wrong = rays.expand(3, -1, -1, -1)
    with pytest.raises(
        gsplat.GsplatArgumentError, match=r"^rays: expected shape \[2, 30, 40, 6\], got \[3, 30, 40, 6\]"
    ):
        rendered(worker_process.target, with_eval3d=True, rays=wrong, **views)


def test_numbers_stand_for_the_other_enums(worker_process: WorkerProcess) -> None:
    facing = torch.tensor([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]).T[None]
    options = {**ALONG, "camera_model": "lidar", "viewmats": facing, "global_z_order": False}
    named, numbered = (
        rendered(worker_process.target, lidar_coeffs=lidar_parameters(TABLES, spinning_direction=way), **options)
        for way in (gsplat.SpinningDirection.CLOCKWISE, 0)
    )
    assert named.max() > 0.3 and torch.equal(named, numbered)
    glass = [
        SimpleNamespace(reference_poly=kind, horizontal_poly=torch.tensor([0.02, 1, 0]), vertical_poly=torch.ones(1))
        for kind in (gsplat.ExternalDistortionReferencePolynomial.FORWARD, 1)
    ]
    bent = [rendered(worker_process.target, external_distortion_coeffs=kind) for kind in glass]
    assert torch.equal(*bent)


@pytest.mark.parametrize("order", [1, 3])
def test_a_windshield_that_bends_nothing_may_stand_before_parallel_rays(
    order: int, worker_process: WorkerProcess
) -> None:
    along, across = (torch.zeros((order + 1) * (order + 2) // 2) for _ in range(2))
    along[1], across[order + 1] = 1.0, 1.0
    glass = SimpleNamespace(
        reference_poly=gsplat.ExternalDistortionReferencePolynomial.FORWARD,
        **{"horizontal_poly": along, "horizontal_poly_inverse": along},
        **{"vertical_poly": across, "vertical_poly_inverse": across},
    )
    # Before a pinhole camera the same windshield is sent, and changes nothing either.
    for model in ("ortho", "pinhole"):
        given = {**ALONG, "camera_model": model, "Ks": torch.tensor([[[12.0, 0, 20], [0, 12, 15], [0, 0, 1]]])}
        plain = rendered(worker_process.target, **given)
        behind = rendered(worker_process.target, **given, external_distortion_coeffs=glass)
        assert plain.max() > 0.3
        torch.testing.assert_close(behind, plain, rtol=0, atol=1e-4 if model == "pinhole" else 0)
    for name in ("horizontal_poly", "vertical_poly"):
        bent = SimpleNamespace(**{**vars(glass), name: getattr(glass, name) + 0.01})
        with pytest.raises(gsplat.GsplatArgumentError, match=r"^external_distortion_coeffs: expected none with an ort"):
            rendered("localhost:1", **ALONG, camera_model="ortho", external_distortion_coeffs=bent)


class Named(Enum):
    """gsplat's shutters with other numbers: their names count."""

    GLOBAL = 7
    ROLLING_TOP_TO_BOTTOM = 4


class Numbered(IntEnum):
    """A copy of gsplat's enumeration."""

    ROLLING_TOP_TO_BOTTOM = 0
    GLOBAL = 4


class RendererConfig_MixedBatch:
    """Named like gsplat's default renderer."""


def test_defaults_of_gsplat_may_be_named(worker_process: WorkerProcess) -> None:
    plain = rendered(worker_process.target, with_ut=False)
    named = [{"rolling_shutter": shutter} for shutter in (Named.GLOBAL, Numbered.GLOBAL, 4)]
    for options in (*named, {"renderer_config": RendererConfig_MixedBatch()}):
        assert torch.equal(rendered(worker_process.target, with_ut=False, **options), plain), options


@pytest.mark.parametrize("shutter", [Named.ROLLING_TOP_TO_BOTTOM, Numbered.ROLLING_TOP_TO_BOTTOM])
def test_shutters_of_gsplat_roll_with_sigma_points(shutter: Any) -> None:
    with pytest.raises(gsplat.GsplatArgumentError, match=r"^rolling_shutter: expected GLOBAL without with_ut=True"):
        rendered("localhost:1", rolling_shutter=shutter, with_ut=False)
    with pytest.raises(gsplat.GsplatArgumentError, match=r"^viewmats_rs: expected poses with the shutter top_to_b"):
        rendered("localhost:1", rolling_shutter=shutter)


LIDAR = {**ALONG, "camera_model": "lidar", "global_z_order": False, "Ks": None}
SCALED = torch.diag(torch.tensor([2.0, 2, 2, 1]))[None]


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        (
            {"row_elevations_rad": torch.linspace(-0.3, 0.3, 8)},
            "row_elevations_rad: expected elevations from the highest to the lowest",
        ),
        (
            {"spinning_direction": gsplat.SpinningDirection.COUNTER_CLOCKWISE},
            "column_azimuths_rad: expected azimuths of at most one turn",
        ),
        ({"row_azimuth_offsets_rad": torch.zeros(7)}, r"row_azimuth_offsets_rad: expected .* \[8\]"),
        ({"row_azimuth_offsets_rad": torch.full((8,), torch.nan)}, "row_azimuth_offsets_rad: expected finite"),
        (
            {"row_elevations_rad": torch.linspace(0.3, -0.3, 5000), "row_azimuth_offsets_rad": torch.zeros(5000)},
            "row_elevations_rad: expected .* 4096",
        ),
    ],
)
def test_errors_of_lidars_name_their_argument(tables: dict[str, Any], text: str, worker_process: WorkerProcess) -> None:
    with pytest.raises(gsplat.GsplatArgumentError, match=rf"^lidar_coeffs\.{text}"):
        rendered(worker_process.target, lidar_coeffs=lidar_parameters(TABLES, **tables), **LIDAR)


@pytest.mark.parametrize("name", ["viewmats", "viewmats_rs"])
def test_errors_of_poses_name_their_argument(name: str, worker_process: WorkerProcess) -> None:
    moving = {"viewmats_rs": torch.eye(4)[None], "rolling_shutter": gsplat.RollingShutterType.ROLLING_TOP_TO_BOTTOM}
    with pytest.raises(gsplat.GsplatArgumentError, match=f"^{name}: expected a rotation: orthonormal"):
        rendered(worker_process.target, **{**moving, name: SCALED})
    with pytest.raises(gsplat.GsplatArgumentError, match=f"^{name}: expected finite"):
        rendered(worker_process.target, **{**moving, name: torch.nan * SCALED})


RADIAL, TANGENTIAL, POSES = torch.tensor([[-0.2, 0.05]]), torch.zeros(1, 2), torch.eye(4)[None]
ROLLING = gsplat.RollingShutterType.ROLLING_TOP_TO_BOTTOM


TABLES_OF = {**LIDAR, "lidar_coeffs": lidar_parameters(TABLES)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"with_ut": False, "lidar_coeffs": 1}, "lidar_coeffs: expected None without with_ut=True"),
        ({"rays": torch.zeros(1), "with_eval3d": True}, "rays: expected shape"),
        ({"camera_model": "lidar", "radial_coeffs": RADIAL}, "radial_coeffs: expected None with the camera model"),
        ({"lidar_coeffs": 1}, 'lidar_coeffs: expected None unless camera_model is "lidar"'),
        ({"camera_model": "fisheye", "radial_coeffs": RADIAL}, "radial_coeffs: expected 4 coefficients of each camera"),
        ({"radial_coeffs": torch.zeros(1, 7)}, "radial_coeffs: expected 1 to 6 coefficients of each camera, got 7"),
        ({"viewmats_rs": POSES}, "viewmats_rs: expected None with the shutter GLOBAL"),
        ({"rolling_shutter": ROLLING}, "viewmats_rs: expected poses with the shutter top_to_bottom"),
        ({"rolling_shutter": "sideways"}, "rolling_shutter: expected a RollingShutterType, got"),
        ({**TABLES_OF, "with_eval3d": False}, "with_eval3d: expected True with a"),
        ({**TABLES_OF, "rolling_shutter": ROLLING}, "rolling_shutter: expected GL"),
        ({**TABLES_OF, "external_distortion_coeffs": 1}, "external_distortion_coeffs: expected None with a lidar"),
        ({**LIDAR, "lidar_coeffs": lidar_parameters(TABLES, row_elevations_rad=None)}, "row_elevations_rad: expected"),
        ({**LIDAR, "lidar_coeffs": lidar_parameters(TABLES, spinning_direction="up")}, "spinning_direction: expected"),
        ({"camera_model": "ftheta", "ftheta_coeffs": {}}, "expected FThetaCameraDistortionParameters, got dict"),
        ({"external_distortion_coeffs": {}}, "expected BivariateWindshieldModelParameters, got dict"),
        ({**LIDAR, "lidar_coeffs": {}}, "expected RowOffsetStructuredSpinningLidarModelParameters, got dict"),
        ({"ut_params": {}}, "ut_params: expected UnscentedTransformParameters, got dict"),
        *(
            ({"camera_model": "ftheta", "ftheta_coeffs": f_theta(reference)}, "ftheta_coeffs.reference_poly: expected")
            for reference in (2, -1, True, "sideways", None)
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(gsplat.GsplatArgumentError) as error:
        rendered("localhost:1", **options)
    assert text in str(error.value)
