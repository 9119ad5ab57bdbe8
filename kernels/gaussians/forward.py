"""The forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import level_buffer, output_buffer
from lumigrad.kernels.checks import check, check_tensor
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.engine import CudaEngine, engine_for
from lumigrad.kernels.gaussians.inputs import Gaussians, check_background, check_cameras, lidar_tables
from lumigrad.kernels.gaussians.sensor import SensorSource
from lumigrad.kernels.gaussians.settings import Settings
from lumigrad.kernels.gaussians.state import State
from lumigrad.kernels.gaussians.surface import surface_normals
from lumigrad.kernels.gaussians.transforms import Slices, Transform, cut, poses
from lumigrad.kernels.per_device import launches
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps, complete

ON_RAYS = ("hit_distance", "expected_hit_distance", "normals")
IMAGES = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth", "contributors", "ids")
PER_GAUSSIAN = ("radii", "means2d", "depths", "conics", "projected_opacities")
OUTPUTS = (*IMAGES, *PER_GAUSSIAN)
# Outputs for occlusion culling, which belong together. The edge of a cell is in pixels.
VISITS = ("visited", "closers")
CELL = _native.GAUSSIAN_CELL
# Outputs that surfels have besides `OUTPUTS`, and those that they lack.
ON_SURFELS = ("median_depth", "normals", "surface_normals", "distortion")
_NOT_ON_SURFELS = ("inverse_depth", "hit_distance", "expected_hit_distance", "conics", "projected_opacities")
_DTYPES = {"visited": torch.uint8, **dict.fromkeys(("contributors", "ids", "radii", "closers"), torch.int32)}
_LAST = {"radii": (2,), "means2d": (2,), "conics": (3,), "normals": (3,), "surface_normals": (3,)}


@dataclass(frozen=True)
class Forward:
    """Results of a forward pass.

    Attributes:
        outputs: By name, float32 unless stated otherwise, stacked over the C cameras:
            "color" [C, H, W, D]; "alpha" [C, H, W], 1 - transmittance; "transmittance" [C, H, W], the background's
            weight; "depth" [C, H, W], depths blended like a colour, scene units; "expected_depth" [C, H, W], depth /
            max(alpha, 1e-10); "inverse_depth" [C, H, W], accumulated 1 / depth; "contributors" i32 [C, H, W], Gaussians
            blended; "ids" i32 [C, H, W], the index within its scene of the Gaussian with the largest weight, alpha
            times the transmittance in front of it (the nearest of equal ones), -1 where none was blended; along rays
            "hit_distance" [C, H, W], distances from the ray's origin to the largest response, blended,
            "expected_hit_distance" [C, H, W], this / max(alpha, 1e-10), and "normals" [C, H, W, 3], the third axes
            of the Gaussians turned against the ray, blended, world frame; and per Gaussian, 0 where it was culled:
            "radii" i32 [C, N, 2] pixels, "means2d" [C, N, 2] pixels, "depths" [C, N] along the camera's z axis (for
            sensors see `Settings.depth_order`), scene units, "conics" [C, N, 3], the inverse of the blurred covariance
            (xx, xy, yy), "projected_opacities" [C, N], compensated for the blur if `antialiased`; and together
            "visited" uint8 [C, N], 1 for Gaussians that may contribute to a pixel or end its blending, so that images
            without the others are the same, and "closers" i32 [C, ceil(H / 8), ceil(W / 8)], for each square of 8x8
            pixels the index of the Gaussian at which its last pixel has ended, or of one soon behind it, -1 where
            one has not: not along rays, and only of whole images. With surfels "depth"
            blends depths of their centres, "means2d" are the centres of their boxes in the image, and there are also
            "median_depth" [C, H, W], the depth of the last Gaussian in front of which the transmittance exceeds one
            half, 0 where there is none; "normals" [C, H, W, 3], the third axes turned to the camera, blended, world
            frame; "surface_normals" [C, H, W, 3], unit normals of the surface at the expected depth (see
            `surface.surface_normals`); "distortion" [C, H, W], the sum over pairs of Gaussians of twice their weights
            times the difference of their depths, scene units.
        state: For `backward`; None without `retain`.
        times: Time of each kernel stage.
    """

    outputs: dict[str, torch.Tensor]
    state: State | None
    times: Stages

    def stages(self) -> dict[str, float]:
        """Milliseconds per kernel stage, summed over the cameras; empty while a CUDA stream is still at work."""
        return self.times.milliseconds()


def forward(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    settings: Settings,
    *,
    background: torch.Tensor | None = None,
    transforms: Sequence[Transform] = (),
    rays: torch.Tensor | None = None,
    outputs: Sequence[str] = ("color",),
    retain: bool = False,
    into: Mapping[str, torch.Tensor] | None = None,
    rows: tuple[int, int] | None = None,
    before_view: Callable[[], object] | None = None,
) -> Forward:
    """Renders Gaussians.

    Args:
        gaussians: One scene or several.
        cameras: One or more, all of the same size; with S scenes S * C cameras, those of one scene consecutive.
        settings: How to project and blend.
        background: f32 [D], or per camera [C, D]; None: 0.
        transforms: Rigid motions of disjoint slices of each scene; with a rolling shutter they may move.
        rays: f32 [C, H, W, 6]: origins and directions of any length but 0, world frame, that replace the pixels' rays,
            with `Settings.response` "ray"; the cameras still determine which Gaussians are visible.
        outputs: Names of the outputs to return, from `OUTPUTS`; with `Settings.response` "ray" also from `ON_RAYS`, and
            with `Settings.primitive` "surfel" from `ON_SURFELS`.
        retain: Keep the state that `backward` needs.
        into: Tensors to write outputs to, by name; the other outputs are allocated. The "color" tensor may be uint8: it
            then receives levels, see `levels.write_levels`.
        rows: Only the rows [rows[0], rows[1]) of the images are needed; other rows are undefined, and their gradients
            must be 0. None: all. The CPU skips other rows, except along rays. (0, 0) is for outputs per Gaussian
            alone.
        before_view: Called before each camera (on CUDA before each launch, of several cameras, or of all with `retain`
            or several scenes); an exception that it raises ends the call.

    Returns:
        The outputs.

    Raises:
        ArgumentError: An argument is invalid; the message names it.

    Example:
        camera = gaussians.Camera.opencv(80, 80, 32, 24, np.eye(3), (0, 0, 4), 64, 48)
        scene = gaussians.Gaussians(means=means, opacities=opacities, quats=quats, scales=scales, colors=colors)
        result = gaussians.forward(scene, [camera], gaussians.Settings(), retain=True)
        result.outputs["color"]  # [1, 48, 64, 3]
    """
    given: dict[str, Any] = {"background": background, "transforms": transforms, "rays": rays, "outputs": outputs}
    options: dict[str, Any] = {"retain": retain, "into": into, "rows": rows, "whole": before_view is None}
    steps = forward_steps(gaussians, cameras, settings, **options, **given)
    return complete(steps, before_view)


def forward_steps(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    settings: Settings,
    *,
    background: torch.Tensor | None = None,
    transforms: Sequence[Transform] = (),
    rays: torch.Tensor | None = None,
    outputs: Sequence[str] = ("color",),
    retain: bool = False,
    into: Mapping[str, torch.Tensor] | None = None,
    rows: tuple[int, int] | None = None,
    whole: bool = False,
) -> Steps[Forward]:
    """Do what `forward` does in steps, between which other work may run on the thread; `whole`: one step on CUDA."""
    _check(gaussians, cameras, settings, outputs, rays, rows, retain)
    backgrounds = check_background(background, gaussians, len(cameras))
    slices = _slices(gaussians, cameras, transforms)
    size, lidar = (cameras[0].width, cameras[0].height), cameras[0].lidar is not None
    native_settings = settings.native(gaussians.degree(settings), *size, lidar=lidar)
    kept_names = _retained(outputs) if retain else ()
    tensors, levels = _buffers(gaussians, cameras, outputs, kept_names, into)
    given = None if rays is None else rays.detach().contiguous()
    engine, times = engine_for(gaussians.device), Stages()
    scene = gaussians.arrays()
    by_view = {"background": backgrounds, "rays": given, "color_levels": levels, **tensors}
    if gaussians.per_camera:
        by_view["colors"] = scene["colors"]
    # Retained state belongs to one launch, and views of several scenes refer to all scenes.
    is_whole = retain or whole or gaussians.scenes > 1
    is_cuda, view_work = isinstance(engine, CudaEngine), cameras[0].width * cameras[0].height + gaussians.count
    for part in launches(len(cameras), view_work, is_cuda=is_cuda, is_whole=is_whole):
        views = views_of(gaussians, cameras[part], settings, slices)
        own = by_view if len(views) == len(cameras) else _part_of(by_view, part)
        arrays = {**scene, **own, "lidar_angles": lidar_tables(cameras[part], gaussians.device)}
        kept, spent = yield from engine.forward(views, native_settings, arrays, retain, rows)
        times.views += spent.views
    if "surface_normals" in outputs:
        tensors["surface_normals"].copy_(surface_normals(tensors["expected_depth"], cameras))
    state = None
    if kept is not None:
        state = State(
            gaussians=gaussians,
            cameras=tuple(cameras),
            settings=settings,
            slices=slices,
            background=backgrounds,
            background_per_camera=background is not None and background.dim() == 2,
            rays=given,
            outputs=tuple(outputs),
            images={name: tensors[name] for name in kept_names},
            views=views,
            native_settings=native_settings,
            kept=kept,
        )
    found = tensors if levels is None else {**tensors, "color": levels}
    return Forward({name: found[name] for name in outputs}, state, times)


def _check(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    settings: Settings,
    outputs: Sequence[str],
    rays: torch.Tensor | None,
    rows: tuple[int, int] | None,
    retain: bool,
) -> None:
    """Raises ArgumentError unless a forward pass of these arguments is possible."""
    check_cameras(gaussians, cameras, settings)
    _check_outputs(settings, outputs)
    _check_rays(gaussians, cameras, settings, rays)
    _check_rows(rows, cameras[0].height, outputs, retain)


def _buffers(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    outputs: Sequence[str],
    kept: Sequence[str],
    into: Mapping[str, torch.Tensor] | None,
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """The tensors that the kernels write: outputs and kept images by name, and colours as levels if `into` has them."""
    drawn = {*outputs, *kept, *(["expected_depth"] if "surface_normals" in outputs else [])}
    shape = len(cameras), cameras[0].height, cameras[0].width, gaussians.channels
    levels = level_buffer("color", into, shape, gaussians.device)
    if levels is not None:
        into = {name: tensor for name, tensor in (into or {}).items() if name != "color"}
        # A backward pass also needs the floats.
        drawn -= {"color"} - {*kept}
    return {name: _allocate(name, gaussians, cameras, into) for name in drawn}, levels


def _part_of(by_view: Mapping[str, torch.Tensor | None], part: slice) -> dict[str, torch.Tensor | None]:
    """The tensors of some of the views."""
    return {name: None if tensor is None else tensor[part] for name, tensor in by_view.items()}


def _check_outputs(settings: Settings, outputs: Sequence[str]) -> None:
    allowed: tuple[str, ...] = (*OUTPUTS, *ON_RAYS) if settings.response == "ray" else (*OUTPUTS, *ON_RAYS, *VISITS)
    if settings.surfels:
        allowed = (*(name for name in OUTPUTS if name not in _NOT_ON_SURFELS), *ON_SURFELS)
    for name in outputs:
        if name in allowed:
            continue
        condition = " with primitive 'surfel'" if settings.surfels else ""
        raise ArgumentError("outputs", f"names of {allowed}{condition}", f"{name!r}")
    if 0 < len({*VISITS} & {*outputs}) < len(VISITS):
        raise ArgumentError("outputs", f"all of {VISITS} or none", f"{outputs}")
    if settings.response != "ray" and not settings.surfels:
        for name in ON_RAYS:
            if name in outputs:
                raise ArgumentError("outputs", f"{name!r} only with response 'ray'", f"response {settings.response!r}")


def _check_rows(rows: tuple[int, int] | None, height: int, outputs: Sequence[str], retain: bool) -> None:
    """Raises ArgumentError unless `rows` lie within the images, with at least one if images are requested."""
    if rows is None:
        return
    least = 1 if retain or not set(outputs) <= set(PER_GAUSSIAN) else 0
    whole = {"surface_normals", *VISITS} & set(outputs)
    ok = 0 <= rows[0] <= rows[1] <= height and rows[1] - rows[0] >= least and not whole
    check(ok, "rows", f"two rows from 0 to {height}, at least {least} apart, and no outputs of whole images", rows)


def _check_rays(gaussians: Gaussians, cameras: Sequence[Camera], settings: Settings, rays: torch.Tensor | None) -> None:
    """Raises ArgumentError unless given rays fit the scene, the cameras and the settings."""
    is_lidar = cameras[0].lidar is not None
    if settings.response != "ray":
        check(not is_lidar, "response", "'ray' with a lidar", settings.response)
        if rays is not None:
            raise ArgumentError("rays", "None unless response is 'ray'", f"response {settings.response!r}")
        return
    if rays is not None:
        shape = (len(cameras), cameras[0].height, cameras[0].width, 6)
        check_tensor("rays", rays, shape, gaussians.device, "means")
        low = float(rays[..., 3:].abs().amax(-1).min())
        ok = bool(torch.isfinite(rays).all()) and low > 0.0
        check(ok, "rays", "finite origins, and finite directions other than 0", "others")
    elif any(_lacks_inverse(camera) for camera in cameras):
        raise ArgumentError("windshield", "horizontal_inverse and vertical_inverse too, for response 'ray'", "none")


def _lacks_inverse(camera: Camera) -> bool:
    glass = camera.source.windshield if isinstance(camera.source, SensorSource) else None
    return glass is not None and not (glass.horizontal_inverse and glass.vertical_inverse)


def _slices(gaussians: Gaussians, cameras: Sequence[Camera], transforms: Sequence[Transform]) -> Slices:
    # Inria's full projection maps world coordinates to the film, and a slice's means are not in the world frame.
    if transforms and any(camera.projected for camera in cameras):
        raise ArgumentError("transforms", "none with Inria's cameras; use OpenCV's", f"{len(transforms)}")
    is_moving = any(transform.matrix_end is not None for transform in transforms)
    if is_moving and not all(camera.is_rolling for camera in cameras):
        expected = (
            "no matrix_end unless all cameras are sensors with a rolling shutter; place the slice by matrix alone"
        )
        raise ArgumentError("transforms", expected, "one for cameras of which some have a global shutter")
    return cut(transforms, gaussians.count)


def views_of(gaussians: Gaussians, cameras: Sequence[Camera], settings: Settings, slices: Slices) -> Any:
    """The extension's views of checked cameras, scene by scene; the views of a single camera are cached."""
    if len(cameras) == 1 and slices is cut((), gaussians.count):
        kept, key = cameras[0].kept_views, (gaussians.count, settings.pixel_center)
        if key not in kept:
            # Views of other scenes are rarely needed again.
            kept.clear()
            kept[key] = _views_of(gaussians, cameras, settings, slices)
        return kept[key]
    return _views_of(gaussians, cameras, settings, slices)


def _views_of(gaussians: Gaussians, cameras: Sequence[Camera], settings: Settings, slices: Slices) -> Any:
    each = len(cameras) // gaussians.scenes
    views = [camera.native(index // each, settings.pixel_center) for index, camera in enumerate(cameras)]
    composed = np.ascontiguousarray(poses(cameras, slices), np.float32)
    sensors = [
        camera.source.native(camera.width, camera.height)
        for camera in cameras
        if isinstance(camera.source, SensorSource)
    ]
    return _native.make_gaussian_views(views, list(slices.begins), composed, sensors, slices.flat())


def _retained(outputs: Sequence[str]) -> tuple[str, ...]:
    names = ["color", "transmittance"]
    if any(name in outputs for name in ("depth", "expected_depth", "median_depth", "surface_normals", "distortion")):
        names.append("depth")
    if "inverse_depth" in outputs:
        names.append("inverse_depth")
    if "hit_distance" in outputs or "expected_hit_distance" in outputs:
        names.append("hit_distance")
    names.extend(name for name in ("normals", "distortion") if name in outputs)
    return tuple(names)


def _allocate(
    name: str, gaussians: Gaussians, cameras: Sequence[Camera], into: Mapping[str, torch.Tensor] | None
) -> torch.Tensor:
    views = len(cameras)
    shape: tuple[int, ...] = (views, gaussians.count)
    last = _LAST.get(name, ())
    if name == "closers":
        shape = (views, -(-cameras[0].height // CELL), -(-cameras[0].width // CELL))
    elif name not in (*PER_GAUSSIAN, "visited"):
        shape = (views, cameras[0].height, cameras[0].width)
        last = (gaussians.channels,) if name == "color" else last
    return output_buffer(name, into, (*shape, *last), _DTYPES.get(name, torch.float32), gaussians.device)
