"""The forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels.buffers import level_buffer, output_buffer
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.per_device import launches
from lumigrad.kernels.spheres.camera import Camera
from lumigrad.kernels.spheres.engine import CudaEngine, Kept, engine_for
from lumigrad.kernels.spheres.inputs import Inputs, check_cameras, check_inputs, depth_range, enclosing
from lumigrad.kernels.spheres.settings import Settings
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps, complete

OUTPUTS = ("color", "alpha", "depth", "info", "sphere_ids", "weights", "hits")
TRACKED = {"depth", "info", "sphere_ids", "weights"}
_NATIVE_NAMES = {"sphere_ids": "ids"}


@dataclass(frozen=True)
class State:
    """State of a forward pass that the backward pass needs.

    Attributes:
        inputs: The scene.
        cameras: The views.
        settings: The settings.
        near: Near end of the depth range, scene units.
        images: By the extension's names: "color", and "info" (compat) or "blend", "stop" and, for depth, "ids" (exact).
        kept: The engine's state.
    """

    inputs: Inputs
    cameras: tuple[Camera, ...]
    settings: Settings
    near: float
    images: Mapping[str, torch.Tensor]
    kept: Kept

    @property
    def bytes(self) -> int:
        """Memory in use, including the scene."""
        tensors = [*self.inputs.arrays().values(), *self.images.values()]
        return sum(t.numel() * t.element_size() for t in tensors if t is not None) + self.kept.bytes


@dataclass(frozen=True)
class Forward:
    """Results of a forward pass.

    Attributes:
        outputs: By name, stacked over the C cameras:
            "color" f32 [C, H, W, K]; "alpha" f32 [C, H, W], 1 - the background's weight; "depth" f32 [C, H, W],
            distance along the ray to the closest sphere, scene units, -1 where there is none; "info" f32
            [C, H, W, 3 + 2 T], Pulsar's forward info, whose id channels are int32 bit patterns; "sphere_ids" i32
            [C, H, W, T], closest first, -1 if none; "weights" f32 [C, H, W, T], their weights in the colour; "hits" i32
            [C, H, W], the number of spheres blended.
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
    positions: torch.Tensor,
    colors: torch.Tensor,
    radii: torch.Tensor,
    cameras: Sequence[Camera],
    settings: Settings,
    *,
    opacities: torch.Tensor | None = None,
    background: torch.Tensor | None = None,
    outputs: Sequence[str] = ("color",),
    retain: bool = False,
    into: Mapping[str, torch.Tensor] | None = None,
    before_view: Callable[[], object] | None = None,
) -> Forward:
    """Renders spheres.

    Args:
        positions: f32 [N, 3] centres, world frame, scene units. N may be 0.
        colors: f32 [N, K] channels.
        radii: f32 [N] scene units, > 0 (see `check_values`).
        cameras: One or more, all of the same size.
        settings: How to blend.
        opacities: f32 [N] in [0, 1]; None: all 1.
        background: f32 [K]; None: all 1.
        outputs: Names of the outputs to return, from `OUTPUTS`.
        retain: Keep the state that `backward` needs.
        into: Tensors to write outputs to, by name; the other outputs are allocated. The "color" tensor may be uint8: it
            then receives levels, see `levels.write_levels`.
        before_view: Called before each camera (on CUDA before each launch, of several cameras, or of all with
            `retain`); an exception that it raises ends the call.

    Returns:
        The outputs.

    Raises:
        ArgumentError: An argument is invalid; the message names it.

    Example:
        camera = spheres.Camera.opencv(80, 80, 32, 24, np.eye(3), (0, 0, 4), 64, 48)
        settings = spheres.Settings(gamma=0.1, max_depth=10.0)
        result = spheres.forward(positions, colors, radii, [camera], settings, retain=True)
        result.outputs["color"]  # [1, 48, 64, 3]
    """
    given: dict[str, Any] = {
        "opacities": opacities,
        "background": background,
        "outputs": outputs,
        "retain": retain,
        "into": into,
    }
    steps = forward_steps(positions, colors, radii, cameras, settings, whole=before_view is None, **given)
    return complete(steps, before_view)


def forward_steps(
    positions: torch.Tensor,
    colors: torch.Tensor,
    radii: torch.Tensor,
    cameras: Sequence[Camera],
    settings: Settings,
    *,
    opacities: torch.Tensor | None = None,
    background: torch.Tensor | None = None,
    outputs: Sequence[str] = ("color",),
    retain: bool = False,
    into: Mapping[str, torch.Tensor] | None = None,
    whole: bool = False,
) -> Steps[Forward]:
    """Steps of `forward`, between which other work may run on the same thread; `whole`: one step on CUDA."""
    inputs = check_inputs(positions, colors, radii, opacities, background)
    check_cameras(cameras)
    unknown = [name for name in outputs if name not in OUTPUTS]
    if unknown:
        raise ArgumentError("outputs", f"names of {OUTPUTS}", f"{unknown[0]!r}")
    settings = enclosing(settings, inputs, cameras)
    near, far = depth_range(cameras, settings)
    kept_names = _retained(settings, outputs) if retain else set()
    native_settings = settings.native(bool({*outputs, *kept_names} & TRACKED))
    images, levels = _buffers(inputs, cameras, settings, outputs, kept_names, into)
    by_view = images if levels is None else {**images, "color_levels": levels}
    engine, times = engine_for(inputs.device), Stages()
    is_cuda, view_work = isinstance(engine, CudaEngine), cameras[0].width * cameras[0].height + positions.shape[0]
    for part in launches(len(cameras), view_work, is_cuda=is_cuda, is_whole=retain or whole):
        views = [camera.native(near, far) for camera in cameras[part]]
        parts = {_NATIVE_NAMES.get(name, name): image[part] for name, image in by_view.items()}
        arrays = {**inputs.arrays(), **parts}
        kept, spent = yield from engine.forward(views, native_settings, arrays, retain)
        times.views += spent.views
    state = None
    if kept is not None:
        images_kept = {_NATIVE_NAMES.get(name, name): images[name] for name in kept_names}
        state = State(inputs, tuple(cameras), settings, near, images_kept, kept)
    found = images if levels is None else {**images, "color": levels}
    return Forward({name: found[name] for name in outputs}, state, times)


def _retained(settings: Settings, outputs: Sequence[str]) -> set[str]:
    if not settings.exact:
        return {"color", "info"}
    return {"color", "blend", "stop"} | ({"sphere_ids"} if "depth" in outputs else set())


def _buffers(
    inputs: Inputs,
    cameras: Sequence[Camera],
    settings: Settings,
    outputs: Sequence[str],
    kept: set[str],
    into: Mapping[str, torch.Tensor] | None,
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """The tensors that the kernels write: outputs and kept images by name, and colours as levels if `into` has them."""
    wanted = {*outputs, *kept}
    shape = len(cameras), cameras[0].height, cameras[0].width, inputs.channels
    levels = level_buffer("color", into, shape, inputs.device)
    if levels is not None:
        into = {name: tensor for name, tensor in (into or {}).items() if name != "color"}
        # A backward pass also needs the floats.
        wanted -= {"color"} - kept
    return _allocate(wanted, len(cameras), cameras[0], inputs, settings, into), levels


def _allocate(
    wanted: set[str],
    count: int,
    camera: Camera,
    inputs: Inputs,
    settings: Settings,
    into: Mapping[str, torch.Tensor] | None,
) -> dict[str, torch.Tensor]:
    track = settings.n_track
    last: dict[str, tuple[int, ...]] = {
        "color": (inputs.channels,),
        "info": (3 + 2 * track,),
        "sphere_ids": (track,),
        "weights": (track,),
        "blend": (3,),
    }
    integer = {"sphere_ids", "hits", "stop"}
    return {
        name: output_buffer(
            name,
            into,
            (count, camera.height, camera.width, *last.get(name, ())),
            torch.int32 if name in integer else torch.float32,
            inputs.device,
        )
        for name in wanted
    }
