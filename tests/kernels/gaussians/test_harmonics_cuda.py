"""Spherical harmonics on CUDA: warps that read and write rows together have the same bits as single lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians import ArgumentError, Camera, Gaussians, Settings, Transform
from lumigrad.kernels.gaussians.engine import CudaEngine
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.closeness import assert_relative, assert_same_bits
from support.gaussians.colors import harmonics
from support.gaussians.rotation import turned

# The count is no multiple of a block or a warp; slices end inside of both.
COUNT = 300
SLICES = (Transform(5, 45, np.eye(4)), Transform(133, 300, np.eye(4)))
WIDTH, HEIGHT = 61, 43


def scene_of(degree: int, scenes: int) -> dict[str, Tensor]:
    """Gaussians of which whole warps and single ones are behind the cameras, and some in view of only one camera."""
    random = torch.Generator().manual_seed(degree)
    means = torch.rand(scenes, COUNT, 3, generator=random) * torch.tensor([8.0, 2.0, 4.0]) - torch.tensor([4.0, 1, 0])
    means[..., 2] += 3.0
    means[:, 40:110, 2] *= -1.0
    means[:, 150:200:3, 2] *= -1.0
    harmonics = torch.randn(scenes, COUNT, (degree + 1) ** 2, 3, generator=random) * 0.3
    return {
        "means": means,
        "quats": torch.randn(scenes, COUNT, 4, generator=random),
        "scales": torch.rand(scenes, COUNT, 3, generator=random) * 0.2 + 0.02,
        "opacities": torch.rand(scenes, COUNT, generator=random) * 0.8 + 0.1,
        "sh": harmonics,
    }


def apart(tensor: Tensor) -> Tensor:
    """Copies a tensor to an address that is no multiple of sixteen, so that each lane reads rows on its own."""
    memory = torch.empty(tensor.numel() + 1, device=tensor.device)[1:]
    return memory.view(tensor.shape).copy_(tensor)


def camera(model: str, x: float, turn: float) -> Camera:
    pose = turned(0.0, turn, 0.0), (x, 0.0, 0.5)
    return Camera.opencv(50.0, 52.0, 30.0, 21.0, *pose, WIDTH, HEIGHT, model=model)


def results(cuda: CudaDevice, tensors: dict[str, Tensor], model: str, degree: int, **options: Any) -> dict[str, Tensor]:
    """Returns colours and all gradients, summed in a fixed order; several scenes also get those of projected means."""
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    scene = Gaussians(**tensors)
    cameras = [camera(model, 0.4, 0.2), camera(model, -0.5, -0.4)] * scene.scenes
    settings = Settings(sh_degree=degree, deterministic=True)
    forward, backward = emulated(gaussians.forward, engine), emulated(gaussians.backward, engine)
    made = forward(scene, cameras, settings, retain=True, **options)
    seeded = torch.Generator().manual_seed(3)
    upstream = {"color": torch.rand(made.outputs["color"].shape, generator=seeded).to(cuda.device)}
    if scene.scenes > 1:
        upstream["means2d"] = torch.rand(len(cameras), COUNT, 2, generator=seeded).to(cuda.device)
    transforms = ("transforms",) if options else ()
    wanted = (*tensors, "cameras", *transforms)
    found = backward(made.state, upstream, wanted)
    gradients = {f"to {name}": value.cpu() for name, value in found.gradients.items()}
    return {"color": made.outputs["color"].cpu(), "touched": found.touched.cpu(), **gradients}


@pytest.mark.parametrize(("stored", "degree"), [(3, 0), (3, 1), (3, 2), (3, 3), (1, 0), (1, 1)])
@pytest.mark.parametrize("scenes", [1, 2])
# A pinhole's colours are evaluated with the projection, those of other models by a separate kernel.
@pytest.mark.parametrize("model", ["pinhole", "fisheye"])
def test_rows_that_warps_share_have_the_same_bits(
    stored: int, degree: int, scenes: int, model: str, cuda: CudaDevice
) -> None:
    tensors = {name: value.to(cuda.device) for name, value in scene_of(stored, scenes).items()}
    options: dict[str, Any] = {"transforms": SLICES} if scenes == 1 else {}
    together = results(cuda, tensors, model, degree, **options)
    alone = results(cuda, {**tensors, "sh": apart(tensors["sh"])}, model, degree, **options)
    assert_same_bits(together, alone)
    rows = together["to sh"].flatten(0, -3)
    active = (degree + 1) ** 2
    assert not rows[:, active:].any()
    seen = rows[:, :active].flatten(1).ne(0).any(1)
    assert 0.2 < seen.float().mean() < 0.8
    assert not seen[64:96].any()  # No camera sees this warp's Gaussians.


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("model", ["pinhole", "fisheye"])
def test_factors_of_gradients_are_the_gradients(degree: int, model: str, cuda: CudaDevice) -> None:
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    scene = Gaussians(**{name: value[0].to(cuda.device) for name, value in scene_of(3, 1).items()})
    eye = camera(model, 0.4, 0.2)
    made = emulated(gaussians.forward, engine)(
        scene, [eye], Settings(sh_degree=degree, deterministic=True), retain=True
    )
    upstream = {"color": torch.ones_like(made.outputs["color"])}
    backward = emulated(gaussians.backward, engine)
    whole = backward(made.state, upstream).gradients
    found = backward(made.state, upstream, ("means", "sh_factors")).gradients
    np.testing.assert_array_equal(found["means"].cpu(), whole["means"].cpu())
    direction, color = found["sh_factors"].cpu().double().split(3, dim=1)
    active = (degree + 1) ** 2
    expanded = torch.zeros(COUNT, 16, 3, dtype=torch.float64)
    expanded[:, :active] = harmonics(degree, direction)[:, :, None] * color[:, None]
    assert_relative("sh", whole["sh"].cpu(), expanded, 1e-6)
    seen = color.ne(0).any(1)
    assert 0.2 < seen.double().mean() < 0.8
    np.testing.assert_allclose(direction[seen].norm(dim=1), 1.0, atol=1e-6)


def test_factors_are_for_one_camera_and_three_channels(cuda: CudaDevice) -> None:
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    tensors = {name: value[0].to(cuda.device) for name, value in scene_of(1, 1).items()}
    grey = {**tensors, "sh": tensors["sh"][..., :1].contiguous()}
    few = {**tensors, "sh": tensors["sh"][:, :1].contiguous()}
    two = [camera("pinhole", 0.4, 0.2), camera("pinhole", 0.0, 0.0)]
    forward, backward = emulated(gaussians.forward, engine), emulated(gaussians.backward, engine)
    for scene, cameras in ((tensors, two), (grey, two[:1]), (few, two[:1])):
        made = forward(Gaussians(**scene), cameras, Settings(), retain=True)
        with pytest.raises(ArgumentError, match="'sh' where cameras are several"):
            backward(made.state, {"color": torch.ones_like(made.outputs["color"])}, ("sh_factors",))


def test_there_are_no_factors_on_the_cpu() -> None:
    tensors = {name: value[0] for name, value in scene_of(1, 1).items()}
    made = gaussians.forward(Gaussians(**tensors), [camera("pinhole", 0.4, 0.2)], Settings(), retain=True)
    assert not gaussians.gives_sh_factors(made.state)
    with pytest.raises(ArgumentError, match="on the CPU"):
        gaussians.backward(made.state, {"color": torch.ones_like(made.outputs["color"])}, ("sh_factors",))
