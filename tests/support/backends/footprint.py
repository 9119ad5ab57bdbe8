"""The memory of one pass over a standard scene: the worker's prediction, and the kernels' measured use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from benchmarks import gaussian_scene, scene
from benchmarks.meshes import scene as mesh_scene

from lumigrad.kernels import _native, meshes
from lumigrad.kernels.memory import trim
from lumigrad.kernels.steps import Steps
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.engines import gaussians as gaussian_engine
from lumigrad.server.engines import spheres as sphere_engine
from lumigrad.server.engines.content import Outline, shapes_of
from lumigrad.server.engines.distances import DISTANCES, DistanceInputs, distance_plan
from lumigrad.server.engines.requests import Plan
from lumigrad.server.scenes.lookup import ENGINES
from lumigrad.v1 import camera_pb2, distance_pb2, gaussians_pb2, render_pb2, spheres_pb2
from support.backends import emulation, engines, gaussian_engines

LIMITS = Limits.of(Config())
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@dataclass(frozen=True)
class Pass:
    """A forward pass, one that is retained, or one with its backward pass."""

    engine: Any
    plan: Plan
    inputs: Any
    retain: bool
    backward: bool

    @property
    def wanted(self) -> tuple[str, ...]:
        """The gradients: those of the scene, and of its slices if some have transforms."""
        return (*self.plan.default_wanted, *(["transforms"] if getattr(self.plan, "transforms", ()) else []))

    def predicted(self, device: torch.device) -> int:
        """The predicted bytes."""
        size = self.plan.forward_bytes(self.plan.outputs, retain=self.retain, device=device)
        return size + (self.plan.backward_bytes(self.wanted, device) if self.backward else 0)

    def run(self) -> list[Any]:
        """Runs the pass; returns all its results."""
        plan = self.plan
        forward = self.engine.forward(plan, self.inputs, plan.outputs, retain=self.retain, before_view=int)
        if not self.backward:
            return [forward]
        name = next(name for name in plan.outputs if name in plan.upstream_shapes)
        gradient = {name: torch.ones(*plan.upstream_shapes[name])}
        return [forward, self.engine.backward(forward.state, gradient, self.wanted, int)]

    def measured(self) -> int:
        """Bytes that the kernels' pool grows by on the CPU."""
        trim(CPU)
        before = _native.pool_bytes()
        results = self.run()
        grown = _native.pool_bytes() - before
        del results
        return grown

    def measured_on_cuda(self) -> int:
        """Bytes of the emulated device, and of the tensors that torch would have there."""
        native = emulation.load("_emulation")
        module, face = _EMULATED[self.engine.name]
        one = face.ENGINES["emulation"]()
        native.device_trim(0)
        before = native.device_bytes(0)
        emulated = replace(self, engine=replace(self.engine, backward_steps=_in_steps(one._backward)))
        with mock.patch(f"{module.__name__}.{self.engine.name}.forward_steps", _in_steps(one._forward)):
            results = emulated.run()
        return native.device_bytes(0) - before + self._of_torch(results)

    def _of_torch(self, results: Sequence[Any]) -> int:
        tensors = {**results[0].outputs, **(results[0].state.images if self.retain else {})}
        size = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors.values()}.values())
        if self.backward:
            size += sum(tensor.nbytes for tensor in (*results[1].gradients.values(), results[1].touched))
        return size


def _in_steps(run: Callable[..., Any]) -> Callable[..., Steps[Any]]:
    def steps(*arguments: Any, **options: Any) -> Steps[Any]:
        yield
        return run(*arguments, **options)

    return steps


_EMULATED: dict[str, tuple[Any, Any]] = {
    "spheres": (sphere_engine, engines),
    "gaussians": (gaussian_engine, gaussian_engines),
}


def pass_of(kind: str, what: str, *sizes: int) -> Pass:
    """A "forward", "retained" or "backward" pass of one of `MAKE`."""
    engine: Any = DISTANCES if kind == "meshes" else ENGINES["gaussians" if kind in ("rays", "surfels") else kind]
    return Pass(engine, *MAKE[kind](*sizes), retain=what != "forward", backward=what == "backward")


def _spheres(count: int, width: int, height: int, views: int, semantics: int) -> tuple[Plan, Any]:
    one = scene.scene(count)
    inputs = {name: torch.from_numpy(getattr(one, name)) for name in ("positions", "colors", "radii")}
    camera = camera_pb2.Camera(width=width, height=height)
    camera.pulsar.parameters.extend(scene.CAMERA)
    settings = spheres_pb2.SphereSettings(gamma=scene.GAMMA, max_depth=scene.MAX_DEPTH, semantics=semantics)
    spec = render_pb2.RenderSpec(cameras=[camera] * views, spheres=settings)
    return ENGINES["spheres"].plan(spec, shapes_of(inputs), LIMITS, "spec"), inputs


def _on_rays(count: int, width: int, height: int, views: int, rolls: int, moving: int = 0) -> tuple[Plan, Any]:
    """A plan along rays with its inputs; gradients of the `moving` slices are wanted too."""
    one = gaussian_scene.scene(count, width, height)
    inputs = {name: torch.from_numpy(array) for name, array in one.tensors.items()}
    fx, fy, cx, cy = one.intrinsics
    sensor = camera_pb2.SensorCamera(pinhole=camera_pb2.PinholeLens(fx=fx, fy=fy, cx=cx, cy=cy))
    sensor.start.translation.extend(one.translation)
    sensor.start.rotation.extend(one.rotation.ravel().tolist())
    if rolls:
        sensor.shutter = camera_pb2.SHUTTER_TOP_TO_BOTTOM
        sensor.end.CopyFrom(sensor.start)
    camera = camera_pb2.Camera(width=width, height=height, sensor=sensor)
    settings = gaussians_pb2.GaussianSettings(response=gaussians_pb2.RESPONSE_RAY)
    still = np.eye(4).ravel().tolist()
    for i in range(moving):
        settings.transforms.add(begin=i, end=i + 1, matrix=still, matrix_end=still)
    outputs = ["color", "hit_distance", "normals", "ids"] if rolls else []
    spec = render_pb2.RenderSpec(cameras=[camera] * views, gaussians=settings, outputs=outputs)
    return ENGINES["gaussians"].plan(spec, shapes_of(inputs), LIMITS, "spec"), inputs


def _gaussians(count: int, width: int, height: int, views: int, semantics: int, **options: Any) -> tuple[Plan, Any]:
    one = gaussian_scene.scene(count, width, height)
    inputs = {name: torch.from_numpy(array) for name, array in one.tensors.items()}
    camera = camera_pb2.Camera(width=width, height=height)
    fx, fy, cx, cy = one.intrinsics
    opencv = camera_pb2.OpenCVCamera(fx=fx, fy=fy, cx=cx, cy=cy, translation=one.translation)
    opencv.rotation.extend(one.rotation.ravel().tolist())
    camera.opencv.CopyFrom(opencv)
    outputs = options.pop("outputs", ())
    settings = gaussians_pb2.GaussianSettings(semantics=semantics, **options)
    spec = render_pb2.RenderSpec(cameras=[camera] * views, gaussians=settings, outputs=outputs)
    return ENGINES["gaussians"].plan(spec, shapes_of(inputs), LIMITS, "spec"), inputs


def _surfels(count: int, width: int, height: int, views: int, surfaces: int) -> tuple[Plan, Any]:
    """A plan of surfels with its inputs; `surfaces` adds all outputs but normals of surfaces, which are torch's."""
    outputs = ["color", "expected_depth", "median_depth", "normals", "distortion", "ids"] if surfaces else []
    surfel = gaussians_pb2.PRIMITIVE_SURFEL
    return _gaussians(count, width, height, views, 1, primitive=surfel, outputs=outputs)


def _meshes(batches: int, horizon: int, spheres: int, sweep: int, costs: int) -> tuple[Plan, Any]:
    torus = mesh_scene.torus("1k")
    mesh = meshes.Mesh.build(torch.from_numpy(torus.vertices.astype(np.float32)), torch.from_numpy(torus.faces))
    rows = np.random.default_rng(3).uniform(-0.5, 0.5, (batches, horizon, spheres, 4)).astype(np.float32)
    spec = distance_pb2.DistanceSpec(
        spheres=PayloadWriter().add(rows),
        outputs=["cost", "gradient"] if costs else ["distance"],
        settings=distance_pb2.DistanceSettings(activation_distance=0.02, sweep=bool(sweep)),
    )
    plan = distance_plan(spec, Outline(obstacles=1, environments=1), LIMITS, "spec")
    inputs = DistanceInputs(meshes.World([meshes.Instance(mesh)]), {"spheres": torch.from_numpy(rows)})
    return plan, inputs


MAKE: dict[str, Callable[..., tuple[Plan, Any]]] = {
    "spheres": _spheres,
    "gaussians": _gaussians,
    "rays": _on_rays,
    "surfels": _surfels,
    "meshes": _meshes,
}
