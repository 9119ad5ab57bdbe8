"""The backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty, output_buffer
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import pose_gradient, sensor
from lumigrad.kernels.gaussians.engine import engine_for
from lumigrad.kernels.gaussians.inputs import lidar_tables, native_shape
from lumigrad.kernels.gaussians.lidar import lidar_gradients
from lumigrad.kernels.gaussians.sensor import SensorSource
from lumigrad.kernels.gaussians.state import State
from lumigrad.kernels.gaussians.surface import SurfaceGradient, expected_depth, surface_backward
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps, complete

SCENE_GRADIENTS = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors")
GRADIENTS = (
    *SCENE_GRADIENTS,
    *("sh_factors", "background", "cameras", "transforms", "lenses", "rays", "means2d", "means2d_abs"),
)
_ON_FILM = ("means2d", "means2d_abs")
_POSES = ("cameras", "transforms", "lenses")
# A direction and the gradient of a colour.
_FACTORS = 6
# Number of coefficients below which the factors of a gradient are larger than the gradient.
_LEAST_COEFFICIENTS = 4


@dataclass(frozen=True)
class Backward:
    """Results of a backward pass.

    Attributes:
        gradients: By name, float32. Shaped as the scene's tensors and summed over the cameras of a scene: "means",
            "quats", "scales", "covariances" (an off-diagonal entry of the six counts for both entries of the matrix),
            "opacities", "sh", "colors". "background", shaped as given, [D] if none was given. "means2d" [C, N, 2], per
            pixel; "means2d_abs" [C, N, 2], the sums over the pixels of their absolute values; with surfels both are
            gsplat's "gradient_2dgs", with respect to the projected mean in pixels' numerators alone. On the CPU, for
            "cameras": "camera_rotation" [C, 3, 3] and "camera_translation" [C, 3] (independent entries of the view
            matrix, with the eye at -R^T t), "camera_intrinsics" [C, 4] (fx, fy, cx, cy) and "camera_pose" [C, 6] (left
            perturbation exp(xi) V; rho x y z, phi x y z) for OpenCV's; "camera_view" [C, 4, 4], "camera_projection"
            [C, 4, 4] and "camera_position" [C, 3], laid out as given, for Inria's. For sensors "camera_rotation" is the
            gradient among the rotations; "camera_rotation_end", "camera_translation_end" and "camera_pose_end" belong
            to the end of the exposure. On the CPU, for "transforms": "transforms" [T, 4, 4], with 12 independent
            entries and the last row 0; if some move, also "transforms_end" [T, 4, 4], the gradients of `matrix_end`, 0
            for those that do not move; rotation gradients of moving ones are those among the rotations. On the CPU, for
            "lenses" of sensors: the lens's coefficients by name, "lens_radial" [C, 6] (fisheye: [C, 4]),
            "lens_tangential" [C, 2], "lens_thin_prism" [C, 4],
            "lens_angle_to_pixel_distance" [C, 6], "lens_pixel_distance_to_angle" [C, 6], "lens_linear" [C, 3],
            "windshield_horizontal" and "windshield_vertical" [C, k], along rays with "_inverse" too; for a lidar
            "lidar_elevations" [C, H], "lidar_azimuths" [C, W] and "lidar_offsets" [C, H]. "rays" [C, H,
            W, 6], if rays were given. "sh_factors" [N, 6], instead of "sh": see `gives_sh_factors`.
        touched: i32 [N] or [S, N]: 1 if a Gaussian contributed to a pixel; otherwise 0, and its gradients are 0.
        times: Time of each kernel stage.
    """

    gradients: dict[str, torch.Tensor]
    touched: torch.Tensor
    times: Stages

    def stages(self) -> dict[str, float]:
        """Milliseconds per kernel stage, summed over the cameras; empty while a CUDA stream is still at work."""
        return self.times.milliseconds()


def gives_sh_factors(state: State) -> bool:
    """Whether `backward` can return "sh_factors" [N, 6] instead of "sh": on CUDA, for one camera and three channels.

    A row holds the unit direction from the camera and the gradient of the colour. The gradient of coefficient k is
    harmonic k of the direction times the gradient of the colour; a Gaussian that is not visible has a row of 0.
    `training.HarmonicsGradient` passes these rows to the optimiser.
    """
    sh = state.gaussians.tensors().get("sh")
    fits = sh is not None and sh.dim() == 3 and sh.shape[1] >= _LEAST_COEFFICIENTS and sh.shape[2] == 3
    return fits and len(state.cameras) == 1 and engine_for(state.gaussians.device).gives_sh_factors


def backward(
    state: State,
    output_gradients: Mapping[str, torch.Tensor],
    wanted: Sequence[str] | None = None,
    before_view: Callable[[], object] | None = None,
) -> Backward:
    """Differentiates rendered images.

    The gradients are true derivatives, or those of the original: see `Settings.semantics`.

    Args:
        state: The state of a `forward` with `retain`.
        output_gradients: dL/d output by name: "color" [C, H, W, D]; "alpha" and "transmittance" [C, H, W]; "depth" and
            "expected_depth", if either was rendered, and "inverse_depth", if it was, all [C, H, W]; the same for
            "hit_distance" and "expected_hit_distance" [C, H, W], "normals" and "surface_normals" [C, H, W, 3],
            "median_depth" and "distortion" [C, H, W]; on the film "means2d" [C, N, 2], added to the gradient of the
            projected means from the images.
        wanted: Names of the gradients to compute, from `GRADIENTS`; None: all tensors of the scene.
        before_view: Called before each camera (on CUDA: at least once); an exception that it raises ends the call.

    Returns:
        The gradients.

    Raises:
        ArgumentError: A name is unknown, or a tensor has the wrong shape, type or device.

    Example:
        result = gaussians.forward(scene, [camera], gaussians.Settings(), retain=True)
        gradient = torch.ones_like(result.outputs["color"])
        found = gaussians.backward(result.state, {"color": gradient}, ("means", "cameras"))
        found.gradients["means"]  # [N, 3]
    """
    return complete(backward_steps(state, output_gradients, wanted), before_view)


def backward_steps(
    state: State,
    output_gradients: Mapping[str, torch.Tensor],
    wanted: Sequence[str] | None = None,
    into: Mapping[str, torch.Tensor] | None = None,
    *,
    touched_only: bool = False,
) -> Steps[Backward]:
    """Do what `backward` does in steps, between which steps of other states may run on the same thread.

    Gradients of the scene's tensors are written to the tensors of `into`, by name; missing ones are allocated. With
    `touched_only` rows that are not `touched` may be undefined, which saves memory with large scenes.
    """
    if not isinstance(state, State):
        raise ArgumentError("state", "the state of a forward with retain=True", type(state).__name__)
    names = tuple(state.gaussians.tensors()) if wanted is None else tuple(wanted)
    _check_wanted(state, names)
    upstream = _check_upstream(state, output_gradients)
    of_surface = _surface_backward(state, upstream)
    device, scene = state.gaussians.device, state.gaussians.tensors()
    tensors = {
        name: output_buffer(name, into, _shape(state, name), torch.float32, device)
        for name in names
        if name not in _POSES
    }
    touched = empty(scene["opacities"].shape, torch.int32, device)
    sums = _pose_sums(state, names, device)
    native = {name: _native_shape(state, name, tensor) for name, tensor in tensors.items()}
    arrays = {
        **state.gaussians.arrays(),
        "background": state.background,
        "rays": state.rays,
        "lidar_angles": lidar_tables(state.cameras, device),
        **state.images,
        **{f"d_{name}": tensor for name, tensor in upstream.items()},
        **{f"to_{name}": tensor for name, tensor in {**native, **sums}.items()},
        "touched": native_shape(state.gaussians, "opacities", touched),
    }
    times = yield from engine_for(device).backward(state.kept, state.views, state.native_settings, arrays, touched_only)
    if "background" in tensors and not state.background_per_camera:
        # Native code adds the views in the same order, for the same bits.
        tensors["background"] = reduce(torch.add, tensors["background"])
    return Backward({**tensors, **_poses(state, names, sums, of_surface)}, touched, times)


def _shape(state: State, name: str) -> tuple[int, ...]:
    views = len(state.cameras)
    if name == "sh_factors":
        return state.gaussians.count, _FACTORS
    if name in _ON_FILM:
        return views, state.gaussians.count, 2
    if name == "rays":
        assert state.rays is not None
        return tuple(state.rays.shape)
    if name == "background":
        return views, state.gaussians.channels
    return tuple(state.gaussians.tensors()[name].shape)


def _native_shape(state: State, name: str, tensor: torch.Tensor) -> torch.Tensor:
    return native_shape(state.gaussians, name, tensor) if name in SCENE_GRADIENTS else tensor


def _pose_sums(state: State, names: Sequence[str], device: torch.device) -> dict[str, torch.Tensor]:
    """Allocates the sums from which the gradients of cameras and transforms follow."""
    views = len(state.cameras)
    shapes: dict[str, tuple[int, ...]] = {}
    if any(name in names for name in _POSES):
        shapes["poses"] = (views, state.slices.count, _native.GAUSSIAN_POSE_SUMS)
    if state.settings.surfels and "transforms" in names:
        shapes["normals"] = (views, state.slices.count, 9)
    if state.cameras[0].is_sensor and shapes:
        shapes["sensors"] = (views, _native.GAUSSIAN_SENSOR_SUMS)
        if state.settings.response == "ray":
            shapes["inverse_windshield"] = (views, _native.GAUSSIAN_INVERSE_WINDSHIELD)
    elif "cameras" in names:
        shapes.update({"projection": (views, 12)} if state.cameras[0].projected else {"intrinsics": (views, 4)})
    sums = {name: torch.empty(shape, dtype=torch.float64, device=device) for name, shape in shapes.items()}
    first = state.cameras[0]
    if "lenses" in names and first.lidar is not None:
        # Returns have no angles if rays are given.
        sums["lidar_angles"] = torch.zeros((views, first.height, first.width, 2), dtype=torch.float32, device=device)
    return sums


def _surface_backward(state: State, upstream: dict[str, torch.Tensor]) -> SurfaceGradient | None:
    """Replaces the gradient of the surface's normals in `upstream` by its share of the expected depth's gradient."""
    given = upstream.pop("surface_normals", None)
    if given is None:
        return None
    depth = expected_depth(state.images["depth"], state.images["transmittance"])
    found = surface_backward(depth, state.cameras, given)
    before = upstream.get("expected_depth")
    upstream["expected_depth"] = (found.depth if before is None else found.depth + before).contiguous()
    return found


def _poses(
    state: State, names: Sequence[str], sums: Mapping[str, torch.Tensor], of_surface: SurfaceGradient | None
) -> dict[str, torch.Tensor]:
    if "poses" not in sums:
        return {}
    arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in sums.items()}
    of_poses, found = pose_gradient.PoseSums.of(arrays["poses"]), {}
    sensors = [camera.source for camera in state.cameras if isinstance(camera.source, SensorSource)]
    if "lenses" in names:
        found.update(sensor.lens_gradients(sensors, arrays["sensors"], arrays.get("inverse_windshield")))
        if "lidar_angles" in arrays:
            found.update(lidar_gradients(arrays["lidar_angles"]))
    if "cameras" in names and sensors:
        found.update(sensor.gradients(sensors, pose_gradient.of_eyes(state.slices, of_poses), arrays["sensors"]))
    elif "cameras" in names:
        film = arrays["intrinsics" if "intrinsics" in arrays else "projection"]
        turned = None
        if of_surface is not None:
            film = film + of_surface.intrinsics.cpu().numpy()
            turned = of_surface.rotation.cpu().numpy()
        if state.settings.surfels and state.settings.semantics == "gsplat":
            film = np.zeros_like(film)
        found.update(pose_gradient.of_cameras(state.cameras, state.slices, of_poses, film, turned))
    if "transforms" in names:
        found.update(pose_gradient.of_transforms(state.cameras, state.slices, of_poses, arrays.get("normals")))
    return {name: torch.from_numpy(np.ascontiguousarray(value, np.float32)) for name, value in found.items()}


def _check_wanted(state: State, names: Sequence[str]) -> None:
    scene = state.gaussians.tensors()
    for name in names:
        if name not in GRADIENTS:
            raise ArgumentError("wanted", f"names of {GRADIENTS}", f"{name!r}")
        if name in SCENE_GRADIENTS and name not in scene:
            raise ArgumentError("wanted", f"of the scene's tensors {tuple(scene)}", f"{name!r}")
    if "sh_factors" in names and not gives_sh_factors(state):
        expected = f"'sh' where cameras are several, or channels not 3, or coefficients < {_LEAST_COEFFICIENTS}"
        raise ArgumentError("wanted", f"{expected}, and on the CPU", "'sh_factors'")
    if "transforms" in names and not state.slices.of_transform:
        raise ArgumentError("wanted", "'transforms' only where there are some", "none were rendered")
    if "lenses" in names and not state.cameras[0].is_sensor:
        raise ArgumentError("wanted", "'lenses' only where the cameras are sensors", "other cameras")
    on_film = [name for name in names if name in _ON_FILM]
    if on_film and state.settings.response == "ray":
        raise ArgumentError("wanted", "no gradients of projected means with response 'ray'", f"{on_film[0]!r}")
    if "rays" in names and state.rays is None:
        raise ArgumentError("wanted", "'rays' only where rays were given", "none were")
    if "cameras" in names and len({camera.projected for camera in state.cameras}) > 1:
        raise ArgumentError("wanted", "cameras of one kind if 'cameras' is wanted", "OpenCV's and Inria's")


def _check_upstream(state: State, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shape = (len(state.cameras), state.cameras[0].height, state.cameras[0].width)
    allowed: dict[str, tuple[int, ...]] = {
        "color": (*shape, state.gaussians.channels),
        "alpha": shape,
        "transmittance": shape,
    }
    if state.settings.response != "ray":
        allowed["means2d"] = _shape(state, "means2d")
    allowed.update({name: shape for name in ("median_depth", "distortion") if name in state.outputs})
    if "surface_normals" in state.outputs:
        allowed["surface_normals"] = (*shape, 3)
    if "hit_distance" in state.images:
        allowed.update(hit_distance=shape, expected_hit_distance=shape)
    if "normals" in state.images:
        allowed["normals"] = (*shape, 3)
    if "depth" in state.outputs or "expected_depth" in state.outputs:
        allowed.update(depth=shape, expected_depth=shape)
    if "inverse_depth" in state.images:
        allowed.update(inverse_depth=shape)
    checked, device = {}, state.gaussians.device
    for name, tensor in given.items():
        if name not in allowed:
            raise ArgumentError("output_gradients", f"names of {tuple(allowed)} for this render", f"{name!r}")
        fits = isinstance(tensor, torch.Tensor) and tensor.shape == allowed[name] and tensor.dtype == torch.float32
        if not fits or tensor.device != device:
            expected = f"a float32 tensor of shape {list(allowed[name])} on {device}"
            actual = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}" if hasattr(tensor, "shape") else "none"
            raise ArgumentError(f"output_gradients['{name}']", expected, actual)
        checked[name] = tensor.detach().contiguous()
    if not checked:
        raise ArgumentError("output_gradients", f"at least one of {tuple(allowed)}", "none")
    return checked
