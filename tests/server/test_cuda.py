"""A worker on a CUDA device: what goes through pinned memory comes out as from the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lumigrad.protos import dtypes
from lumigrad.v1 import worker_pb2
from support.raw_calls import RawClient, color_gradient, opencv_camera, spec_of, sphere_cloud
from support.worker import worker

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
