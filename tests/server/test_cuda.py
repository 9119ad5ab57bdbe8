"""A worker on a CUDA device: what goes through pinned memory comes out as from the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.protos import dtypes
from lumigrad.v1 import scene_pb2, worker_pb2, world_pb2
from support.calls.distance_calls import DistanceClient, cuboid, mesh_arrays, mesh_obstacle, pose_of, world_of
from support.calls.raw_calls import RawClient, color_gradient, opencv_camera, spec_of, sphere_cloud
from support.meshes.shapes import torus
from support.workers.slow_render import wait_for
from support.workers.worker import worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CLOUD = sphere_cloud(5000)


@pytest.fixture(scope="module")
def cpu(client: RawClient) -> RawClient:
    return client


@pytest.fixture(scope="module")
def cuda() -> Iterator[RawClient]:
    with worker("--device", "cuda:0") as process:
        raw = RawClient(process.target)
        yield raw
        raw.close()


def close(remote: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(remote - expected).max() <= tolerance * scale


def test_info_names_the_device(cuda: RawClient) -> None:
    info = cuda.worker_stub.Info(worker_pb2.InfoRequest(), timeout=10)
    assert info.device == "cuda:0"
    assert info.cuda_built
    assert 0 < info.device_memory_free_bytes <= info.device_memory_bytes


def test_a_scene_comes_back_bit_by_bit(cuda: RawClient) -> None:
    scene_id = cuda.put(CLOUD).scene.scene_id
    cuda.update(scene_id, 1, {"colors": CLOUD["colors"] / 2})
    _, tensors = cuda.get(scene_id=scene_id, with_tensors=True)
    assert tensors["positions"].tobytes() == CLOUD["positions"].tobytes()
    assert tensors["colors"].tobytes() == (CLOUD["colors"] / 2).tobytes()


@pytest.mark.parametrize("inline", [True, False])
def test_images_and_gradients_agree_with_the_cpu(cuda: RawClient, cpu: RawClient, inline: bool) -> None:
    cameras = [opencv_camera(256, 256), opencv_camera(256, 256, x=0.2)]
    gradient = {"color": color_gradient(2, 256, 256, 3)}
    replies = {}
    for name, client in (("cuda", cuda), ("cpu", cpu)):
        cloud = CLOUD if inline else None
        scene_id = "" if inline else client.put(CLOUD).scene.scene_id
        spec = spec_of(*cameras, scene_id=scene_id, outputs=["color", "alpha", "depth"])
        rendered = client.render(spec, cloud=cloud, retain=True)
        kept = client.backward(gradient, context_id=rendered.header.context_id)
        again = client.backward(gradient, spec=spec, cloud=cloud)
        replies[name] = rendered.arrays, kept.arrays, again.arrays
        stages = {stage.name for stage in rendered.timings.stages}
        assert {"kernel.blend", "download"} <= stages
    for remote, expected, tolerance in zip(replies["cuda"], replies["cpu"], (1e-5, 1e-4, 1e-4), strict=True):
        assert list(remote) == list(expected)
        for name in expected:
            close(remote[name], expected[name], tolerance)


def test_sparse_rows_in_bfloat16_are_the_dense_ones(cuda: RawClient) -> None:
    spec = spec_of(opencv_camera(64, 64), scene_id=cuda.put(CLOUD).scene.scene_id)
    gradient = {"color": color_gradient(1, 64, 64, 3)}
    context_id = cuda.render(spec, retain=True).header.context_id
    dense = cuda.backward(gradient, context_id=context_id).arrays
    sparse = cuda.backward(gradient, context_id=context_id, format={"sparse": True, "dtype": dtypes.BFLOAT16}).arrays
    index = sparse.pop("index")
    for name, rows in sparse.items():
        full = np.zeros_like(dense[name])
        full[index] = rows
        close(full, dense[name], 2**-8)


def test_distances_and_their_gradients_agree_with_the_cpu(cuda: RawClient, cpu: RawClient) -> None:
    rng = np.random.default_rng(5)
    spheres = np.concatenate([rng.uniform(-0.6, 0.6, (4, 8, 50, 3)), np.full((4, 8, 50, 1), 0.05)], -1)
    shape, upstream = torus(64, 32), {"cost": np.ones((4, 8, 50), np.float32)}
    found = []
    for raw in (cuda, cpu):
        distances = DistanceClient(raw)
        mesh_id = raw.put(mesh_arrays(shape)).scene.scene_id
        world = world_of(mesh_obstacle(mesh_id, name="a"), cuboid(0.2, 0.2, 2.0, pose=pose_of(0.5, 0.5, 0)))
        world_id = distances.put(world).scene.scene_id
        raw.update(mesh_id, 1, {"vertices": (1.1 * shape.vertices).astype(np.float32)})
        distances.update(world_id, 1, world_pb2.ObstacleUpdate(name="a", pose=pose_of(0.1, 0, 0)))
        reply = distances.query(
            world_id,
            spheres.astype(np.float32),
            outputs=["cost", "distance"],
            activation_distance=0.1,
            sweep=True,
            retain=True,
        )
        gradients = distances.backward(
            upstream, context_id=reply.header.context_id, wanted=["spheres", "poses", "weight"]
        )
        field = distances.field(scene_ref={"scene_id": world_id}, size=[1, 1, 1], voxel_size=0.1)
        found.append({**reply.arrays, **gradients.arrays, "field": field.arrays["distance"]})
        raw.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=world_id), timeout=10)
        raw.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=mesh_id), timeout=10)
    for name, expected in found[1].items():
        close(found[0][name], expected, 1e-5 if name in ("cost", "distance", "field") else 2e-3)


def test_scenes_go_to_the_spool_from_the_device(tmp_path: Path) -> None:
    options = ("--device", "cuda:0", "--spool", str(tmp_path))
    with worker(*options) as process, process.channel() as channel:
        scene_id = RawClient("", channel=channel).put(CLOUD).scene.scene_id
        wait_for(process, "lumigrad_spool_waiting", 0)
    with worker(*options) as process, process.channel() as channel:
        header, arrays = RawClient("", channel=channel).get(scene_id=scene_id, with_tensors=True)
        assert header.info.version == 1
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in CLOUD.items()
        }
