"""A small render and its gradients, which prove that the device works when callers are told that it does."""

from __future__ import annotations

import torch

from lumigrad.kernels import spheres
from lumigrad.server.runtime import Runtime

_SIZE = 16


def warm_up(runtime: Runtime) -> None:
    """Run every kernel once, on the device's thread; raises if the result is not a picture of a sphere."""
    runtime.executor.run(lambda: _render(runtime), None)


def _render(runtime: Runtime) -> None:
    device = runtime.transfer.device
    camera = spheres.Camera.opencv(
        _SIZE, _SIZE, _SIZE / 2, _SIZE / 2, [[1, 0, 0], [0, 1, 0], [0, 0, 1]], [0, 0, 0], _SIZE, _SIZE
    )
    settings = spheres.Settings(gamma=0.1, max_depth=10.0, min_depth=0.1)
    forward = spheres.forward(
        torch.tensor([[0.0, 0.0, 4.0]], device=device),
        torch.tensor([[0.5]], device=device),
        torch.tensor([1.0], device=device),
        [camera],
        settings,
        retain=True,
    )
    assert forward.state is not None
    spheres.backward(forward.state, {"color": torch.ones_like(forward.outputs["color"])})
    runtime.transfer.finish()
    centre = forward.outputs["color"][0, _SIZE // 2, _SIZE // 2, 0].item()
    if not 0.0 <= centre < 1.0:
        raise RuntimeError(f"the warm-up render of a sphere of colour 0.5 on white gave {centre}")
