"""Attributes of Pulsar's Renderer that its callers read, as PyTorch3D's PulsarPointsRenderer does, and conversions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lumigrad.client.compat.pulsar import Renderer
from support.spheres.pulsar_camera import camera_vectors
from support.workers.worker import WorkerProcess


@dataclass
class PointsCamera:
    """A camera in PyTorch3D's terms: x_cam = x R + T, +x left, +y up, +z ahead.

    Attributes:
        R: [3, 3].
        T: [3].
        scale: focal length of a perspective camera, 1 over half the width of an orthographic one; both in units of half
            the picture's width.
        orthographic: parallel rays.
    """

    R: torch.Tensor
    T: torch.Tensor
    scale: float
    orthographic: bool = False

    def pixel(self, point: torch.Tensor, size: int) -> torch.Tensor:
        """The position (x, y) of a point in a square picture."""
        x, y, z = point @ self.R + self.T
        depth = 1.0 if self.orthographic else z
        return size * (0.5 - 0.5 * self.scale * torch.stack([x, y]) / depth) - 0.5


class PointsRenderer(torch.nn.Module):
    """Renders points of one radius with a camera that may move, but not change its type or size."""

    def __init__(self, renderer: torch.nn.Module, camera: PointsCamera, size: int) -> None:
        super().__init__()
        self.renderer, self.camera, self.size = renderer, camera, size

    def forward(
        self, positions: torch.Tensor, colors: torch.Tensor, radius: float, znear: float, zfar: float, **options: Any
    ) -> torch.Tensor:
        """Renders one picture."""
        native: Any = self.renderer._renderer
        if native.orthogonal != self.camera.orthographic:
            raise ValueError(f"the kind of camera has changed since the renderer was made: {native.orthogonal}")
        if (native.width, native.height) != (self.size, self.size):
            raise ValueError(f"the size has changed since the renderer was made: {native.width} x {native.height}")
        left, up, ahead = self.camera.R.unbind(1)
        rotation = torch.stack([-left, up, -ahead], dim=1)
        focal = 0.0 if self.camera.orthographic else znear - 1e-6
        sensor = 2.0 / self.camera.scale * (1.0 if self.camera.orthographic else focal)
        eye = -self.camera.R @ self.camera.T
        parameters = torch.cat([eye, rotation[:2].flatten(), torch.tensor([focal, sensor, 0.0, 0.0])])
        return self.renderer(
            vert_pos=positions,
            vert_col=colors,
            vert_rad=torch.full((len(positions),), radius),
            cam_params=parameters,
            max_depth=torch.tensor([zfar]),
            min_depth=torch.tensor([znear]),
            bg_col=torch.zeros(colors.shape[1]),
            **options,
        )


SIZE = 48


def camera(azimuth: float, *, orthographic: bool) -> PointsCamera:
    """A camera that looks at the origin from a distance of 4, turned about the y axis."""
    cos, sin = math.cos(azimuth), math.sin(azimuth)
    turned = torch.tensor([[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]])
    return PointsCamera(turned, torch.tensor([0.0, 0.0, 4.0]), 0.5 if orthographic else 2.0, orthographic)


def points_renderer(target: str, seen: PointsCamera) -> PointsRenderer:
    module = Renderer(
        SIZE, SIZE, 10, orthogonal_projection=seen.orthographic, right_handed_system=True, target=target, n_track=4
    )
    return PointsRenderer(module, seen, SIZE)


@pytest.mark.parametrize("orthographic", [False, True])
@pytest.mark.parametrize("azimuth", [0.0, 0.7])
def test_points_are_drawn_where_the_camera_sees_them(
    worker_process: WorkerProcess, azimuth: float, orthographic: bool
) -> None:
    seen = camera(azimuth, orthographic=orthographic)
    point = torch.tensor([[0.5, 0.3, -0.2]], requires_grad=True)
    image = points_renderer(worker_process.target, seen)(
        point, torch.ones(1, 3), 0.2, 1.0, 9.0, gamma=torch.tensor(0.01)
    )
    weights = image[..., 0].detach()
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    centre = torch.stack([(weights * columns).sum(), (weights * rows).sum()]) / weights.sum()
    torch.testing.assert_close(centre, seen.pixel(point.detach()[0], SIZE), atol=0.6, rtol=0)
    (image * columns[..., None]).sum().backward()
    assert point.grad is not None and point.grad.abs().sum() > 0


def test_changes_of_size_and_kind_are_seen(worker_process: WorkerProcess) -> None:
    points = points_renderer(worker_process.target, camera(0.0, orthographic=False))
    arguments = torch.zeros(1, 3), torch.ones(1, 3), 0.2, 1.0, 9.0
    points.size = SIZE + 1
    with pytest.raises(ValueError, match="the size has changed"):
        points(*arguments, gamma=0.1)
    points.size, points.camera = SIZE, camera(0.0, orthographic=True)
    with pytest.raises(ValueError, match="the kind of camera has changed"):
        points(*arguments, gamma=0.1)


def test_the_native_renderer_has_the_originals_attributes() -> None:
    native = Renderer(30, 20, 7, True, True, n_track=9)._renderer
    assert (native.width, native.height, native.max_num_balls) == (30, 20, 7)
    assert native.orthogonal is True and native.right_handed is True and native.n_track == 9


AXIS_ANGLE = [0.3, -0.2, -5.0, 0.4, -0.3, 0.2, 1.5, 2.0]
SIX_D = [0.3, -0.2, -5.0, 0.9, 0.1, -0.2, 0.1, 1.1, 0.3, 1.5, 2.0]


@pytest.mark.parametrize("parameters", [AXIS_ANGLE, [*AXIS_ANGLE, 3.0, -2.0], SIX_D, [*SIX_D, 3.0, -2.0]])
@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("right_handed", [False, True])
@pytest.mark.parametrize("first_r_then_t", [False, True])
def test_camera_parameters_become_vectors(
    parameters: list[float], orthogonal: bool, right_handed: bool, first_r_then_t: bool
) -> None:
    def loss(vectors: list[torch.Tensor]) -> torch.Tensor:
        return sum((vector * (1.0 + index)).sum() for index, vector in enumerate(vectors[:4]))  # type: ignore[return-value]

    own = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
    found = Renderer._transform_cam_params(own, 40, 30, orthogonal, right_handed, first_r_then_t)
    reference = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
    options = {"orthogonal": orthogonal, "right_handed": right_handed, "first_r_then_t": first_r_then_t}
    expected = list(vars(camera_vectors(reference, 40, 30, **options)).values())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double().reshape(other.shape), other)
    assert found[4].shape == (1,) and found[5].dtype == torch.int32 and found[5].shape == (2,)
    loss(list(found)).backward()
    loss(expected).backward()
    torch.testing.assert_close(own.grad, reference.grad)
    batch = Renderer._transform_cam_params(torch.stack([own, own]), 40, 30, orthogonal, right_handed, first_r_then_t)
    assert [tuple(vector.shape) for vector in batch] == [(2, 3)] * 4 + [(2, 1), (2, 2)]
    torch.testing.assert_close(batch[1][1], found[1])


def test_a_camera_that_is_not_turned_has_gradients() -> None:
    parameters = torch.tensor([0.0, 0.0, -5.0, 0.0, 0.0, 0.0, 1.0, 1.0], requires_grad=True)
    Renderer._transform_cam_params(parameters, 40, 30, False, False)[1].sum().backward()
    assert parameters.grad is not None and parameters.grad.isfinite().all()
