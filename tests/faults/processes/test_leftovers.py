"""No data of one caller is ever in memory that another gets: every byte of a reply was written for that reply."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lumigrad.kernels import gaussians, meshes, spheres
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2
from support.calls.distance_calls import DistanceClient, mesh_arrays
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import (
    Array,
    RawClient,
    Reply,
    color_gradient,
    failure,
    opencv_camera,
    scene_of,
    spec_of,
    sphere_cloud,
    violation,
)
from support.meshes.shapes import torus
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker_fixture

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"
TOKENS = {"alice": ALICE, "bob": BOB}
# A colour that no other call has, and its bytes.
MARK = np.float32(12345.678)
MARK_BYTES = MARK.tobytes()
# glibc fills memory with this byte or its complement when it is allocated and freed.
POISON = 165
DISTANCE_OUTPUTS = [{"instance": "obstacle"}.get(name, name) for name in meshes.OUTPUTS]
shared = worker_fixture(tokens=TOKENS)


poisoned = worker_fixture(tokens=TOKENS, environment={**os.environ, "MALLOC_PERTURB_": str(POISON)})


def bytes_of(reply: Reply) -> bytes:
    """The payload as sent."""
    return b"".join(frame.data.tobytes() for frame in reply.frames)


def out_of_sight(cloud: dict[str, Array], places: str) -> dict[str, Array]:
    """The cloud with primitives behind the camera, whose results no kernel writes in passing.

    Every other one is, and thirty-two neighbours, of which kernels skip packs of sixteen.
    """
    moved = {name: array.copy() for name, array in cloud.items()}
    moved[places][::2, 2] = -5
    moved[places][8:40, 2] = -5
    return moved


def fill(client: RawClient) -> None:
    """Sends the mark wherever a call's data go: uploads, stored scenes, states, images, gradients."""
    camera = opencv_camera(256, 256)
    gradient = {"color": np.full((1, 256, 256, 3), MARK, np.float32)}
    clouds = sphere_cloud(5_000, radius=0.5), gaussian_cloud(5_000, coefficients=0)
    for cloud, spec in zip(clouds, (spec_of(camera), gaussian_spec(camera)), strict=True):
        marked = {**cloud, "colors": np.full_like(cloud["colors"], MARK)}
        spec.scene_ref.scene_id = client.put(marked).scene.scene_id
        reply = client.render(spec, retain=True)
        assert reply.arrays["color"].max() > 1000
        client.backward(gradient, context_id=reply.header.context_id, release=True)
        client.render(spec, retain=True)
        client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=spec.scene_ref.scene_id), timeout=60)


def pictures(client: RawClient) -> Iterator[tuple[str, bytes]]:
    """The replies for small and large images, with all outputs and gradients."""
    sphere = out_of_sight(sphere_cloud(48, radius=0.05), "positions")
    gaussian = out_of_sight(gaussian_cloud(48), "means")
    colors_of_views = [out_of_sight(gaussian_cloud(48, coefficients=0, views=views), "means") for views in (1, 2)]
    for size in (16, 64, 320):
        camera = opencv_camera(size, size)
        for cloud, spec in (
            (sphere, spec_of(camera, outputs=spheres.OUTPUTS)),
            (gaussian, gaussian_spec(camera, sh_degree=1, outputs=gaussians.OUTPUTS)),
            (colors_of_views[0], gaussian_spec(camera, outputs=gaussians.OUTPUTS)),
            (colors_of_views[1], gaussian_spec(camera, camera, outputs=gaussians.OUTPUTS)),
        ):
            gradient = {"color": color_gradient(len(spec.cameras), size, size, 3)}
            yield f"forward {size}", bytes_of(client.render(spec, cloud=cloud))
            wanted = ["opacities", "cameras", *cloud]
            for sparse in (False, True):
                reply = client.backward(
                    gradient, spec=spec, cloud=cloud, wanted=sorted(set(wanted)), format={"sparse": sparse}
                )
                yield f"backward {size} {sparse}", bytes_of(reply)


def distances(client: RawClient) -> Iterator[tuple[str, bytes]]:
    """The replies for distances, including spheres that are far away or disabled."""
    asking = DistanceClient(client)
    mesh_id = client.put(mesh_arrays(torus(12, 8))).scene.scene_id
    for rows in (4, 4_000):
        places = np.random.default_rng(rows).uniform(-3, 3, (1, 2, rows, 4)).astype(np.float32)
        places[..., 3] = 0.1
        places[..., ::3, 3] = -1
        for sweep in (False, True):
            outputs = meshes.COSTS if sweep else DISTANCE_OUTPUTS
            settings = {"max_distance": 0.5, "activation_distance": 0.1, "sweep": sweep, "outputs": outputs}
            reply = asking.query(mesh_id, places, retain=True, **settings)
            yield f"query {rows} {sweep}", bytes_of(reply)
            upstream = {"cost": np.ones((1, 2, rows), np.float32)}
            yield f"backward {rows} {sweep}", bytes_of(asking.backward(upstream, context_id=reply.header.context_id))


def test_memory_is_poisoned_where_these_tests_say_so() -> None:
    script = (
        "import numpy, torch; print({*numpy.empty(1 << 22, 'u1')[:99]}, {*torch.empty(99, dtype=torch.uint8).tolist()})"
    )
    environment = {**os.environ, "MALLOC_PERTURB_": str(POISON)}
    shown = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.count(str(255 - POISON)) == 2


@pytest.mark.parametrize("answers", [pictures, distances])
def test_every_byte_of_a_reply_was_written_for_it(
    shared: WorkerProcess, poisoned: WorkerProcess, answers: Callable[[RawClient], Iterator[tuple[str, bytes]]]
) -> None:
    with shared.channel() as one, poisoned.channel() as other:
        clean, foul = tenant_client(one, BOB), tenant_client(other, BOB)
        for (name, expected), (_, got) in zip(answers(clean), answers(foul), strict=True):
            assert expected == got, f"{name}: some of it is whatever memory held"


def test_what_one_tenant_sent_and_saw_is_in_no_reply_to_another(shared: WorkerProcess) -> None:
    with shared.channel() as channel:
        alice, bob = tenant_client(channel, ALICE), tenant_client(channel, BOB)
        for answers in (pictures, distances):
            fill(alice)
            for name, got in answers(bob):
                assert MARK_BYTES not in got, name


def test_a_payload_that_is_not_sent_is_not_taken_from_elsewhere(shared: WorkerProcess) -> None:
    with shared.channel() as channel:
        alice, bob = tenant_client(channel, ALICE), tenant_client(channel, BOB)
        fill(alice)
        payload = PayloadWriter()
        header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(5_000), payload), payload_bytes=payload.length)
        error = failure(lambda: bob.scene_stub.Put(iter([Frame(header)]), timeout=60))
        assert violation(error) == ("data", f"expected payload_bytes = {payload.length} bytes in all, got 0")
