"""Gaussians through the client: stored, changed, rendered and differentiated; each output under its name."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera, Gaussians, InvalidArgument, Spheres, Transform

WIDTH, HEIGHT, COUNT = 32, 24, 40
IMAGES = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth", "contributors", "ids")
INTEGERS = ("radii", "contributors", "ids")
PER_GAUSSIAN = {"radii": (2,), "means2d": (2,), "depths": (), "conics": (3,), "projected_opacities": ()}


def cloud(*batch: int, seed: int = 0, sh: bool = True) -> Gaussians:
    generator = np.random.default_rng(seed)
    shape = (*batch, COUNT)
    return Gaussians(
        generator.uniform(-1, 1, (*shape, 3)),
        generator.normal(size=(*shape, 4)),
        generator.uniform(0.03, 0.3, (*shape, 3)),
        generator.uniform(0.2, 0.9, shape),
        **({"sh": generator.normal(0, 0.4, (*shape, 9, 3))} if sh else {"colors": generator.random((*shape, 3))}),
    )


def orbit(count: int) -> list[Camera]:
    return [Camera.orbit((0, 0, 0), 4.0, 40.0 * i, 20.0, width=WIDTH, height=HEIGHT) for i in range(count)]


def test_every_output_has_its_shape_and_type(client):
    outputs = (*IMAGES, *PER_GAUSSIAN)
    single = client.render(cloud(), orbit(1)[0], outputs=outputs)
    several = client.render(cloud(), orbit(3), outputs=outputs)
    assert list(several) == list(outputs)
    for name in outputs:
        shape = (COUNT, *PER_GAUSSIAN[name]) if name in PER_GAUSSIAN else (HEIGHT, WIDTH, *(3,) * (name == "color"))
        assert single[name].shape == shape and several[name].shape == (3, *shape), name
        assert single[name].dtype == (np.int32 if name in INTEGERS else np.float32), name
        assert single[name].tobytes() == several[name][0].tobytes(), name
    np.testing.assert_allclose(single.alpha, 1 - single.transmittance)
    assert single.contributors.max() > 3


def test_a_scene_is_stored_under_its_content_and_comes_back(client):
    for scene in (cloud(), cloud(2, sh=False), covariances()):
        handle = client.put(scene)
        told = (handle.kind, handle.count, handle.nbytes, handle.scene)
        assert told == ("gaussians", len(scene), scene.nbytes, scene)
        assert client.put(Gaussians(**{**dict.fromkeys(("quats", "scales")), **scene.tensors})) == handle
        assert handle in client.list()
        downloaded = client.get(handle.scene_id, with_tensors=True).scene
        assert list(downloaded.tensors) == list(scene.tensors)
        for name, array in scene.tensors.items():
            np.testing.assert_array_equal(downloaded.tensors[name], array)
        cameras = orbit(2 * (scene.scenes or 1))
        stored = client.render(client.get(handle.scene_id), cameras).color
        assert stored.tobytes() == client.render(scene, cameras).color.tobytes()


def covariances() -> Gaussians:
    roots = np.random.default_rng(1).normal(0, 0.2, (COUNT, 3, 3))
    whole = roots @ roots.transpose(0, 2, 1) + 1e-3 * np.eye(3)
    six = whole[:, (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)]
    colored = cloud(sh=False)
    return Gaussians(colored.means, None, None, colored.opacities, colors=colored.colors, covariances=six)


def test_tensors_are_replaced_by_name(client):
    first = client.put(cloud(seed=2))
    second = client.update(first, opacities=np.zeros(COUNT), sh=np.zeros((COUNT, 9, 3)))
    assert second.version == first.version + 1 and not second.scene.opacities.any()
    assert not client.render(second, orbit(1)[0], outputs="alpha").alpha.any()
    without_copy = client.get(second.scene_id)
    third = client.update(without_copy, opacities=np.full(COUNT, 0.9))
    assert client.render(third, orbit(1)[0], outputs="alpha").alpha.any()
    with pytest.raises(InvalidArgument, match=r"^means: expected shape \[N, 3\], got \[40\]"):
        client.update(second, means=np.zeros(COUNT))
    with pytest.raises(InvalidArgument, match=r"^sh: expected either sh or colors, got both"):
        client.update(second, colors=np.zeros((COUNT, 3)))


TENSORS = ("means", "quats", "scales", "opacities", "sh")
WANTED = (*TENSORS, "background", "cameras", "transforms", "means2d", "means2d_abs")


def test_gradients_have_the_shapes_of_their_inputs(client):
    scene = cloud()
    transforms = [Transform(0, 10, np.eye(4)), (20, 30, np.eye(4))]
    per_camera = {"camera_rotation": (3, 3), "camera_translation": (3,), "camera_intrinsics": (4,), "camera_pose": (6,)}
    per_camera |= {"means2d": (COUNT, 2), "means2d_abs": (COUNT, 2)}
    expected = {name: scene.tensors[name].shape for name in TENSORS} | {"background": (3,), "transforms": (2, 4, 4)}
    for cameras, leading in ((orbit(1)[0], ()), (orbit(2), (2,))):
        frame = client.render(scene, cameras, transforms=transforms, background=(1, 0, 0))
        found = frame.backward(np.ones_like(frame.color), wanted=WANTED)
        shapes = expected | {name: (*leading, *shape) for name, shape in per_camera.items()}
        assert {name: array.shape for name, array in found.items()} == shapes
        assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in found.values())
    each = client.render(scene, orbit(2), background=np.zeros((2, 3)))
    assert each.backward(np.ones_like(each.color), wanted="background").background.shape == (2, 3)


def test_the_scene_s_tensors_are_wanted_unless_something_is_said(client):
    for scene in (cloud(), covariances()):
        frame = client.render(scene, orbit(1)[0])
        assert {*frame.backward(np.ones_like(frame.color))} == {*scene.tensors}


def test_inria_cameras_have_gradients_of_their_own(client):
    film = np.zeros((4, 4))
    film[0, 0], film[1, 1], film[2, 2], film[2, 3], film[3, 2] = 2, 2 * WIDTH / HEIGHT, 1, 1, -0.01
    view = np.eye(4)
    view[3, 2] = 4
    camera = Camera.inria(view, view @ film, (0, 0, -4), 0.5, 0.5 * HEIGHT / WIDTH, WIDTH, HEIGHT)
    frame = client.render(cloud(), camera, semantics="inria_exact", near=0.2)
    found = frame.backward(np.ones_like(frame.color), wanted="cameras")
    shapes = {"camera_view": (4, 4), "camera_projection": (4, 4), "camera_position": (3,)}
    assert {name: array.shape for name, array in found.items()} == shapes
    # By default, an Inria camera's pixel centres are at whole numbers.
    np.testing.assert_array_equal(
        frame.color, client.render(cloud(), camera, semantics="inria_exact", near=0.2, pixel_center=0).color
    )


@pytest.mark.parametrize("name", [name for name in IMAGES if name not in INTEGERS])
def test_every_image_has_a_gradient(client, name):
    frame = client.render(cloud(), orbit(2), outputs=(name,), retain=True)
    assert frame.backward(**{name: np.ones_like(frame[name])}).means.any()


def test_backward_says_what_it_needs(client):
    frame = client.render(cloud(), orbit(1)[0])
    with pytest.raises(InvalidArgument, match=r"^color: expected at least one of color, alpha, depth, transmittance,"):
        frame.backward()
    for name in ("depth", "expected_depth", "inverse_depth"):
        with pytest.raises(InvalidArgument, match=rf"^{name}: expected a frame that has the output, got Frame\(color"):
            frame.backward(**{name: np.ones((HEIGHT, WIDTH))})
    with pytest.raises(InvalidArgument, match="wanted"):
        frame.backward(np.ones_like(frame.color), wanted=("radii",))
    spheres = client.render(Spheres([[0, 0, 0]], [[1, 1, 1]], [1]), orbit(1)[0])
    with pytest.raises(InvalidArgument, match=r"^transmittance: belongs to Gaussians, but this frame shows spheres; l"):
        spheres.backward(transmittance=np.ones((HEIGHT, WIDTH)))


def test_backgrounds_are_black_unless_something_is_said(client):
    away = Camera.look_at((0, 0, 4), (0, 0, 8), width=4, height=3)
    assert not client.render(cloud(), away).color.any()
    np.testing.assert_allclose(client.render(cloud(), away, background=0.25).color, 0.25)
    each = client.render(cloud(), [away, away], background=[[0, 0.5, 1], [1, 0.5, 0]]).color
    np.testing.assert_allclose(each[:, 0, 0], [[0, 0.5, 1], [1, 0.5, 0]])


def test_along_rays_a_crop_is_a_window_of_the_image_and_by_ellipses_it_is_near(client):
    whole = Camera.opencv(40, 40, 24, 18, np.eye(3), (0, 0, 3.0), 48, 36)
    crops = [
        [Camera.opencv(40, 40, 24 - x, 18 - y, np.eye(3), (0, 0, 3.0), 16, 12) for x in (0, 16, 32)]
        for y in (0, 12, 24)
    ]
    differences = {}
    for response in ("picture", "ray"):
        parts = [[client.render(cloud(), camera, response=response).color for camera in row] for row in crops]
        together = np.concatenate([np.concatenate(row, axis=1) for row in parts])
        differences[response] = np.abs(together - client.render(cloud(), whole, response=response).color).max()
    assert differences["ray"] == 0.0
    assert 0.0 < differences["picture"] < 0.2
