"""A worker on a CUDA device or the emulated one: results are those of the CPU, whatever happens in between."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch

from lumigrad.protos import dtypes
from lumigrad.protos.lane_tensors import LaneReader
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.server.core.errors import DEVICE_LOST
from lumigrad.v1 import errors_pb2, image_pb2, render_pb2, scene_pb2, training_pb2, worker_pb2, world_pb2
from support.calls.distance_calls import DistanceClient, cuboid, mesh_arrays, mesh_obstacle, pose_of, world_of
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import (
    Array,
    RawClient,
    color_gradient,
    detail,
    failure,
    opencv_camera,
    spec_of,
    sphere_cloud,
    with_scene,
)
from support.calls.raw_frames import RawFrames
from support.calls.raw_lane import RawLane
from support.calls.raw_training import RawTraining, start_of
from support.meshes.shapes import torus
from support.workers.cuda_machines import GPU, MACHINES, Machine
from support.workers.faults import Faults
from support.workers.slow_render import SlowRender, wait_for, wait_until
from support.workers.worker import WorkerProcess, worker

SEED = 7


@pytest.fixture(scope="module", params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    made: Machine = request.param
    return made


@pytest.fixture(scope="module")
def cpu(shared_worker: WorkerProcess) -> Iterator[RawClient]:
    with RawClient(shared_worker.target) as raw:
        yield raw


@pytest.fixture(scope="module")
def process(machine: Machine) -> Iterator[WorkerProcess]:
    with machine.worker() as started:
        yield started


@pytest.fixture(scope="module")
def cuda(client: RawClient) -> RawClient:
    return client


@pytest.fixture(scope="module")
def cloud(machine: Machine) -> dict[str, Array]:
    return sphere_cloud(machine.count)


def close(remote: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(remote - expected).max() <= tolerance * scale


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_info_names_the_device() -> None:
    with GPU.worker() as process, process.channel() as channel:
        info = RawClient("", channel=channel).worker_stub.Info(worker_pb2.InfoRequest(), timeout=60)
    assert info.device == "cuda:0"
    assert info.cuda_built
    assert 0 < info.device_memory_free_bytes <= info.device_memory_bytes


def test_a_scene_comes_back_bit_by_bit(cuda: RawClient, cloud: dict[str, Array]) -> None:
    scene_id = cuda.put(cloud).scene.scene_id
    cuda.update(scene_id, 1, {"colors": cloud["colors"] / 2})
    _, tensors = cuda.get(scene_id=scene_id, with_tensors=True)
    assert tensors["positions"].tobytes() == cloud["positions"].tobytes()
    assert tensors["colors"].tobytes() == (cloud["colors"] / 2).tobytes()


@pytest.mark.parametrize("inline", [True, False])
def test_images_and_gradients_agree_with_the_cpu(
    machine: Machine, cuda: RawClient, cpu: RawClient, cloud: dict[str, Array], inline: bool
) -> None:
    cameras = [machine.camera(), machine.camera(x=0.2)]
    gradient = {"color": color_gradient(2, machine.size, machine.size, 3)}
    replies = {}
    for name, client in (("cuda", cuda), ("cpu", cpu)):
        sent = cloud if inline else None
        scene_id = "" if inline else client.put(cloud).scene.scene_id
        spec = spec_of(*cameras, scene_id=scene_id, outputs=["color", "alpha", "depth"])
        rendered = client.render(spec, cloud=sent, retain=True)
        kept = client.backward(gradient, context_id=rendered.header.context_id)
        again = client.backward(gradient, spec=spec, cloud=sent)
        replies[name] = rendered.arrays, kept.arrays, again.arrays
        stages = {stage.name for stage in rendered.timings.stages}
        assert {"kernel.blend", "download"} <= stages
    for remote, expected, tolerance in zip(replies["cuda"], replies["cpu"], (1e-5, 1e-4, 1e-4), strict=True):
        assert list(remote) == list(expected)
        for name in expected:
            close(remote[name], expected[name], tolerance)


def test_frames_of_a_stream_are_those_of_renders(machine: Machine, cuda: RawClient, cloud: dict[str, Array]) -> None:
    cameras = [machine.camera(x=0.1 * number) for number in range(8)]
    spec = spec_of(cameras[0], scene_id=cuda.put(cloud).scene.scene_id)
    with RawLane(cuda) as lane, RawFrames(cuda) as frames:
        frames.send(spec, lane=lane.metadata(1)[0][1])
        for lease, camera in enumerate(cameras[1:], 2):
            frames.send(cameras=[camera], lane=lane.metadata(lease)[0][1])
        for camera in cameras:
            answer = frames.receive()
            assert answer.reply is not None
            color = LaneReader(answer.data, lane._find).read(answer.reply.outputs[0].tensor, "color")
            del spec.cameras[:]
            spec.cameras.append(camera)
            np.testing.assert_array_equal(color, cuda.render(spec).arrays["color"])


def test_sparse_rows_in_bfloat16_are_the_dense_ones(cuda: RawClient, cloud: dict[str, Array]) -> None:
    spec = spec_of(opencv_camera(64, 64), scene_id=cuda.put(cloud).scene.scene_id)
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
    spheres = np.concatenate([rng.uniform(-0.6, 0.6, (2, 6, 20, 3)), np.full((2, 6, 20, 1), 0.05)], -1)
    shape, upstream = torus(64, 32), {"cost": np.ones((2, 6, 20), np.float32)}
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
        raw.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=world_id), timeout=60)
        raw.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=mesh_id), timeout=60)
    for name, expected in found[1].items():
        close(found[0][name], expected, 1e-5 if name in ("cost", "distance", "field") else 2e-3)


def test_scenes_go_to_the_spool_from_the_device(machine: Machine, tmp_path: Path) -> None:
    cloud = sphere_cloud(machine.count)
    options = ("--spool", str(tmp_path))
    with machine.worker(*options) as process, process.channel() as channel:
        scene_id = RawClient("", channel=channel).put(cloud).scene.scene_id
        wait_for(process, "lumigrad_spool_waiting", 0)
    with machine.worker(*options) as process, process.channel() as channel:
        header, arrays = RawClient("", channel=channel).get(scene_id=scene_id, with_tensors=True)
        assert header.info.version == 1
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in cloud.items()
        }


@pytest.mark.parametrize("kind", ["uint8", "float16", "png"])
def test_formats_agree_with_the_cpu(
    machine: Machine, cuda: RawClient, cpu: RawClient, cloud: dict[str, Array], kind: str
) -> None:
    formats = [image_pb2.OutputFormat(name="color", format=getattr(image_pb2, f"IMAGE_FORMAT_{kind.upper()}"))]
    found = [client.render(spec_of(machine.camera()), cloud=cloud, formats=formats).arrays for client in (cuda, cpu)]
    if kind == "png":
        assert bytes(found[0]["color"][:8]) == bytes(found[1]["color"][:8])
        return
    levels = [arrays["color"].astype(np.float32) for arrays in found]
    close(levels[0], levels[1], 1 / 255 if kind == "uint8" else 1e-3)


def test_a_training_takes_the_steps_of_the_cpu(cuda: RawClient, cpu: RawClient) -> None:
    losses = []
    for client in (cuda, cpu):
        training = RawTraining(client, start_of(client, gaussian_cloud(60, seed=SEED)))
        training.started()
        alone = [training.step(number, views=[number % 2]).loss for number in range(4)]
        for number in range(4, 8):
            training.send(step=training_pb2.Step(number=number, views=[number % 2]))
        losses.append(alone + [training.reply().done.loss for _ in range(4)])
        training.finish()
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[1][0] != losses[1][2], "the parameters have changed"


@pytest.mark.parametrize(
    ("scene", "make"), [(sphere_cloud, spec_of), (gaussian_cloud, gaussian_spec)], ids=["spheres", "gaussians"]
)
def test_calls_that_wait_together_are_rendered_together(
    machine: Machine,
    process: WorkerProcess,
    cuda: RawClient,
    scene: Callable[[int], dict[str, Array]],
    make: Callable[..., render_pb2.RenderSpec],
) -> None:
    scene_id = cuda.put(scene(20)).scene.scene_id
    specs = [make(opencv_camera(16, 16, x=x), scene_id=scene_id) for x in (0.0, 0.1, 0.2, 0.3)]
    taken_ms: list[float] = []

    def rendered(spec: render_pb2.RenderSpec) -> Array:
        reply = cuda.render(spec)
        stages = reply.timings.stages
        taken_ms.append(sum(stage.milliseconds for stage in stages if stage.name.startswith("kernel.")))
        return reply.arrays["color"]

    def batches() -> float:
        """The number of batches in which the views are rendered while they wait together for a slow call."""
        alone = [rendered(spec) for spec in specs]
        before = process.metric("lumigrad_batch_views_count")
        found: dict[int, Array] = {}

        def ask(index: int) -> None:
            found[index] = rendered(specs[index])

        count, views, size = machine.slow
        # The slow call has one view, since other work may run between views.
        call = SlowRender(cuda, count=count).start_alone(process, views, size)
        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(specs))]
        for thread in threads:
            thread.start()

        def have_met() -> bool:
            """Whether all of them wait, or the slow call was over before that and none does."""
            is_full = process.metric("lumigrad_queue_depth") == len(specs)
            return is_full or not any(thread.is_alive() for thread in threads)

        wait_until(have_met, "calls that wait together")
        call.cancel()
        for thread in threads:
            thread.join(60)
        assert [found[index].tobytes() for index in range(len(specs))] == [color.tobytes() for color in alone]
        return process.metric("lumigrad_batch_views_count") - before - 1

    # Two views that took more than 10 ms each, as on a busy machine, do not share a batch.
    assert any(batches() < len(specs) for _ in range(10)) or statistics.median(taken_ms) > 5


def test_replies_are_written_to_lanes(cuda: RawClient, cpu: RawClient) -> None:
    # The colours have 768 KiB, and each of the other outputs 256 KiB.
    spec = spec_of(opencv_camera(256, 256), outputs=["color", "alpha", "hits"])
    cloud = sphere_cloud(50)
    expected = cpu.render(spec, cloud=cloud).arrays
    with RawLane(cuda) as lane:
        for lease, retain in ((1, False), (2, True)):
            payload = PayloadWriter()
            request = render_pb2.RenderRequest(spec=with_scene(spec, cloud, payload), retain=retain)
            call = cuda.render_stub.Render(frames_of(request, payload), metadata=lane.metadata(lease), timeout=60)
            frames = list(call)
            assert all(entry.tensor.HasField("region") for entry in frames[0].message.outputs)
            for name, array in lane.arrays(iter(frames)).items():
                close(array, expected[name], 1e-5)
            lane.release(lease)


def test_a_call_that_ran_out_of_memory_is_run_again_and_then_refused(machine: Machine, tmp_path: Path) -> None:
    with machine.worker("--device-memory-mib", "256", faults=tmp_path) as process:
        faults, client = Faults(tmp_path), RawClient(process.target)
        cloud, spec = sphere_cloud(machine.count), spec_of(machine.camera())
        expected = client.render(spec, cloud=cloud).arrays["color"]
        faults.arm("shortage")
        assert client.render(spec, cloud=cloud).arrays["color"].tobytes() == expected.tobytes()
        assert process.metric("lumigrad_memory_shortages_total", result="relieved") == 1
        faults.arm("shortages")
        error = failure(lambda: client.render(spec, cloud=cloud))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert detail(error, errors_pb2.DeviceMemoryShort).available_bytes > 0
        faults.disarm("shortages")
        assert client.render(spec, cloud=cloud).arrays["color"].tobytes() == expected.tobytes()
        # A call that needs more than the whole device is refused before anything is allocated.
        error = failure(lambda: client.render(spec_of(*[opencv_camera(1024, 1024)] * 64), cloud=cloud))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        client.close()


def test_a_lost_device_ends_the_worker(machine: Machine, tmp_path: Path) -> None:
    with machine.worker(faults=tmp_path) as process:
        faults, client = Faults(tmp_path), RawClient(process.target)
        spec, cloud = spec_of(machine.camera()), sphere_cloud(machine.count)
        client.render(spec, cloud=cloud)
        faults.arm("sticky" if machine.is_emulated else "assert")
        assert failure(lambda: client.render(spec, cloud=cloud)).code() == grpc.StatusCode.INTERNAL
        process.wait_for_log("the device is lost")
        if machine.is_emulated:
            assert process.wait() == DEVICE_LOST
        else:
            process.wait_for_log("reason=device_lost")
        client.close()


@pytest.mark.parametrize("kind", ["spheres", "gaussians"])
def test_a_call_that_is_cancelled_leaves_the_device_within_a_few_views(
    machine: Machine, process: WorkerProcess, cuda: RawClient, kind: str
) -> None:
    count, views, size = machine.slow
    slow = SlowRender(cuda, kind, count, apart=True)
    # Other work on the machine does not add to processor time.
    clock = process.processor_seconds if machine.is_emulated else time.perf_counter
    began = clock()
    list(slow.start(views, size=size))
    whole = clock() - began

    def leaves_early() -> bool:
        cancelled = {"method": "RenderService.Render", "code": "CANCELLED"}
        before = process.metric("lumigrad_calls_total", **cancelled)
        call = slow.start_alone(process, views, size)
        began = clock()
        call.cancel()
        wait_for(process, "lumigrad_predicted_bytes", 0)
        seconds = clock() - began
        wait_for(process, "lumigrad_calls_in_progress", 0)
        return seconds < whole / 2 and process.metric("lumigrad_calls_total", **cancelled) > before

    # The news may be late on a busy machine, or even come after the call's end.
    assert any(leaves_early() for _ in range(10))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_serve_each_on_its_own() -> None:
    with worker("--device", "cuda:0,cuda:1", supervised=True) as process:
        process.wait_for_log("serving", count=2)
        cloud, spec = sphere_cloud(5000), spec_of(opencv_camera(256, 256))
        found = []
        for index in range(2):
            with grpc.insecure_channel(f"127.0.0.1:{process.port + index}") as channel:
                client = RawClient("", channel=channel)
                assert client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60).device == f"cuda:{index}"
                found.append(client.render(spec, cloud=cloud).arrays["color"])
        assert found[0].tobytes() == found[1].tobytes()
