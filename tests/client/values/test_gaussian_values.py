"""Gaussians and their settings as values: what they accept and refuse, and how they are transformed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument, SceneHandle, Transform
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.wire.cameras import camera_message, gaussian_settings_message
from lumigrad.client.wire.scenes import scene_hash, scene_message
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import camera_pb2, gaussians_pb2

COUNT = 4
CAMERA = Camera.look_at((0, 0, 4), (0, 0, 0), width=8, height=6)


def arrays(*leading: int, coefficients: int = 4) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    shape = (*leading, COUNT)
    return {
        "means": generator.normal(size=(*shape, 3)).astype(np.float32),
        "quats": generator.normal(size=(*shape, 4)).astype(np.float32),
        "scales": generator.random((*shape, 3)).astype(np.float32),
        "opacities": generator.random(shape).astype(np.float32),
        "sh": generator.normal(size=(*shape, coefficients, 3)).astype(np.float32),
    }


def colored(*leading: int, channels: int = 3) -> dict[str, np.ndarray]:
    given = arrays(*leading)
    del given["sh"]
    return {**given, "colors": np.full((*leading, COUNT, channels), 0.5, np.float32)}


def test_sizes_and_names():
    gaussians = Gaussians(**arrays(coefficients=16))
    assert (len(gaussians), gaussians.channels, gaussians.sh_degree, gaussians.scenes) == (COUNT, 3, 3, None)
    assert repr(gaussians) == "Gaussians(4 Gaussians, scales, 3 channels of degree 3)"
    assert gaussians.nbytes == 4 * COUNT * (3 + 4 + 3 + 1 + 48)
    batched = Gaussians(**colored(2, channels=5))
    assert (len(batched), batched.channels, batched.sh_degree, batched.scenes) == (2 * COUNT, 5, None, 2)
    assert repr(batched) == "Gaussians(2 scenes of 4 Gaussians, scales, 5 channels)"


@pytest.mark.parametrize(
    "rows",
    [slice(1, 3), slice(None, None, -1), np.array([True, False, True, False]), [3, 0, 0], torch.tensor([2])],
    ids=["slice", "reversed", "mask", "numbers", "tensor"],
)
def test_rows_are_taken_of_every_array(rows):
    for given in (arrays(coefficients=9), colored(), {**colored(), "colors": np.random.rand(5, COUNT, 3)}):
        whole = Gaussians(**given)
        some = whole[rows]
        wanted = rows.numpy() if isinstance(rows, torch.Tensor) else rows
        for name, array in whole.tensors.items():
            axis = 1 if name == "colors" and array.ndim == 3 else 0
            np.testing.assert_array_equal(some.tensors[name], array[(slice(None),) * axis + (wanted,)])


@pytest.mark.parametrize(("rows", "text"), [(3, r"\[3:4\] is one"), ([9], "out of bounds"), ([True], "did not match")])
def test_rows_that_cannot_be_are_refused(rows, text):
    with pytest.raises(InvalidArgument, match=f"rows: .*{text}"):
        Gaussians(**arrays())[rows]
    with pytest.raises(InvalidArgument, match="rows: expected one scene, got 2"):
        Gaussians(**arrays(2))[rows]


def test_scenes_are_concatenated_with_harmonics_of_the_highest_degree():
    low, high = Gaussians(**arrays(coefficients=1)), Gaussians(**arrays(coefficients=9))
    both = Gaussians.concatenate([low, high])
    assert (len(both), both.sh_degree) == (2 * COUNT, 2)
    np.testing.assert_array_equal(both.means, np.concatenate([low.means, high.means]))
    np.testing.assert_array_equal(both[:COUNT].with_sh_degree(0).sh, low.sh)
    assert not both.sh[:COUNT, 1:].any() and np.array_equal(both.sh[COUNT:], high.sh)
    assert both.with_sh_degree(4).sh.shape == (2 * COUNT, 25, 3)


def test_scenes_that_do_not_go_together_are_refused():
    per_camera = {**colored(), "colors": np.zeros((2, COUNT, 3))}
    for second in (colored(), {**colored(), "quats": None, "scales": None, "covariances": np.ones((COUNT, 6))}):
        with pytest.raises(InvalidArgument, match="scenes: expected scenes with the same arrays"):
            Gaussians.concatenate([Gaussians(**arrays()), Gaussians(**second)])
    with pytest.raises(InvalidArgument, match="no colors per camera"):
        Gaussians.concatenate([Gaussians(**per_camera)] * 2)
    with pytest.raises(InvalidArgument, match="scenes: expected at least one"):
        Gaussians.concatenate([])
    with pytest.raises(InvalidArgument, match="degree: expected a scene with sh"):
        Gaussians(**colored()).with_sh_degree(1)


SHEARED = np.array([[1.2, 0.3, 0, 1], [-0.2, 0.7, 0.5, -2], [0.1, -0.4, 1.5, 3], [0, 0, 0, 1]])
TURNED = np.array([[0, -2.5, 0, 1], [2.5, 0, 0, -2], [0, 0, 2.5, 3], [0, 0, 0, 1]])


@pytest.mark.parametrize("matrix", [TURNED, SHEARED], ids=["similarity", "affine"])
def test_a_transformed_scene_has_transformed_moments(matrix):
    linear = matrix[:3, :3]
    scene = Gaussians(**arrays(coefficients=1))
    moved = scene.transformed(matrix)
    np.testing.assert_allclose(moved.means, scene.means @ linear.T + matrix[:3, 3], rtol=1e-5, atol=1e-5)

    def covariances(of):
        axes = Rotation.from_quat(of.quats[:, [1, 2, 3, 0]]).as_matrix() * of.scales[:, None].astype(float)
        return axes @ axes.transpose(0, 2, 1)

    expected = linear @ covariances(scene) @ linear.T
    np.testing.assert_allclose(covariances(moved), expected, rtol=1e-4, atol=1e-5)
    rows, columns = np.triu_indices(3)
    flat = {**colored(), "quats": None, "scales": None, "covariances": covariances(scene)[:, rows, columns]}
    found = Gaussians(**flat).transformed(matrix[:3])
    np.testing.assert_allclose(found.covariances, expected[:, rows, columns], rtol=1e-4, atol=1e-5)
    assert np.array_equal(moved.opacities, scene.opacities)


def test_matrices_that_mirror_flatten_or_have_another_shape_are_refused():
    scene = Gaussians(**arrays())
    for matrix in (np.diag([1, 1, -1, 1]), np.diag([1, 1, 0, 1]), np.full((3, 4), np.nan)):
        with pytest.raises(InvalidArgument, match="matrix: expected transforms that neither mirror nor flatten"):
            scene.transformed(matrix)
    with pytest.raises(InvalidArgument, match=r"matrix: expected shape \[4, 4\] or \[3, 4\], got \[3, 3\]"):
        scene.transformed(np.eye(3))
    # The translation is in the last row of a matrix for row vectors.
    with pytest.raises(InvalidArgument, match="matrix: expected a last row 0, 0, 0, 1, for column vectors"):
        scene.transformed(TURNED.T)


def test_colors_may_have_an_axis_of_cameras():
    for leading, shape in (((), (5, COUNT, 3)), ((2,), (2, 5, COUNT, 3))):
        gaussians = Gaussians(**{**colored(*leading), "colors": np.zeros(shape)})
        assert gaussians.colors.shape == shape
        assert gaussians.channels == 3


def test_covariances_need_no_quats_and_scales():
    made = Gaussians(means=np.zeros((2, 3)), covariances=np.ones((2, 6)), opacities=[0, 1], colors=np.ones((2, 3)))
    assert made.quats is None and made.scales is None
    assert list(made.tensors) == ["means", "covariances", "opacities", "colors"]
    assert repr(made) == "Gaussians(2 Gaussians, covariances, 3 channels)"
    with pytest.raises(InvalidArgument, match=r"^opacities: expected shape \[2\], got none"):
        Gaussians(np.zeros((2, 3)), covariances=np.ones((2, 6)), colors=np.ones((2, 3)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"means": np.zeros((4, 2))}, "means: expected shape [N, 3], got [4, 2]"),
        ({"quats": np.zeros((4, 3))}, "quats: expected shape [4, 4], got [4, 3]"),
        (
            {"scales": np.full((4, 3), -2.0)},
            "scales: expected values >= 0, the smallest is -2.0; apply exp to logarithms",
        ),
        (
            {"opacities": [0, 0, 0, 1.5]},
            "opacities: expected values in [0, 1], got 0.0 to 1.5; apply the sigmoid to logits",
        ),
        ({"opacities": [0, 0, 0, np.nan]}, "opacities: expected finite values, 1 of 4 are NaN"),
        ({"sh": np.zeros((4, 3))}, "sh: expected shape [4, K, D], got [4, 3]"),
        (
            {"sh": np.zeros((4, 3, 3))},
            "sh: expected shape [.., N, K, D] with K = 1, 4, 9, 16 or 25 and D >= 1, got [4, 3, 3]",
        ),
        ({"sh": None}, "sh: expected either sh or colors, got neither"),
        ({"colors": np.zeros((4, 3))}, "sh: expected either sh or colors, got both"),
        ({"sh": None, "colors": np.zeros((2, 3, 3))}, "colors: expected shape [C, 4, D], got [2, 3, 3]"),
        ({"quats": None}, "quats: expected quats and scales, or covariances instead of both, got none"),
        ({"covariances": np.zeros((4, 6))}, "covariances: expected either covariances or quats and scales, got both"),
    ],
)
def test_refusals_name_the_argument_what_was_expected_and_what_came(change, text):
    with pytest.raises(InvalidArgument) as refused:
        Gaussians(**{**arrays(), **change})
    assert str(refused.value) == text
    assert [violation.field for violation in refused.value.violations] == [text.partition(":")[0]]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"semantics": "compat"}, r'semantics: expected one of "exact", "gsplat", .* for Gaussians, got \'compat\''),
        ({"sh_degree": 5}, "sh_degree: expected a whole number from 0 to 4, got 5"),
        ({"near": "close"}, "near: expected a number, got 'close'"),
        ({"transforms": [np.eye(4)]}, r"transforms\[0\]: expected \(begin, end, matrix\), got ndarray; pass a Transf"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        GaussianSettings(**settings)


def test_what_is_not_said_is_left_to_the_worker():
    message = gaussian_settings_message(GaussianSettings())
    assert message == gaussians_pb2.GaussianSettings(semantics=gaussians_pb2.GAUSSIAN_SEMANTICS_EXACT)
    shifted = np.eye(4)
    shifted[0, 3] = 2.5
    said = GaussianSettings(
        semantics="inria_depth", sh_degree=0, near=0.2, radius_clip=0, transforms=[(1, 3, shifted.tolist())]
    )
    assert said.transforms[0].begin == 1 and isinstance(said.transforms[0], Transform)
    message = gaussian_settings_message(said)
    assert message.HasField("sh_degree") and message.HasField("radius_clip") and not message.HasField("far")
    assert message.near == pytest.approx(0.2)
    assert list(message.transforms[0].matrix) == shifted.ravel().tolist()


def test_transforms_are_made_of_poses_too():
    ahead = np.eye(4)
    ahead[:3, 3] = 0, 0, 0.1
    turned = np.diag([1.0, -1.0, -1.0, 1.0])
    for given, expected in (((0, 0, 0.1), ahead), (ahead[:3], ahead), ([0, 0, 0, 0, 2, 0, 0], turned), (ahead, ahead)):
        for made in (Transform(0, 100, given), Transform(0, 100, np.eye(4), given)):
            np.testing.assert_allclose(made.matrix if made.matrix_end is None else made.matrix_end, expected)
        np.testing.assert_allclose(GaussianSettings(transforms=[(0, 100, given)]).transforms[0].matrix, expected)
    # A scale is the file's unit.
    scaled = np.diag([2.0, 2.0, 2.0, 1.0])
    np.testing.assert_array_equal(Transform(0, 1, scaled).matrix, scaled)
    # Tensors keep their gradients until they are sent.
    tensor = torch.eye(4, requires_grad=True)
    assert Transform(0, 1, tensor).matrix is tensor
    assert isinstance(GaussianSettings(transforms=[Transform(0, 1, tensor)]).transforms[0].matrix, np.ndarray)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ((0, 100, (0, 0)), r"matrix: expected \[7\] x y z qw qx qy qz, \[3\] x y z, or a matrix .*, got shape \[2\]"),
        ((0, 100, np.eye(4), np.zeros(7)), r"matrix_end: expected a quaternion of length 1 after x y z"),
        ((0, 100, np.zeros((4, 4))), r"matrix: expected the last row 0 0 0 1"),
        ((5, 5, np.eye(4)), r"begin: expected begin < end, got 5 and 5"),
        ((-1, 5, np.eye(4)), r"begin: expected a whole number"),
    ],
)
def test_transforms_are_checked_when_they_are_made(fields, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        Transform(*fields)
    with pytest.raises(InvalidArgument, match=rf"^transforms\[0\]\.{text}"):
        GaussianSettings(transforms=[fields])


def test_scenes_become_messages_with_their_arrays():
    payload = PayloadWriter()
    given = Gaussians(**arrays(2))
    message = scene_message(given, payload)
    assert message.WhichOneof("kind") == "gaussians"
    assert not message.gaussians.HasField("colors") and not message.gaussians.HasField("covariances")
    reader = PayloadReader(b"".join(payload.buffers))
    for name, array in given.tensors.items():
        np.testing.assert_array_equal(reader.read(getattr(message.gaussians, name), name), array)
    other = replace(given, opacities=1 - given.opacities)
    assert len({scene_hash(given), scene_hash(other), scene_hash(Gaussians(**arrays(2)))}) == 2


def test_cameras_become_messages():
    message = camera_message(Camera.opencv(1, 2, 3, 4, 2 * np.eye(3), (5, 6, 7), 8, 9, distortion=(0.1, 0, 0, 0, 1)))
    assert message.opencv.projection == camera_pb2.PROJECTION_PINHOLE
    assert list(message.opencv.distortion) == [0.1, 0, 0, 0, 1]
    assert list(message.opencv.rotation) == (2 * np.eye(3)).ravel().tolist()
    message = camera_message(Camera.inria(np.eye(4), np.arange(16.0).reshape(4, 4), (1, 2, 3), 0.5, 0.4, 8, 9))
    assert message.WhichOneof("model") == "inria"
    assert list(message.inria.full_projection) == list(range(16))
    assert (list(message.inria.position), message.inria.tan_fov_x, message.inria.tan_fov_y) == ([1, 2, 3], 0.5, 0.4)


# No call reaches a worker: settings are refused before.
CLIENT = Client("localhost:1")
HANDLE = SceneHandle("id", 1, "", "gaussians", COUNT, 0)


@pytest.mark.parametrize("scene", [Gaussians(**arrays()), HANDLE], ids=["value", "handle"])
@pytest.mark.parametrize("name", ["gamma", "max_depth", "min_depth", "max_hits", "n_track", "background_depth"])
def test_settings_of_spheres_are_refused_for_gaussians(scene, name):
    with pytest.raises(InvalidArgument, match=f"^{name}: belongs to spheres, but this scene is Gaussians; leave it ou"):
        CLIENT.render(scene, CAMERA, **{name: 1})


def test_a_single_background_number_needs_the_number_of_channels():
    with pytest.raises(InvalidArgument, match=r"^background: expected one value per channel for a handle without"):
        CLIENT.render(HANDLE, CAMERA, background=0.5)


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({}, "tensors: expected at least one of means, quats, .* sh and colors, got none"),
        ({"radii": [1]}, "radii: expected one of means, quats, .* which gaussians have, got radii"),
        ({"means": ["a"]}, "means: expected numbers, got dtype <U1"),
    ],
)
def test_updates_name_what_they_cannot_change(tensors, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        CLIENT.update(HANDLE, **tensors)
    if tensors:
        with pytest.raises(InvalidArgument):
            CLIENT.update(replace(HANDLE, scene=Gaussians(**arrays())), **tensors)


@pytest.mark.parametrize("leading", [(), (2,)])
def test_surfels_have_two_scales_and_a_third_of_0(leading: tuple[int, ...]) -> None:
    given = arrays(*leading)
    volumes = Gaussians(**given)
    surfels = Gaussians(**{**given, "scales": given["scales"][..., :2]})
    assert surfels.is_flat and not volumes.is_flat
    assert surfels.scales is not None and surfels.scales.shape == (*leading, COUNT, 3)
    np.testing.assert_array_equal(surfels.scales[..., :2], given["scales"][..., :2])
    assert replace(volumes, scales=given["scales"][..., :2]).is_flat
    assert not Gaussians(**{name: array[:0] for name, array in arrays().items()}).is_flat
    message = gaussian_settings_message(GaussianSettings(primitive="surfel"))
    assert message.primitive == gaussians_pb2.PRIMITIVE_SURFEL
    with pytest.raises(InvalidArgument, match='primitive: expected one of "volume", "surfel"'):
        GaussianSettings(primitive="disc")  # type: ignore[arg-type]
