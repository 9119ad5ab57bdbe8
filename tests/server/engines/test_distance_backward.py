"""DistanceService.Backward over real sockets: contexts and recomputation agree, and both with the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import meshes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import errors_pb2, render_pb2
from support.calls.distance_calls import DistanceClient, Floats
from support.calls.distance_worlds import NUMBERS, SWEPT, TORUS, assert_same, locally, stored, ways
from support.calls.raw_calls import Array, RawClient, color_gradient, detail, failure, spec_of, sphere_cloud, violation
from support.workers.worker import worker

WANTED = ("spheres", "poses", "weight")


def gradients_of(spheres: Floats) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(spheres.shape[:3]).astype(np.float32) for name in ("cost", "distance")}


def test_backward_differentiates_what_was_retained_or_computes_it_again(
    client: RawClient, distances: DistanceClient
) -> None:
    spheres, scene_id = ways(), stored(client, distances)
    upstream = gradients_of(spheres)
    fields = {**SWEPT, "environments": NUMBERS, "outputs": ("cost", "distance")}
    context_id = distances.query(scene_id, spheres, retain=True, **fields).header.context_id
    retained = distances.backward(upstream, context_id=context_id, wanted=WANTED)
    payload = PayloadWriter()
    spec = distances.spec(scene_id, spheres, payload, **fields)
    again = distances.backward(upstream, spec=spec, payload=payload, wanted=WANTED)
    settings = meshes.Settings(activation_distance=0.125, sweep=True, speed_metric=True, time_step_s=0.25)
    state = locally(spheres, settings, ("cost", "distance"), retain=True).state
    assert state is not None
    tensors = {name: torch.from_numpy(array) for name, array in upstream.items()}
    expected = meshes.backward(state, tensors, WANTED).gradients
    for reply in (retained, again):
        assert_same(reply.arrays, expected)
    assert {stage.name for stage in again.timings.stages} >= {"decode", "queue", "upload", "kernel.query", "download"}


def test_a_backward_wants_spheres_unless_it_says_otherwise(client: RawClient, distances: DistanceClient) -> None:
    spheres, mesh_id = ways(), client.put(TORUS).scene.scene_id
    context_id = distances.query(mesh_id, spheres, retain=True, outputs=["cost"]).header.context_id
    gradient = {"cost": gradients_of(spheres)["cost"]}
    assert set(distances.backward(gradient, context_id=context_id).arrays) == {"spheres"}
    halves = {"cost": gradient["cost"].astype(np.float16)}
    near = distances.backward(halves, context_id=context_id).arrays["spheres"]
    np.testing.assert_allclose(near, distances.backward(gradient, context_id=context_id).arrays["spheres"], atol=1e-2)


BAD_BACKWARDS: list[tuple[dict[str, Array], dict[str, Any], str]] = [
    ({}, {}, "spec.output_gradients"),
    ({"normal": np.ones((3, 4, 20), np.float32)}, {}, "spec.output_gradients[0].name"),
    ({"cost": np.ones((3, 4, 21), np.float32)}, {}, "spec.output_gradients[0].tensor.shape"),
    ({"cost": np.ones((3, 4, 20), np.int32)}, {}, "spec.output_gradients[0].tensor.dtype"),
    ({"cost": np.ones((3, 4, 20), np.float32)}, {"wanted": ["vertices"]}, "spec.wanted"),
    # The query asked for no distances.
    ({"distance": np.ones((3, 4, 20), np.float32)}, {}, "spec.output_gradients"),
]


@pytest.mark.parametrize(("gradients", "fields", "field"), BAD_BACKWARDS)
def test_a_backward_that_does_not_fit_is_refused(
    client: RawClient, distances: DistanceClient, gradients: dict[str, Array], fields: dict[str, Any], field: str
) -> None:
    mesh_id = client.put(TORUS).scene.scene_id
    context_id = distances.query(mesh_id, ways(), retain=True, outputs=["cost"]).header.context_id
    error = failure(lambda: distances.backward(gradients, context_id=context_id, **fields))
    assert violation(error)[0] == field


@pytest.mark.parametrize("semantics", [2, 3])
def test_curobo_has_gradients_of_costs_with_respect_to_spheres_and_weight(
    client: RawClient, distances: DistanceClient, semantics: int
) -> None:
    fields = {"semantics": semantics, "outputs": ["cost", "distance"]}
    mesh_id, gradients = client.put(TORUS).scene.scene_id, gradients_of(ways())
    context_id = distances.query(mesh_id, ways(), retain=True, **fields).header.context_id
    cost = {"cost": gradients["cost"]}
    assert set(distances.backward(cost, context_id=context_id, wanted=["spheres", "weight"]).arrays) == {
        "spheres",
        "weight",
    }
    error = failure(lambda: distances.backward(cost, context_id=context_id, wanted=WANTED))
    assert violation(error) == ("spec.wanted", "expected one of spheres, weight, got poses")
    error = failure(lambda: distances.backward(gradients, context_id=context_id))
    assert violation(error) == ("spec.output_gradients[1].name", "expected one of cost, each once, got distance")


def test_a_context_is_released_or_lost(client: RawClient, distances: DistanceClient) -> None:
    spheres, mesh_id = ways(), client.put(TORUS).scene.scene_id
    gradient = {"cost": gradients_of(spheres)["cost"]}
    for end in (
        lambda name: distances.backward(gradient, context_id=name, release=True),
        lambda name: distances.stub.Release(render_pb2.ReleaseRequest(context_id=name), timeout=60),
        lambda name: client.render_stub.Release(render_pb2.ReleaseRequest(context_id=name), timeout=60),
    ):
        context_id = distances.query(mesh_id, spheres, retain=True, outputs=["cost"]).header.context_id
        end(context_id)
        error = failure(lambda context_id=context_id: distances.backward(gradient, context_id=context_id))
        assert detail(error, errors_pb2.ContextLost).context_id == context_id


def test_contexts_of_the_other_service_are_refused(client: RawClient, distances: DistanceClient) -> None:
    mesh_id = client.put(TORUS).scene.scene_id
    spheres = ways()
    of_query = distances.query(mesh_id, spheres, retain=True, outputs=["cost"]).header.context_id
    error = failure(lambda: client.backward({"color": color_gradient(1, 48, 64, 3)}, context_id=of_query))
    assert violation(error) == (
        "spec.context_id",
        "expected a forward state of spheres or gaussians, got one of meshes",
    )
    of_render = client.render(spec_of(), cloud=sphere_cloud(), retain=True).header.context_id
    error = failure(lambda: distances.backward({"cost": gradients_of(spheres)["cost"]}, context_id=of_render))
    assert violation(error) == ("spec.context_id", "expected a forward state of meshes, got one of spheres")


def test_contexts_count_the_meshes_that_they_keep_alive() -> None:
    with worker("--device", "cpu") as process, RawClient(process.target) as raw:
        distances = DistanceClient(raw)
        scene = raw.put(TORUS).scene
        spheres = ways()
        context_ids = []
        sizes = []
        for version in range(1, 4):
            for _ in range(2):
                reply = distances.query(scene.scene_id, spheres, outputs=["cost"], retain=True)
                context_ids.append(reply.header.context_id)
                sizes.append(process.metric("lumigrad_context_bytes"))
            raw.update(scene.scene_id, version, {"vertices": TORUS["vertices"] * np.float32(1 + 0.01 * version)})
        # The first context of a version also counts the mesh; nearly all of the scene's bytes are the mesh's hierarchy.
        steps = np.diff([0.0, *sizes])
        assert steps[0] > steps[1] + 0.5 * scene.bytes
        assert steps[2] > steps[3] + 0.5 * scene.bytes
        for context_id in context_ids:
            raw.render_stub.Release(render_pb2.ReleaseRequest(context_id=context_id), timeout=60)
        assert process.metric("lumigrad_context_bytes") == 0
