"""The backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.spheres import camera_gradient
from lumigrad.kernels.spheres.engine import SCENE, engine_for
from lumigrad.kernels.spheres.forward import State
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps, complete

GRADIENTS = ("positions", "colors", "radii", "opacities", "cameras", "background", "gamma")
_PER_SPHERE = ("positions", "colors", "radii", "opacities")
_EXACT_ONLY = ("background", "gamma")
_GAMMA_SUM = 18


@dataclass(frozen=True)
class Backward:
    """Results of a backward pass.

    Attributes:
        gradients: By name: "positions" [N, 3], "colors" [N, K], "radii" [N], "opacities" [N], "background" [K] and
            "gamma" [], summed over the cameras; "cameras" [C, 8 | 10 | 11 | 13] for Pulsar's cameras, or
            "camera_rotation" [C, 3, 3], "camera_translation" [C, 3] and "camera_intrinsics" [C, 4] for OpenCV's, on the
            CPU. All float32.
        touched: i32 [N], the number of pixels to which each sphere contributed; if 0, its gradients are 0.
        times: Time of each kernel stage.
    """

    gradients: dict[str, torch.Tensor]
    touched: torch.Tensor
    times: Stages

    def stages(self) -> dict[str, float]:
        """Milliseconds per kernel stage, summed over the cameras; empty while a CUDA stream is still at work."""
        return self.times.milliseconds()


def backward(
    state: State,
    output_gradients: Mapping[str, torch.Tensor],
    wanted: Sequence[str] = ("positions", "colors", "radii"),
    before_view: Callable[[], object] | None = None,
) -> Backward:
    """Differentiates a rendered image.

    With "exact" semantics the gradients are the true derivatives of the image. With "compat" they are Pulsar's: means
    over the pixels in which a sphere was tracked, and normalised camera gradients.

    Args:
        state: The state of a `forward` with `retain`.
        output_gradients: dL/d output by name: "color" [C, H, W, K]; with "exact" semantics also "alpha" and, if it was
            rendered, "depth", both [C, H, W].
        wanted: Names of the gradients to compute, from `GRADIENTS`; "opacities" even if none were given (all 1);
            "background" and "gamma" with "exact" semantics only.
        before_view: Called before each camera (on CUDA once, before all); an exception that it raises ends the call.

    Returns:
        The gradients.

    Raises:
        ArgumentError: A name is unknown, or a tensor has the wrong shape, type or device.

    Example:
        result = spheres.forward(positions, colors, radii, [camera], settings, retain=True)
        gradient = torch.ones_like(result.outputs["color"])
        found = spheres.backward(result.state, {"color": gradient}, ("positions",))
        found.gradients["positions"]  # [N, 3]
    """
    return complete(backward_steps(state, output_gradients, wanted), before_view)


def backward_steps(
    state: State,
    output_gradients: Mapping[str, torch.Tensor],
    wanted: Sequence[str] = ("positions", "colors", "radii"),
) -> Steps[Backward]:
    """Steps of `backward`, between which other work may run on the same thread."""
    _check_wanted(state, wanted)
    upstream = _check_upstream(state, output_gradients)
    arrays = _gradient_arrays(state, set(wanted))
    given = {name: state.images.get(name) for name in _IMAGES}
    times = yield from engine_for(state.inputs.device).backward(
        state.kept,
        [camera.native(state.near, state.settings.max_depth) for camera in state.cameras],
        state.settings.native(track=True),
        {
            **state.inputs.arrays(),
            **given,
            **{f"d_{name}": upstream.get(name) for name in ("color", "alpha", "depth")},
            **arrays,
        },
    )
    gradients = {name: arrays[f"to_{name}"] for name in SCENE if arrays[f"to_{name}"] is not None}
    if arrays["to_camera"] is not None:
        sums = arrays["to_camera"].cpu().numpy()
        if "gamma" in wanted:
            gradients["gamma"] = torch.tensor(float(sums[:, _GAMMA_SUM].sum()), dtype=torch.float32, device="cpu")
        if "cameras" in wanted:
            gradients.update(_cameras(state, sums))
    return Backward(gradients, arrays["touched"], times)


def _gradient_arrays(state: State, wanted: set[str]) -> dict[str, Any]:
    inputs, device = state.inputs, state.inputs.device
    shapes: dict[str, tuple[int, ...]] = {
        "positions": (inputs.count, 3),
        "colors": (inputs.count, inputs.channels),
        "radii": (inputs.count,),
        "opacities": (inputs.count,),
        "background": (inputs.channels,),
    }
    arrays: dict[str, Any] = {
        f"to_{name}": empty(shape, torch.float32, device) if name in wanted else None for name, shape in shapes.items()
    }
    arrays["touched"] = empty((inputs.count,), torch.int32, device)
    sums = (len(state.cameras), _native.SPHERE_CAMERA_SUMS)
    has_sums = wanted & {"cameras", "gamma"}
    arrays["to_camera"] = torch.empty(sums, dtype=torch.float64, device=device) if has_sums else None
    return arrays


_IMAGES = ("color", "info", "blend", "stop", "ids")


def _cameras(state: State, sums: np.ndarray) -> dict[str, torch.Tensor]:
    exact, focal = state.settings.exact, [camera.auto_min_depth for camera in state.cameras]
    # The depth range starts at the largest focal length; of equal ones the first camera gets the gradient.
    widest = focal.index(max(focal)) if state.settings.min_depth == 0.0 else -1
    views = [
        camera_gradient.gradients(camera, row, exact, index == widest)
        for index, (camera, row) in enumerate(zip(state.cameras, sums, strict=True))
    ]
    if widest >= 0 and exact:
        # All views share the near end, so its derivative over all views belongs to the camera that sets it.
        others = float(sums[:, 17].sum() - sums[widest, 17])
        source = views[widest].get("cameras")
        if source is not None:
            source[6 if len(source) in (8, 10) else 9] += others
    return {name: torch.from_numpy(np.stack([view[name] for view in views]).astype(np.float32)) for name in views[0]}


def _check_wanted(state: State, wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in GRADIENTS:
            raise ArgumentError("wanted", f"names of {GRADIENTS}", f"{name!r}")
        if name in _EXACT_ONLY and not state.settings.exact:
            expected = f"names of {(*_PER_SPHERE, 'cameras')} in compat (only 'exact' differentiates settings)"
            raise ArgumentError("wanted", expected, f"{name!r}")
    kinds = {camera_gradient.names(camera) for camera in state.cameras}
    lengths = {len(camera.source.values) for camera in state.cameras if hasattr(camera.source, "values")}
    if "cameras" in wanted and (len(kinds) > 1 or len(lengths) > 1):
        raise ArgumentError("wanted", "cameras of one kind if 'cameras' is wanted", "a mixture")


def _check_upstream(state: State, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    allowed = ["color", "alpha", "depth"] if state.settings.exact else ["color"]
    if "ids" not in state.images and "depth" in allowed:
        allowed.remove("depth")
    camera = state.cameras[0]
    shape = (len(state.cameras), camera.height, camera.width)
    checked = {}
    for name, tensor in given.items():
        if name not in allowed:
            raise ArgumentError("output_gradients", f"names of {allowed} for this render", f"{name!r}")
        wanted = (*shape, state.inputs.channels) if name == "color" else shape
        fits = isinstance(tensor, torch.Tensor) and tensor.shape == wanted and tensor.dtype == torch.float32
        if not fits or tensor.device != state.inputs.device:
            expected = f"a float32 tensor of shape {list(wanted)} on {state.inputs.device}"
            actual = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}" if hasattr(tensor, "shape") else "none"
            raise ArgumentError(f"output_gradients['{name}']", expected, actual)
        checked[name] = tensor.detach().contiguous()
    if not checked:
        raise ArgumentError("output_gradients", f"at least one of {allowed}", "none")
    return checked
