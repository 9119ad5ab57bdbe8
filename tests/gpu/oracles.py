"""Small cases of every engine, whose results on the CPU are the reference for those on a GPU.

python -m tests.gpu.oracles     runs them once on the GPU, for compute-sanitizer
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.kernels import density, gaussians, meshes, spheres, training
from tests.benchmarks import gaussian_scene, scene
from tests.benchmarks.density_kernels import DRAW, EXTENT, Benchmark
from tests.benchmarks.meshes import scene as mesh_scene
from tests.gpu.device import Device

Results = dict[str, NDArray[np.generic]]
_WIDTH, _HEIGHT = 96, 64
_PRIMITIVES, _POINTS = 400, 256
# An image may differ where blending stops one primitive earlier or later: this share of its values may be farther off.
_TOLERANCE, _MAY_DIFFER = 2e-3, 1e-3


def results(device: Device) -> Results:
    """Results by engine and name, from one forward and one backward pass of each engine."""
    found: dict[str, torch.Tensor] = {}
    for engine in (_gaussians, _spheres, _meshes, _training, _density):
        found |= engine(device)
    device.synchronize()
    return {name: value.cpu().numpy() for name, value in found.items()}


def compare(here: Results, expected: Results) -> dict[str, float]:
    """The share of values that differ by more than the tolerance, by name, for results with more than may differ."""
    wrong = {}
    for name, value in expected.items():
        if name not in here or here[name].shape != value.shape:
            wrong[name] = 1.0
            continue
        scale = max(1e-30, float(np.abs(value).max()))
        difference = np.abs(here[name].astype(np.float64) - value.astype(np.float64)) / scale
        share = float(np.mean(~(difference <= _TOLERANCE)))
        if share > _MAY_DIFFER:
            wrong[name] = round(share, 5)
    return wrong


def _gaussians(device: Device) -> dict[str, torch.Tensor]:
    made = gaussian_scene.scene(_PRIMITIVES, _WIDTH, _HEIGHT)
    here = gaussians.Gaussians(**{name: device.tensor(value) for name, value in made.tensors.items()})
    camera = gaussians.Camera.opencv(*made.intrinsics, made.rotation, made.translation, _WIDTH, _HEIGHT)
    done = gaussians.forward(here, [camera], gaussians.Settings(), outputs=("color", "alpha"), retain=True)
    upstream = {"color": device.tensor(gaussian_scene.output_gradient(_WIDTH, _HEIGHT))}
    gradients = gaussians.backward(done.state, upstream).gradients
    return {f"gaussians {name}": value for name, value in {**done.outputs, **gradients}.items()}


def _spheres(device: Device) -> dict[str, torch.Tensor]:
    made, found = scene.scene(_PRIMITIVES), {}
    camera = spheres.Camera.pulsar(scene.CAMERA, _WIDTH, _HEIGHT)
    upstream = {"color": device.tensor(scene.output_gradient(_WIDTH, _HEIGHT))[None]}
    for semantics in ("exact", "compat"):
        settings = spheres.Settings(scene.GAMMA, scene.MAX_DEPTH, semantics=semantics, n_track=scene.N_TRACK)
        inputs = [device.tensor(value) for value in (made.positions, made.colors, made.radii)]
        done = spheres.forward(*inputs, [camera], settings, retain=True)
        gradients = spheres.backward(done.state, upstream, ("positions", "colors", "radii")).gradients
        both = {**done.outputs, **gradients}
        found |= {f"spheres {semantics} {name}": value for name, value in both.items()}
    return found


def _meshes(device: Device) -> dict[str, torch.Tensor]:
    made = mesh_scene.torus("1k")
    mesh = meshes.Mesh.build(device.tensor(made.vertices), device.tensor(made.faces))
    rows = torch.zeros(1, 1, _POINTS, 4)
    rows[0, 0, :, :3] = torch.from_numpy(mesh_scene.points(made, "box", _POINTS))
    world = meshes.World([meshes.Instance(mesh)])
    found = meshes.evaluate(rows.to(device.torch), world, meshes.Settings(), outputs=("distance", "closest")).outputs
    return {f"meshes {name}": value for name, value in found.items()}


def _training(device: Device) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    image, target_image = torch.rand(2, 1, _HEIGHT, _WIDTH, 3, generator=random).to(device.torch)
    found = training.image_loss(image, target_image)
    raw, gradient = torch.randn(2, _PRIMITIVES, 3, generator=random).to(device.torch)
    moments = torch.zeros_like(raw), torch.zeros_like(raw)
    parameter = training.Parameter(
        raw=raw.contiguous(), gradient=gradient.contiguous(), first=moments[0], second=moments[1], learning_rate=1e-3
    )
    training.adam_step({"means": parameter}, step=1, betas=(0.9, 0.999), epsilon=1e-15)
    return {"training loss gradient": found.gradient, "training adam": parameter.raw, "training moment": moments[1]}


def _density(device: Device) -> dict[str, torch.Tensor]:
    benchmark = Benchmark(_PRIMITIVES, device.torch)
    plan = density.plan(
        benchmark.parameters, benchmark.statistics, density.Thresholds(), extent=EXTENT, after_reset=True
    )
    tensors = density.apply(plan, benchmark.parameters, DRAW).parameters.tensors
    return {f"density {name}": value for name, value in tensors.items()}


def main() -> None:
    """Runs the cases once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = Device(parser.parse_args().device)
    with device.engines():
        print(f"{len(results(device))} results")


if __name__ == "__main__":
    main()
