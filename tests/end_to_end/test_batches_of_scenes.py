"""Items of a batch show scenes as they are when they are rendered, whatever has happened since the checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from lumigrad.client import Gaussians
from lumigrad.v1 import render_pb2, scene_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import Arrays, RawClient, opencv_camera
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

# Two scenes of so many Gaussians do not fit into a MiB.
COUNT, CAMERA = 10_000, opencv_camera(16, 12)
SMALL = ("--scene-mib", "1", "--max-payload-mib", "1")
OK, LOST, BROKEN = (
    code.value[0] for code in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
)


def cloud(seed: int, count: int = COUNT) -> Gaussians:
    random = np.random.default_rng(seed)
    quats, scales = np.tile([1.0, 0, 0, 0], (count, 1)), np.full((count, 3), 0.02)
    return Gaussians(
        random.normal(size=(count, 3)), quats, scales, np.full(count, 0.5), colors=random.random((count, 3))
    )


def write(scene: Gaussians | bytes, file: Path) -> scene_pb2.SceneRef:
    """Puts a scene, or bytes that are none, in the place of a file; returns its reference."""
    new = file.with_name(f"new-{file.name}")
    new.write_bytes(scene) if isinstance(scene, bytes) else scene.save(new)
    os.replace(new, file)
    return scene_pb2.SceneRef(name=file.as_uri())


def items_of(*references: scene_pb2.SceneRef) -> list[render_pb2.RenderItem]:
    specs = [gaussian_spec(CAMERA, outputs=["color"]) for _ in references]
    for spec, reference in zip(specs, references, strict=True):
        spec.scene_ref.CopyFrom(reference)
    return [render_pb2.RenderItem(spec=spec) for spec in specs]


def alone(client: RawClient, reference: scene_pb2.SceneRef) -> bytes:
    return client.render(items_of(reference)[0].spec).arrays["color"].tobytes()


@dataclass
class Held:
    """A worker whose batches wait after their first launch."""

    process: WorkerProcess
    client: RawClient
    hold: Path
    begun: Path
    threads: ThreadPoolExecutor

    def begin(self, *references: scene_pb2.SceneRef) -> Future[list[tuple[int, bytes]]]:
        """Begins a batch, and waits for its first launch; returns the codes and the pictures of its items."""
        self.hold.touch()
        batch = self.threads.submit(self._batch, *references)
        wait_until(self.begun.exists, "the first launch")
        return batch

    def _batch(self, *references: scene_pb2.SceneRef) -> list[tuple[int, bytes]]:
        reply = self.client.render_batch(*items_of(*references))
        pictures = [arrays["color"].tobytes() if arrays else b"" for arrays in reply.arrays]
        return [(item.status.code, picture) for item, picture in zip(reply.items, pictures, strict=True)]


@contextmanager
def holding(folder: Path, *options: str) -> Iterator[Held]:
    hold, begun = folder / "hold", folder / "begun"
    before = f"""
import pathlib, time
from lumigrad.server.rpc.render_batch import _Batch

hold, begun, plain = pathlib.Path({str(hold)!r}), pathlib.Path({str(begun)!r}), _Batch.render

def render(self, group):
    plain(self, group)
    begun.touch()
    while hold.exists():
        time.sleep(0.01)

_Batch.render = render
"""
    with (
        worker("--device", "cpu", "--scene-files", str(folder), *options, before=(before,)) as process,
        RawClient(process.target) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        yield Held(process, client, hold, begun, threads)


def test_items_of_more_files_than_fit_into_memory_are_rendered(tmp_path: Path) -> None:
    with (
        worker("--device", "cpu", "--scene-files", str(tmp_path), *SMALL) as process,
        RawClient(process.target) as client,
    ):
        files = [write(cloud(seed), tmp_path / f"{seed}.ply") for seed in range(3)]
        expected = [alone(client, file) for file in files]
        order = (0, 1, 2, 1, 0)
        reply = client.render_batch(*items_of(*[files[number] for number in order]))
        assert [item.status.code for item in reply.items] == [OK] * len(order)
        assert [arrays["color"].tobytes() for arrays in reply.arrays] == [expected[number] for number in order]


def test_a_file_that_is_no_scene_is_the_error_of_its_item(tmp_path: Path) -> None:
    with holding(tmp_path) as held:
        good, bad, late = (write(cloud(seed, 50), tmp_path / f"{seed}.ply") for seed in range(3))
        expected = alone(held.client, good)
        write(b"ply\nnothing", tmp_path / "1.ply")
        batch = held.begin(good, bad, late, late)
        write(b"ply\nnothing", tmp_path / "2.ply")
        held.hold.unlink()
        assert batch.result() == [(OK, expected), *[(BROKEN, b"")] * 3]


def test_items_that_name_no_version_show_the_present_one(tmp_path: Path) -> None:
    with holding(tmp_path) as held:
        client = held.client
        tensors: Arrays = gaussian_cloud(50, seed=1)
        first = scene_pb2.SceneRef(scene_id=client.put(gaussian_cloud(30, seed=2)).scene.scene_id)
        put = client.put(tensors).scene
        present, fixed = (scene_pb2.SceneRef(scene_id=put.scene_id, version=version) for version in (0, put.version))
        file = write(cloud(3, 50), tmp_path / "file.ply")
        old = [alone(client, reference) for reference in (first, present, file)]
        batch = held.begin(first, present, fixed, present, file, file)
        client.update(put.scene_id, put.version, {"opacities": tensors["opacities"] / 2})
        # Another number of Gaussians: the item has another plan.
        write(cloud(4, 70), tmp_path / "file.ply")
        held.hold.unlink()
        found = batch.result()
        new = [alone(client, reference) for reference in (present, file)]
        assert new != old[1:]
        assert [picture for _, picture in found] == [old[0], new[0], b"", new[0], new[1], new[1]]
        assert [code for code, _ in found] == [OK, OK, BROKEN, OK, OK, OK]


def test_a_scene_that_is_gone_is_the_error_of_its_item(tmp_path: Path) -> None:
    with holding(tmp_path) as held:
        first, second = (
            scene_pb2.SceneRef(scene_id=held.client.put(gaussian_cloud(30, seed=seed)).scene.scene_id)
            for seed in (1, 2)
        )
        expected = alone(held.client, first)
        batch = held.begin(first, second, second)
        held.client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=second.scene_id), timeout=60)
        held.hold.unlink()
        assert batch.result() == [(OK, expected), *[(LOST, b"")] * 2]
