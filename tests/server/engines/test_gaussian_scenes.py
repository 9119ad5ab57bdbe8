"""Scenes of Gaussians are stored, changed and refused as scenes of spheres are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lumigrad.protos import dtypes
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2, tensor_pb2
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, assert_refused, failure, hash_of, spec_of, sphere_cloud, violation

FIELDS = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors")

CLOUDS = {
    "sh": gaussian_cloud(40, coefficients=9, seed=20),
    "colors": gaussian_cloud(40, coefficients=0, channels=5, seed=21),
    "covariances": gaussian_cloud(40, covariances=True, seed=22),
    "several scenes": gaussian_cloud(3, 40, seed=23),
    "colors per camera": gaussian_cloud(2, 40, coefficients=0, views=3, seed=24),
    "none": gaussian_cloud(0, seed=25),
}


@pytest.mark.parametrize("name", CLOUDS)
def test_a_scene_is_described_by_its_content_and_comes_back_as_it_went(client: RawClient, name: str) -> None:
    cloud = CLOUDS[name]
    reply = client.put(cloud)
    scene = reply.scene
    assert not reply.existed
    assert (scene.kind, scene.version, scene.content_hash) == ("gaussians", 1, hash_of(cloud, FIELDS))
    assert scene.count == cloud["opacities"].size
    assert scene.bytes == sum(array.nbytes for array in cloud.values())
    header, tensors = client.get(content_hash=scene.content_hash, with_tensors=True)
    assert header.info == scene
    assert {name: array.tobytes() for name, array in tensors.items()} == {
        name: array.tobytes() for name, array in cloud.items()
    }
    again = client.put(cloud, content_hash=hash_of(cloud, FIELDS))
    assert again.existed
    assert again.scene == scene


def tensor(name: str, array: np.ndarray, dtype: int = dtypes.FLOAT32) -> tensor_pb2.NamedTensor:
    return tensor_pb2.NamedTensor(
        name=name, tensor=tensor_pb2.Tensor(dtype=dtype, shape=array.shape, inline=array.tobytes())
    )


def test_a_call_brings_tensors_of_its_own(client: RawClient) -> None:
    """The tensors replace those of the stored scene, which does not change, in both passes and without a batch."""
    cloud, other = CLOUDS["sh"], gaussian_cloud(40, coefficients=0, channels=2, seed=30)
    scene = client.put(cloud).scene
    whole = {name: array for name, array in {**cloud, **other}.items() if name not in ("sh", "means")}
    expected = client.render(gaussian_spec(), cloud={**whole, "means": cloud["means"]})
    spec = gaussian_spec(scene_id=scene.scene_id)
    spec.tensors.extend(tensor(name, array) for name, array in other.items() if name != "means")
    found = client.render(spec)
    assert found.arrays["color"].tobytes() == expected.arrays["color"].tobytes()
    assert not found.header.HasField("scene")
    upstream = {"color": np.ones_like(found.arrays["color"])}
    gradients = client.backward(upstream, spec=spec, wanted=["colors", "means"]).arrays
    assert gradients["colors"].shape == (40, 2) and np.abs(gradients["means"]).sum() > 0
    assert client.get(content_hash=scene.content_hash)[0].info == scene


ONES = np.ones(40, np.float32)
FOREIGN: dict[str, tuple[list[tensor_pb2.NamedTensor], str, str]] = {
    "name": ([tensor("radii", ONES)], "spec.tensors[0].name", "expected one of means, quats,"),
    "twice": ([tensor("opacities", ONES)] * 2, "spec.tensors[1].name", "expected one of means, quats,"),
    "shape": ([tensor("opacities", ONES[1:])], "spec.tensors.opacities.shape", "expected [40], got [39]"),
    "type": ([tensor("opacities", ONES, dtypes.INT32)], "spec.tensors.opacities.dtype", "expected DTYPE_FLOAT32"),
    "values": ([tensor("opacities", 2 * ONES)], "spec.tensors.opacities", "expected values in [0, 1]"),
    "both": ([tensor("sh", np.ones((40, 1, 3), np.float32)), tensor("colors", np.ones((40, 3), np.float32))],
     "spec.tensors.colors", "expected either sh or colors, got sh and colors"),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "field", "text"), FOREIGN.values(), ids=FOREIGN)
def test_tensors_of_a_call_that_do_not_fit_are_refused(
    client: RawClient, tensors: list[tensor_pb2.NamedTensor], field: str, text: str
) -> None:
    spec = gaussian_spec(scene_id=client.put(CLOUDS["sh"]).scene.scene_id)
    spec.tensors.extend(tensors)
    assert_refused(lambda: client.render(spec), field, text)


def test_a_scene_that_is_sent_has_no_other_tensors(client: RawClient) -> None:
    spec = gaussian_spec()
    spec.tensors.append(tensor("opacities", ONES))
    error = failure(lambda: client.render(spec, cloud=CLOUDS["sh"]))
    assert violation(error) == ("spec.tensors", "expected none without scene_ref, got 1")


@pytest.mark.parametrize("kind", ["sh", "colors", "covariances", "several scenes"])
def test_every_tensor_can_be_updated(client: RawClient, kind: str) -> None:
    cloud = {name: array * np.float32(0.9) for name, array in CLOUDS[kind].items()}
    scene_id = client.put(cloud).scene.scene_id
    for version, name in enumerate(cloud, 1):
        cloud[name] = cloud[name] * np.float32(0.5)
        updated = client.update(scene_id, version, {name: cloud[name]}).scene
        assert (updated.version, updated.kind, updated.content_hash) == (version + 1, "gaussians", "")
    views = [camera_of()] * (3 if kind == "several scenes" else 1)
    stored = client.render(gaussian_spec(*views, scene_id=scene_id)).arrays["color"]
    assert stored.tobytes() == client.render(gaussian_spec(*views), cloud=cloud).arrays["color"].tobytes()


@pytest.mark.parametrize(
    ("tensors", "field", "text"),
    [
        ({"means": np.ones((39, 3))}, "tensors[0].shape", "expected [40, 3], got [39, 3]"),
        ({"covariances": np.ones((40, 6))}, "tensors[0].name", "expected one of means, quats, scales, opacities, sh,"),
        ({"positions": np.ones((40, 3))}, "tensors[0].name", "expected one of means, quats, scales, opacities, sh,"),
        ({"opacities": np.full(40, 1.5)}, "tensors.opacities", "expected values in [0, 1], got values from 1.5 to 1.5"),
    ],
)
def test_an_update_must_fit_what_is_stored(client: RawClient, tensors: dict[str, Any], field: str, text: str) -> None:
    scene_id = client.put(CLOUDS["sh"]).scene.scene_id
    given = {name: array.astype(np.float32) for name, array in tensors.items()}
    assert_refused(lambda: client.update(scene_id, 1, given), field, text)
    assert client.get(scene_id=scene_id)[0].info.version == 1


def changed(base: str, **arrays: Any) -> dict[str, Any]:
    """Returns a cloud with other tensors, and without those that are None."""
    given = {name: np.asarray(array, np.float32) for name, array in arrays.items() if array is not None}
    return {name: array for name, array in {**CLOUDS[base], **given}.items() if arrays.get(name, 0) is not None}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (changed("sh", means=None), "means", "expected a tensor, got none"),
    (changed("sh", opacities=None), "opacities", "expected a tensor, got none"),
    (changed("sh", means=np.ones((40, 4))), "means", "expected shape [N, 3], or [S, N, 3] with S >= 1, got [40, 4]"),
    (changed("sh", means=np.ones(())), "means", "expected shape [N, 3], or [S, N, 3] with S >= 1, got []"),
    (changed("sh", means=np.ones((0, 40, 3))), "means", "expected shape [N, 3], or [S, N, 3] with S >= 1"),
    (changed("sh", opacities=np.ones(39)), "opacities.shape", "expected [40], got [39]"),
    (changed("several scenes", opacities=np.ones(40)), "opacities.shape", "expected [3, 40], got [40]"),
    (changed("sh", quats=None), "quats", "expected a tensor, or covariances instead of quats and scales, got none"),
    (changed("sh", scales=None), "scales", "expected a tensor, or covariances instead of quats and scales, got none"),
    (changed("sh", covariances=np.ones((40, 6))), "quats", "expected none beside covariances, got a tensor"),
    (changed("sh", quats=np.ones((40, 3))), "quats.shape", "expected [40, 4], got [40, 3]"),
    (changed("sh", scales=np.ones((40, 1))), "scales.shape", "expected [40, 3], got [40, 1]"),
    (changed("covariances", covariances=np.ones((40, 3, 3))), "covariances.shape", "expected [40, 6], got [40, 3, 3]"),
    (changed("sh", sh=None), "colors", "expected either sh or colors, got neither"),
    (changed("sh", colors=np.ones((40, 3))), "colors", "expected either sh or colors, got sh and colors"),
    (changed("sh", sh=np.ones((40, 3))), "sh", "expected shape [40, K, D] with K = 1, 4, 9, 16 or 25 and D >= 1"),
    (changed("sh", sh=np.ones((40, 8, 3))), "sh", "expected shape [40, K, D] with K = 1, 4, 9, 16 or 25 and D >= 1"),
    (changed("sh", sh=np.ones((40, 4, 0))), "sh", "expected shape [40, K, D] with K = 1, 4, 9, 16 or 25 and D >= 1"),
    (changed("sh", sh=np.ones((40, 1, 513))), "sh", "expected at most 512 channels, got 513"),
    (changed("colors", colors=np.ones(40)), "colors", "expected shape [40, D] or, for C cameras, [C, 40, D], with D"),
    (changed("colors", colors=np.ones((40, 0))), "colors", "expected shape [40, D] or, for C cameras, [C, 40, D]"),
    (changed("colors", colors=np.ones((2, 39, 3))), "colors", "expected shape [40, D] or, for C cameras, [C, 40, D]"),
    (changed("colors", colors=np.ones((40, 513))), "colors", "expected at most 512 channels, got 513"),
    (changed("colors per camera", colors=np.ones((3, 3, 40, 3))),
     "colors", "expected shape [2, 40, D] or, for C cameras, [2, C, 40, D], with D >= 1, got [3, 3, 40, 3]"),
    ({**CLOUDS["sh"], "sh": CLOUDS["sh"]["sh"].astype(np.float16)}, "sh.dtype", "expected DTYPE_FLOAT32, got DT"),
    (changed("sh", means=np.full((40, 3), np.nan)), "means", "expected finite values"),
]  # fmt: skip


@pytest.mark.parametrize(("cloud", "name", "text"), WRONG, ids=[f"{name}-{text[9:40]}" for _, name, text in WRONG])
def test_a_scene_out_of_limits_is_refused_whichever_way_it_comes(
    client: RawClient, cloud: dict[str, Any], name: str, text: str
) -> None:
    # Without means, only the field shows that the scene is of Gaussians.
    def placed(payload: PayloadWriter) -> scene_pb2.Scene:
        content = scene_pb2.GaussianCloud(**{key: payload.add(array) for key, array in cloud.items()})
        return scene_pb2.Scene(gaussians=content)

    payload = PayloadWriter()
    put = scene_pb2.PutRequest(scene=placed(payload))
    assert_refused(lambda: client.scene_stub.Put(frames_of(put, payload), timeout=60), f"scene.gaussians.{name}", text)
    if "means" in cloud:
        spec = gaussian_spec(camera_of(width=8, height=8))
        assert violation(failure(lambda: client.render(spec, cloud=cloud)))[0] == f"spec.scene.gaussians.{name}"
        gradient = {"color": np.ones((1, 8, 8, 3), np.float32)}
        error = failure(lambda: client.backward(gradient, spec=spec, cloud=cloud))
        assert violation(error)[0] in (f"spec.render.scene.gaussians.{name}", "spec.output_gradients[0].tensor.shape")


def test_settings_must_be_for_the_kind_of_the_scene(client: RawClient) -> None:
    spheres, gaussians = sphere_cloud(5), gaussian_cloud(5)
    ids = {name: client.put(cloud).scene.scene_id for name, cloud in (("s", spheres), ("g", gaussians))}
    wrong = ("spec.gaussians", "expected settings of the gaussians, got spheres")
    assert violation(failure(lambda: client.render(spec_of(scene_id=ids["g"])))) == wrong
    assert violation(failure(lambda: client.render(spec_of(), cloud=gaussians))) == wrong
    wrong = ("spec.spheres", "expected settings of the spheres, got gaussians")
    assert violation(failure(lambda: client.render(gaussian_spec(scene_id=ids["s"])))) == wrong
    assert violation(failure(lambda: client.render(gaussian_spec(), cloud=spheres))) == wrong
    gradient = {"color": np.ones((1, 48, 64, 3), np.float32)}
    error = failure(lambda: client.backward(gradient, spec=spec_of(scene_id=ids["g"])))
    assert violation(error)[0] == "spec.render.gaussians"
    empty = gaussian_spec()
    empty.scene.SetInParent()
    assert violation(failure(lambda: client.render(empty))) == ("spec.scene", "expected gaussians, got none")
