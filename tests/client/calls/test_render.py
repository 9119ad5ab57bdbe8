"""Frames and gradients from a real worker: shapes, names, defaults, and the repair of what was lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lumigrad.client import Camera, InvalidArgument, Spheres

WIDTH, HEIGHT = 40, 30
SHAPES = {
    "color": (3,),
    "alpha": (),
    "depth": (),
    "info": (3 + 2 * 4,),
    "sphere_ids": (4,),
    "weights": (4,),
    "hits": (),
}
INTEGERS = ("sphere_ids", "hits")


def cloud(seed: int = 0, count: int = 60) -> Spheres:
    generator = np.random.default_rng(seed)
    return Spheres(
        generator.uniform(-1, 1, (count, 3)),
        generator.random((count, 3)),
        0.1 + 0.1 * generator.random(count),
        0.2 + 0.8 * generator.random(count),
    )


def orbit(count: int) -> list[Camera]:
    return [Camera.orbit((0, 0, 0), 4.0, 40.0 * i, 20.0, width=WIDTH, height=HEIGHT) for i in range(count)]


SETTINGS = {"gamma": 0.1, "max_depth": 8.0, "n_track": 4}


def test_every_output_has_its_shape_and_type(client):
    camera = orbit(1)[0]
    single = client.render(cloud(), camera, outputs=tuple(SHAPES), **SETTINGS)
    several = client.render(cloud(), orbit(3), outputs=tuple(SHAPES), **SETTINGS)
    assert list(several) == list(SHAPES)
    for name, rest in SHAPES.items():
        dtype = np.int32 if name in INTEGERS else np.float32
        assert single[name].shape == (HEIGHT, WIDTH, *rest), name
        assert several[name].shape == (3, HEIGHT, WIDTH, *rest), name
        assert single[name].dtype == several[name].dtype == dtype, name
        # Bit for bit, because ids in the info are bit patterns.
        assert single[name].tobytes() == several[name][0].tobytes(), name
    assert single.color is single["color"]
    one_in_a_list = client.render(cloud(), [camera], **SETTINGS)
    assert one_in_a_list.color.shape == (1, HEIGHT, WIDTH, 3)


def test_info_holds_ids_as_bit_patterns(client):
    frame = client.render(cloud(), orbit(1)[0], outputs=("info", "sphere_ids", "depth"), **SETTINGS)
    np.testing.assert_array_equal(frame.info.view(np.int32)[..., 3::2], frame.sphere_ids)
    np.testing.assert_array_equal(frame.info[..., 4], frame.depth)
    assert frame.sphere_ids.max() < 60
    assert (frame.sphere_ids == -1).any()


def test_missing_outputs_say_how_to_get_them(client):
    frame = client.render(cloud(), orbit(1)[0], **SETTINGS)
    assert list(frame) == ["color"]
    with pytest.raises(
        AttributeError, match=r'^no "depth" here, only color; name what you need in render\(outputs=…\)'
    ):
        _ = frame.depth
    with pytest.raises(KeyError, match="outputs"):
        frame["alpha"]
    gradients = frame.backward(np.ones_like(frame.color))
    with pytest.raises(AttributeError, match=r"backward\(wanted=…\)"):
        _ = gradients.opacities


def test_timings_account_for_the_call(client):
    frame = client.render(cloud(), orbit(1)[0], **SETTINGS)
    assert {"queue", "decode", "upload", "download"} <= set(frame.timings.stages)
    assert 0 < frame.timings.kernel_ms <= frame.timings.worker_ms <= frame.timings.round_trip_ms


def test_stored_and_travelling_scenes_render_alike(client):
    handle = client.put(cloud())
    for camera in (orbit(1)[0], orbit(2)):
        stored = client.render(handle, camera, **SETTINGS).color
        assert stored.tobytes() == client.render(cloud(), camera, **SETTINGS).color.tobytes()


def test_a_large_scene_and_picture_travel_in_chunks(client):
    scene = cloud(3, count=150_000)
    camera = Camera.orbit((0, 0, 0), 4.0, 0, 20.0, width=700, height=500)
    frame = client.render(scene, camera, retain=True, **SETTINGS)
    assert frame.color.nbytes > 4 << 20
    gradients = frame.backward(frame.color)
    assert gradients.positions.shape == (150_000, 3)
    assert client.put(scene).nbytes == scene.nbytes > 4 << 20
    stored = client.get(client.put(scene).scene_id, with_tensors=True).scene
    np.testing.assert_array_equal(stored.positions, scene.positions)


def test_the_depth_range_has_a_default_that_shows_everything(client):
    scene = cloud()
    for camera in (orbit(1)[0], Camera.pulsar([0, 0, -6, 0, 0, 0, 1, 1], WIDTH, HEIGHT)):
        chosen = client.render(scene, camera, outputs=("hits",)).hits
        np.testing.assert_array_equal(chosen, client.render(scene, camera, max_depth=100, outputs=("hits",)).hits)
        assert chosen.any()
    handle = client.get(client.put(scene).scene_id)
    chosen = client.render(handle, orbit(1)[0]).color
    np.testing.assert_array_equal(chosen, client.render(scene, orbit(1)[0]).color)


def test_background_may_be_one_number(client):
    away = Camera.look_at((0, 0, 4), (0, 0, 8), width=4, height=3)
    np.testing.assert_array_equal(client.render(cloud(), away, max_depth=8).color, 1)
    np.testing.assert_allclose(client.render(cloud(), away, max_depth=8, background=0.25).color, 0.25)
    per_channel = client.render(cloud(), away, max_depth=8, background=np.array([0, 0.5, 1])).color
    np.testing.assert_allclose(per_channel, np.broadcast_to([0, 0.5, 1], (3, 4, 3)))


WANTED = ("positions", "colors", "radii", "opacities", "background", "gamma", "cameras")


@pytest.mark.parametrize("model", ["opencv", "pulsar"])
def test_gradients_have_the_shapes_of_their_inputs(client, model):
    cameras = orbit(2)
    expected = {"camera_rotation": (3, 3), "camera_translation": (3,), "camera_intrinsics": (4,)}
    if model == "pulsar":
        cameras = [Camera.pulsar([0, 0, -6, 0, 0.1 * i, 0, 1, 1, 2, 3], WIDTH, HEIGHT) for i in range(2)]
        expected = {"cameras": (10,)}
    per_scene = {"positions": (60, 3), "colors": (60, 3), "radii": (60,), "opacities": (60,), "background": (3,)}
    single = client.render(cloud(), cameras[0], **SETTINGS)
    found = single.backward(np.ones_like(single.color), wanted=WANTED)
    assert {name: array.shape for name, array in found.items()} == {**per_scene, "gamma": (), **expected}
    several = client.render(cloud(), cameras, **SETTINGS)
    found = several.backward(np.ones_like(several.color), wanted=WANTED)
    stacked = {name: (2, *shape) for name, shape in expected.items()}
    assert {name: array.shape for name, array in found.items()} == {**per_scene, "gamma": (), **stacked}
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in found.values())


def test_gradients_add_up_over_cameras_and_outputs(client):
    cameras, generator = orbit(2), np.random.default_rng(5)
    settings = {**SETTINGS, "outputs": ("color", "alpha", "depth"), "retain": True}
    several = client.render(cloud(), cameras, **settings)
    upstream = {name: generator.normal(size=several[name].shape).astype(np.float32) for name in several}
    total = several.backward(**upstream)
    parts = []
    for index, camera in enumerate(cameras):
        frame = client.render(cloud(), camera, **settings)
        parts += [frame.backward(**{name: upstream[name][index]}) for name in upstream]
    for name, array in total.items():
        summed = sum(part[name].astype(np.float64) for part in parts)
        np.testing.assert_allclose(array, summed, atol=2e-5 * np.abs(summed).max(), err_msg=name)


def test_sparse_and_short_gradients_are_the_dense_ones(client):
    scene = cloud()
    # Half of the spheres are behind the camera.
    positions = scene.positions.copy()
    positions[::2, 2] += 100
    frame = client.render(Spheres(positions, scene.colors, scene.radii), orbit(1)[0], retain=True, **SETTINGS)
    upstream = np.random.default_rng(6).normal(size=frame.color.shape)
    dense = frame.backward(upstream)
    sparse = frame.backward(upstream, sparse=True)
    assert 0 < len(sparse.index) <= 30
    assert sparse.index.dtype == np.int64
    assert (np.diff(sparse.index) > 0).all()
    for name in ("positions", "colors", "radii"):
        np.testing.assert_array_equal(sparse[name], dense[name][sparse.index])
        rest = np.delete(dense[name], sparse.index, axis=0)
        np.testing.assert_array_equal(rest, 0)
        for gradient_format, precision in (("float16", 2**-10), ("bfloat16", 2**-8)):
            short = frame.backward(upstream, gradient_format=gradient_format)[name]
            assert short.dtype == np.float32
            np.testing.assert_allclose(short, dense[name], rtol=precision, atol=1e-6)


def test_backward_needs_something_to_start_from(client):
    frame = client.render(cloud(), orbit(1)[0], **SETTINGS)
    with pytest.raises(InvalidArgument, match="expected at least one of color, alpha and depth"):
        frame.backward()
    with pytest.raises(
        InvalidArgument, match=r"^gradient_format: expected one of float32, float16, bfloat16, got 'int8'"
    ):
        frame.backward(np.ones_like(frame.color), gradient_format="int8")
    with pytest.raises(
        InvalidArgument, match=r"^color: expected the shape of the output, \[30, 40, 3\], got \[2, 2, 3\]"
    ):
        frame.backward(np.ones((2, 2, 3)))
    with pytest.raises(InvalidArgument, match=r"shape: expected \[1, 30, 40\], got \[1, 2, 2\]"):
        frame.backward(alpha=np.ones((2, 2)))
    with pytest.raises(InvalidArgument, match=r"^depth: expected a frame that has the output, got Frame\(color"):
        frame.backward(depth=np.ones((30, 40)))
    with pytest.raises(InvalidArgument, match="wanted"):
        frame.backward(np.ones_like(frame.color), wanted=("shape",))


def test_one_client_serves_many_threads(client):
    expected = client.render(cloud(), orbit(1)[0], **SETTINGS).color
    with ThreadPoolExecutor(8) as pool:
        frames = list(pool.map(lambda _: client.render(cloud(), orbit(1)[0], **SETTINGS).color, range(32)))
    assert all(np.array_equal(color, expected) for color in frames)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gamma": 2.0}, "gamma"),
        ({"outputs": ("colour",)}, "outputs"),
        ({"background": [1, 2]}, "background"),
        ({"n_track": 129}, "n_track"),
        ({"max_hits": -1}, "max_hits"),
        ({"allowed_difference": 1.0}, "allowed_difference"),
    ],
)
def test_refused_settings_name_the_field(client, change, field):
    with pytest.raises(InvalidArgument, match=field) as refused:
        client.render(cloud(), orbit(1)[0], **{**SETTINGS, **change})
    assert refused.value.violations[0].field.rsplit(".", 1)[-1] == field


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.render(cloud(), []), r"camera: expected a Camera or a sequence of at least one, got none; make"),
        (lambda c: c.render(cloud(), None), r"camera: expected Camera or Iterable, got None; make one with"),
        (lambda c: c.render(cloud(), "front"), r"camera: expected Camera, got 'front'; make one with"),
        (lambda c: c.render("abc", orbit(1)), r"scene: expected Spheres, Gaussians or SceneHandle, got 'abc'; pass"),
        (
            lambda c: c.put(np.zeros((3, 3))),
            r"scene: expected Spheres, Gaussians, Mesh, World, TargetImage or GaussianLevels, got ndarray; make",
        ),
        (lambda c: c.update(cloud(), radii=[1]), r"handle: expected SceneHandle, got Spheres; pass what put"),
        (lambda c: c.get(7), r"scene_id: expected str, got 7; pass the scene_id"),
        (lambda c: c.delete(cloud()), r"scene: expected SceneHandle or str, got Spheres; pass what"),
        (lambda c: c.render(cloud(), orbit(1), max_hits=2.5), r"max_hits: expected a whole number from 0 to .*got 2.5"),
        (lambda c: c.render(cloud(), orbit(1), gamma="a"), r"gamma: expected a number, got 'a'; pass a float"),
        (lambda c: c.render(cloud(), orbit(1), min_depth=[1, 2]), r"min_depth: expected a number, got list"),
        (lambda c: c.render(cloud(), orbit(1), background="white"), r"background: expected a number, .*got 'white'; 0"),
        (lambda c: c.render(cloud(), orbit(1), outputs=[3]), r"outputs: expected names, got list; pass strings"),
        (lambda c: Camera.orbit((0, 0, 0), 1, 0, 0, width="a"), r"width: expected a number, got 'a'"),
    ],
)
def test_ordinary_mistakes_are_explained(client, call, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        call(client)


def test_a_name_alone_stands_for_a_sequence_of_one(client):
    frame = client.render(cloud(), orbit(1)[0], outputs="color", **SETTINGS)
    assert list(frame) == ["color"]
    assert frame.backward(np.ones_like(frame.color), wanted="radii").radii.shape == (60,)


def test_info(client, worker_process):
    info = client.info()
    assert (info.target, info.device, info.engines) == (
        worker_process.target,
        "cpu",
        ("spheres", "gaussians", "meshes"),
    )
    assert info.limits.max_payload_bytes > 0
    assert info.threads >= 1
