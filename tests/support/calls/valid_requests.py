"""Requests that succeed, as bytes, from which tests derive damaged requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor

from lumigrad.kernels.gaussians import OUTPUTS
from lumigrad.protos.service import DRIVE_SERVICES, SERVICE_NAMES, Method, methods
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import camera_pb2, distance_pb2, gaussians_pb2, render_pb2, scene_pb2, training_pb2, world_pb2
from support.calls.distance_calls import DistanceClient, cuboid, grid, mesh_arrays, mesh_obstacle, pose_of, world_of
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec, inria_camera
from support.calls.raw_calls import (
    Arrays,
    RawClient,
    color_gradient,
    opencv_camera,
    pulsar_camera,
    scene_of,
    spec_of,
    sphere_cloud,
    with_scene,
)
from support.meshes.shapes import torus

ALL_METHODS = [method for service in SERVICE_NAMES for method in methods(service)]
METHODS = {method.path.removeprefix("/lumigrad.v1."): method for method in ALL_METHODS}
# The type of the messages that carry payloads, by path of the method.
FRAME_OF: dict[str, Any] = {
    "/lumigrad.v1.RenderService/Render": render_pb2.RenderRequest,
    "/lumigrad.v1.RenderService/RenderBatch": render_pb2.RenderBatchRequest,
    "/lumigrad.v1.RenderService/Backward": render_pb2.BackwardRequest,
    "/lumigrad.v1.SceneService/Put": scene_pb2.PutRequest,
    "/lumigrad.v1.DistanceService/Query": distance_pb2.QueryRequest,
    "/lumigrad.v1.DistanceService/Backward": distance_pb2.DistanceBackwardRequest,
    "/lumigrad.v1.TrainingService/Train": training_pb2.TrainRequest,
}


def _reachable(kind: Descriptor, seen: dict[str, Descriptor]) -> dict[str, Descriptor]:
    if kind.full_name not in seen:
        seen[kind.full_name] = kind
        for field in kind.fields:
            if field.message_type is not None:
                _reachable(field.message_type, seen)
    return seen


def request_kinds() -> dict[str, Descriptor]:
    """The messages of all requests, those of driving simulators and nested ones included, by their full names."""
    seen: dict[str, Descriptor] = {}
    for service in (*SERVICE_NAMES, *DRIVE_SERVICES):
        for method in methods(service):
            _reachable(method.request, seen)
    return seen


def valid_requests(client: RawClient) -> Iterator[tuple[Method, bytes, bytes]]:
    """Method, header and payload of calls that succeed."""
    for spec, cloud in valid_specs():
        stored = render_pb2.RenderSpec()
        stored.CopyFrom(spec)
        stored.scene_ref.scene_id = client.put(cloud).scene.scene_id
        yield (
            METHODS["RenderService/Render"],
            render_pb2.RenderRequest(spec=stored, retain=True).SerializeToString(),
            b"",
        )
        frame = render_pb2.FrameRequest(number=1, render=render_pb2.RenderRequest(spec=stored), timeout_ms=60_000)
        yield METHODS["RenderService/RenderStream"], frame.SerializeToString(), b""
        payload = PayloadWriter()
        wanted = ["cameras", "opacities"]
        request = render_pb2.BackwardSpec(
            render=with_scene(spec, cloud, payload), wanted=wanted, format={"sparse": True}
        )
        shape = len(spec.cameras), spec.cameras[0].height, spec.cameras[0].width, 3
        request.output_gradients.add(name="color", tensor=payload.add(color_gradient(*shape)))
        header = render_pb2.BackwardRequest(spec=request, payload_bytes=payload.length)
        yield METHODS["RenderService/Backward"], header.SerializeToString(), b"".join(payload.buffers)
    payload = PayloadWriter()
    items = [{"spec": with_scene(spec, cloud, payload)} for spec, cloud in valid_specs()]
    batch = render_pb2.RenderBatchRequest(items=items, payload_bytes=payload.length)
    yield METHODS["RenderService/RenderBatch"], batch.SerializeToString(), b"".join(payload.buffers)
    clouds = sphere_cloud(30, seed=51), gaussian_cloud(30, seed=51), gaussian_cloud(30, covariances=True)
    for cloud in (*clouds, mesh_arrays(torus(6, 4))):
        payload = PayloadWriter()
        put = scene_pb2.PutRequest(scene=scene_of(cloud, payload), payload_bytes=payload.length)
        yield METHODS["SceneService/Put"], put.SerializeToString(), b"".join(payload.buffers)


def valid_specs() -> Iterator[tuple[render_pb2.RenderSpec, Arrays]]:
    """Specifications of renders, with their scenes."""
    spheres = {"min_depth": 1.5, "outputs": ["color", "info"], "background": [0, 0, 0]}
    for camera in (opencv_camera(16, 16), pulsar_camera(16, 16)):
        yield spec_of(camera, **spheres), sphere_cloud(30, seed=50)
    fisheye = camera_of(camera_pb2.PROJECTION_FISHEYE, width=16, height=16)
    distorted = camera_of(distortion=(-0.12, 0.05, 0.004, -0.003), width=16, height=16)
    moved = gaussians_pb2.SliceTransform(begin=3, end=9, matrix=np.eye(4).ravel().tolist())
    gaussians: dict[str, Any] = {"outputs": OUTPUTS, "background": [0.1, 0.2, 0.3], "transforms": [moved]}
    yield gaussian_spec(fisheye, distorted, sh_degree=1, **gaussians), gaussian_cloud(30, seed=50)
    exact = {"semantics": gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT, "near": 0.2}
    yield gaussian_spec(inria_camera(), **exact), gaussian_cloud(30, coefficients=0, covariances=True)
    yield gaussian_spec(distorted, distorted), gaussian_cloud(2, 15, coefficients=0, views=1)


def valid_distance_requests(client: RawClient) -> Iterator[tuple[Method, bytes, bytes]]:
    """Like `valid_requests`, for meshes and worlds."""
    mesh_id = client.put(mesh_arrays(torus(6, 4))).scene.scene_id
    distances, payload = DistanceClient(client), PayloadWriter()
    values = np.ones((2, 3, 4), np.float32)
    fields: dict[str, Any] = {"pose": pose_of(1, 0, 0), "environment": 1}
    world = world_of(
        mesh_obstacle(mesh_id, name="mesh", pose=pose_of(0, 0, 1), sign=4),
        cuboid(1, 1, 1, name="box", **fields),
        grid(values, 0.1, payload, disabled=True),
    )
    put = scene_pb2.PutRequest(scene=world, payload_bytes=payload.length)
    yield METHODS["SceneService/Put"], put.SerializeToString(), b"".join(payload.buffers)
    world_id = distances.put(world, payload).scene.scene_id
    changes = [world_pb2.ObstacleUpdate(name="box", pose=pose_of(2, 0, 0), disabled=False)]
    update = scene_pb2.UpdateRequest(scene_id=world_id, expected_version=1, obstacles=changes)
    yield METHODS["SceneService/Update"], update.SerializeToString(), b""
    asked = {
        **{"sweep": True, "samples": 4, "speed_metric": True, "time_step": 0.1, "max_distance": 2, "weight": 2},
        **{"environments": np.array([0, 1], np.int32), "poses": np.ones((3, 7), np.float32)},
    }
    rows = np.random.default_rng(1).normal(0, 1, (2, 3, 5, 4)).astype(np.float32)
    payload = PayloadWriter()
    spec = distances.spec(world_id, rows, payload, outputs=["cost", "gradient", "distance", "face"], **asked)
    query = distance_pb2.QueryRequest(spec=spec, retain=True, payload_bytes=payload.length)
    yield METHODS["DistanceService/Query"], query.SerializeToString(), b"".join(payload.buffers)
    backward = distance_pb2.DistanceBackwardSpec(query=spec, wanted=["spheres", "poses", "weight"])
    backward.output_gradients.add(name="cost", tensor=payload.add(np.ones((2, 3, 5), np.float32)))
    header = distance_pb2.DistanceBackwardRequest(spec=backward, payload_bytes=payload.length)
    yield METHODS["DistanceService/Backward"], header.SerializeToString(), b"".join(payload.buffers)
    field = distance_pb2.FieldRequest(
        scene_ref={"scene_id": world_id}, pose=pose_of(0, 0, 0), size=[1, 1, 1], voxel_size=0.25, max_distance=1
    )
    yield METHODS["DistanceService/Field"], field.SerializeToString(), b""


def valid_training_requests(client: RawClient) -> Iterator[tuple[Method, bytes, bytes]]:
    """Starts of trainings, each of a different scene, since a scene has at most one training."""
    cloud = {name: array for name, array in gaussian_cloud(30, seed=52).items() if name != "covariances"}
    for control in ({"adaptive": {"start": 2}}, {"mcmc": {"cap": 40}}):
        cloud = {**cloud, "means": cloud["means"] + np.float32(0.01)}
        stored = client.put(cloud).scene
        spec = training_pb2.TrainingSpec(
            gaussians={"near": 0.02},
            optimizer={"rates": {name: {"initial": 1e-3} for name in ("means", "quats", "scales", "opacities")}},
            loss={"l1": 1},
            density={**control, "extent": 1},
        )
        start = training_pb2.TrainingStart(
            scene={"scene_id": stored.scene_id, "version": stored.version},
            spec=spec,
            views=[{"camera": camera_of(width=16, height=16)}],
        )
        yield METHODS["TrainingService/Train"], training_pb2.TrainRequest(start=start).SerializeToString(), b""
