"""Shapes whose sizes overflow when multiplied, or hide behind a zero, are the caller's fault wherever they occur."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import grpc
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from lumigrad.v1 import camera_pb2, distance_pb2, gaussians_pb2, render_pb2, scene_pb2, tensor_pb2, training_pb2
from support.calls.distance_calls import DistanceClient, cuboid, mesh_arrays, world_of
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_messages import status_of
from support.calls.raw_training import start_of
from support.calls.valid_requests import METHODS
from support.meshes.shapes import torus
from support.workers.unharmed import unharmed_after
from support.workers.worker import WorkerProcess

Code = grpc.StatusCode
Shape = Sequence[int]


def tensor(shape: Shape, dtype: int = tensor_pb2.DTYPE_FLOAT32) -> tensor_pb2.Tensor:
    """A tensor without any bytes, which is complete if one of its sizes is zero."""
    return tensor_pb2.Tensor(dtype=dtype, shape=shape)


def gaussians(lead: Shape, color: Shape, views: Shape) -> scene_pb2.Scene:
    cloud = scene_pb2.GaussianCloud(
        means=tensor([*lead, 3]),
        quats=tensor([*lead, 4]),
        scales=tensor([*lead, 3]),
        opacities=tensor(lead),
        colors=tensor([*views, *lead, *color]),
    )
    return scene_pb2.Scene(gaussians=cloud)


def spheres(lead: Shape, color: Shape, _: Shape) -> scene_pb2.Scene:
    cloud = scene_pb2.SphereCloud(positions=tensor([*lead, 3]), colors=tensor([*lead, *color]), radii=tensor(lead))
    return scene_pb2.Scene(spheres=cloud)


def mesh(lead: Shape, _: Shape, more: Shape) -> scene_pb2.Scene:
    faces = tensor([*more, 3], tensor_pb2.DTYPE_INT32)
    return scene_pb2.Scene(mesh={"vertices": tensor([*lead, 3]), "faces": faces})


def target(size: Shape, color: Shape, _: Shape) -> scene_pb2.Scene:
    return scene_pb2.Scene(target={"color": tensor([*size, *color]), "mask": tensor(size), "depth": tensor(size)})


def grid(shape: Shape, _: Shape, __: Shape) -> scene_pb2.Scene:
    return scene_pb2.Scene(world={"obstacles": [{"grid": {"distances": tensor(shape), "voxel_size": 0.1}}]})


SCENES: list[Callable[[Shape, Shape, Shape], scene_pb2.Scene]] = [gaussians, spheres, mesh, target, grid]
sizes = st.sampled_from((0, 0, 0, 1, 2, 3, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1))
shapes = st.lists(sizes, max_size=3)


@pytest.mark.parametrize("make", SCENES, ids=lambda make: make.__name__)
def test_scenes_of_any_shape(process: WorkerProcess, client: RawClient, make: object) -> None:
    put, render = METHODS["SceneService/Put"], METHODS["RenderService/Render"]

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(shapes, st.lists(sizes, max_size=2), st.lists(sizes, max_size=1))
    def holds(lead: Shape, color: Shape, views: Shape) -> None:
        scene = make(lead, color, views)  # type: ignore[operator]
        spec = gaussian_spec(opencv_camera(8, 8)) if make is gaussians else spec_of(opencv_camera(8, 8))
        spec.scene.CopyFrom(scene)
        messages = {
            put: scene_pb2.PutRequest(scene=scene).SerializeToString(),
            render: render_pb2.RenderRequest(spec=spec).SerializeToString(),
        }
        for method, message in messages.items():
            code = status_of(client.channel, method, [message])
            if max((*lead, *color, *views, 0)) >= 1 << 31:
                assert code == Code.INVALID_ARGUMENT
            assert code in (Code.OK, Code.INVALID_ARGUMENT)

    with unharmed_after(process, client):
        holds()


def test_rays_of_any_shape(process: WorkerProcess, client: RawClient) -> None:
    camera = opencv_camera(8, 8)
    pose = camera_pb2.CameraPose(rotation=camera.opencv.rotation, translation=camera.opencv.translation)
    camera.sensor.CopyFrom(camera_pb2.SensorCamera(start=pose, pinhole={"fx": 8, "fy": 8, "cx": 4, "cy": 4}))
    spec = gaussian_spec(camera, response=gaussians_pb2.RESPONSE_RAY)
    spec.scene_ref.scene_id = client.put(gaussian_cloud(3)).scene.scene_id

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(sizes, max_size=4))
    def holds(shape: Shape) -> None:
        spec.cameras[0].sensor.rays.rays.CopyFrom(tensor(shape))
        request = render_pb2.RenderRequest(spec=spec).SerializeToString()
        assert status_of(client.channel, METHODS["RenderService/Render"], [request]) == Code.INVALID_ARGUMENT

    with unharmed_after(process, client):
        holds()


def test_queries_of_any_shape(process: WorkerProcess, client: RawClient) -> None:
    query, backward = METHODS["DistanceService/Query"], METHODS["DistanceService/Backward"]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(sizes, min_size=3, max_size=3), st.lists(sizes, max_size=2), st.booleans(), st.booleans())
    def holds(lead: Shape, other: Shape, has_environments: bool, has_poses: bool) -> None:
        spec = distance_pb2.DistanceSpec(scene=world_of(cuboid(1, 1, 1)), spheres=tensor([*lead, 4]))
        if has_environments:
            spec.environments.CopyFrom(tensor(lead[:1], tensor_pb2.DTYPE_INT32))
        if has_poses:
            spec.poses.CopyFrom(tensor(other))
        gradient = tensor_pb2.NamedTensor(name="cost", tensor=tensor(other))
        gradients = distance_pb2.DistanceBackwardSpec(query=spec, output_gradients=[gradient])
        messages = {
            query: distance_pb2.QueryRequest(spec=spec).SerializeToString(),
            backward: distance_pb2.DistanceBackwardRequest(spec=gradients).SerializeToString(),
        }
        for method, message in messages.items():
            code = status_of(client.channel, method, [message])
            if max(lead) >= 1 << 31 or method is backward:
                assert code == Code.INVALID_ARGUMENT
            assert code in (Code.OK, Code.INVALID_ARGUMENT)

    with unharmed_after(process, client):
        holds()


def test_fields_of_any_size(process: WorkerProcess, client: RawClient) -> None:
    method = METHODS["DistanceService/Field"]
    edges = st.sampled_from((0.0, 5e-324, 1e-9, 0.5, 1.0, 1e9, 1e300, float("inf"), float("nan"), -1.0))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(edges, max_size=4), edges)
    def holds(size: Sequence[float], voxel_size: float) -> None:
        request = distance_pb2.FieldRequest(scene=world_of(cuboid(1, 1, 1)), size=size, voxel_size=voxel_size)
        code = status_of(client.channel, method, [request.SerializeToString()])
        is_small = len(size) == 3 and all(0 < edge <= 1 for edge in size) and 0.5 <= voxel_size < 1e301
        # A voxel may be as large as the field, however small both are.
        is_one_voxel = len(size) == 3 and all(0 < edge <= voxel_size < 1e301 for edge in size)
        refused = (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
        assert code == Code.OK if is_small else code in refused or (is_one_voxel and code == Code.OK)

    with unharmed_after(process, client):
        holds()


def test_gradients_of_steps_of_any_shape(process: WorkerProcess, client: RawClient) -> None:
    train, seeds = METHODS["TrainingService/Train"], itertools.count()

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(sizes, max_size=5))
    def holds(shape: Shape) -> None:
        # A scene has one training.
        start = start_of(client, gaussian_cloud(3, seed=next(seeds)))
        gradient = tensor_pb2.NamedTensor(name="color", tensor=tensor(shape))
        requests = (
            training_pb2.TrainRequest(start=start),
            training_pb2.TrainRequest(step={"batch": 1, "outputs": ["color"], "own_loss": True}),
            training_pb2.TrainRequest(gradients={"number": 0, "output_gradients": [gradient]}),
        )
        code = status_of(client.channel, train, [request.SerializeToString() for request in requests])
        assert code == Code.INVALID_ARGUMENT

    with unharmed_after(process, client):
        holds()


def test_gradients_and_updates_of_any_shape(process: WorkerProcess, client: RawClient) -> None:
    backward, update = METHODS["RenderService/Backward"], METHODS["SceneService/Update"]
    stored = client.put(sphere_cloud(3)).scene
    others = {"means": gaussian_cloud(3), "vertices": mesh_arrays(torus(6, 4))}
    scenes = {"positions": stored, **{name: client.put(cloud).scene for name, cloud in others.items()}}
    # Updates change a world's obstacles, not its tensors.
    scenes["distances"] = DistanceClient(client).put(world_of(cuboid(1, 1, 1))).scene

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(sizes, max_size=5))
    def holds(shape: Shape) -> None:
        entry = tensor_pb2.NamedTensor(name="color", tensor=tensor(shape))
        spec = render_pb2.BackwardSpec(render=spec_of(scene_id=stored.scene_id), output_gradients=[entry])
        code = status_of(client.channel, backward, [render_pb2.BackwardRequest(spec=spec).SerializeToString()])
        assert code == Code.INVALID_ARGUMENT
        for name, scene in scenes.items():
            entry.name = name
            request = scene_pb2.UpdateRequest(scene_id=scene.scene_id, expected_version=1, tensors=[entry])
            assert status_of(client.channel, update, [request.SerializeToString()]) == Code.INVALID_ARGUMENT

    with unharmed_after(process, client):
        holds()
