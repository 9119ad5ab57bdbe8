"""Writers that compress, what formats lose, and pictures of what was written."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument
from lumigrad.client.formats import StoredScene, read_scene, save_gaussians, save_scene
from lumigrad.client.formats.clustering import code_book, morton_order, nearest_entries, palette
from lumigrad.client.formats.save import WRITABLE, losses
from support.gaussians.clouds import Cloud, assert_close, cloud, gaussians_of


def in_order_of(read: Gaussians, made: Cloud) -> Cloud:
    """The cloud in the order of what was read, by the nearest positions; each is found once."""
    nearest = np.linalg.norm(read.means[:, None] - made.means[None], axis=2).argmin(axis=1)
    assert len(set(nearest.tolist())) == len(made)
    return Cloud(*(getattr(made, name)[nearest] for name in ("means", "quats", "scales", "opacities", "sh")))


@pytest.mark.parametrize("degree", range(4))
@pytest.mark.parametrize("count", [1, 255, 600])
def test_compressed_ply(tmp_path, count, degree):
    made = cloud(count=count, degree=degree)
    gaussians_of(made).save(tmp_path / "scene.compressed.ply")
    read = Gaussians.load(tmp_path / "scene.compressed.ply")
    # A step is at most 1/1023 of the whole extent; within a block it is finer.
    far = np.ptp(made.means, axis=0).max() / 1023 + 1e-6
    assert_close(
        read, in_order_of(read, made), means=far, scales=0.004, opacity=0.5 / 255 + 1e-6, sh=0.0157, angle=0.006
    )
    assert read.sh_degree == degree


@pytest.mark.parametrize("degree", range(4))
def test_ksplat_keeps_all_but_eight_bits_of_colors(tmp_path, degree):
    made = cloud(degree=degree)
    gaussians_of(made).save(tmp_path / "scene.ksplat")
    read = Gaussians.load(tmp_path / "scene.ksplat")
    assert_close(read, made, means=1e-6, scales=1e-6, opacity=0.5 / 255 + 1e-6, sh=0.007, angle=2e-3)
    np.testing.assert_array_equal(read.sh[:, 1:], made.sh[:, 1:].astype("f4"))


@pytest.mark.parametrize("degree", range(4))
def test_sog(tmp_path, degree):
    made = cloud(count=600, degree=degree)
    save_gaussians(gaussians_of(made), tmp_path / "scene.sog", antialiased=True)
    assert read_scene(tmp_path / "scene.sog").antialiased
    read = Gaussians.load(tmp_path / "scene.sog")
    # Positions are quantized evenly in their logarithm, so the step grows with the distance.
    assert_close(read, in_order_of(read, made), means=2e-3, scales=0.02, opacity=0.5 / 255 + 1e-6, sh=0.012, angle=0.02)
    with zipfile.ZipFile(tmp_path / "scene.sog") as archive:
        assert archive.namelist()[0] == "meta.json"
    save_gaussians(gaussians_of(made), tmp_path / "again.sog", antialiased=True)
    assert (tmp_path / "again.sog").read_bytes() == (tmp_path / "scene.sog").read_bytes()


@pytest.mark.parametrize("others", [(), ("__MACOSX/deep/scene/._meta.json", "deep/notes.txt")], ids=len)
def test_a_sog_that_was_zipped_with_its_folder_is_read(tmp_path, others):
    gaussians_of(cloud(degree=1)).save(tmp_path / "plain.sog")
    with zipfile.ZipFile(tmp_path / "plain.sog") as plain, zipfile.ZipFile(tmp_path / "nested.sog", "w") as nested:
        for name in others:
            nested.writestr(name, b"{}")
        for name in plain.namelist():
            nested.writestr(f"deep/scene/{name}", plain.read(name))
    expected = Gaussians.load(tmp_path / "plain.sog")
    read = Gaussians.load(tmp_path / "nested.sog")
    for name in ("means", "quats", "scales", "opacities", "sh"):
        np.testing.assert_array_equal(getattr(read, name), getattr(expected, name))
    with zipfile.ZipFile(tmp_path / "nested.sog", "a") as nested:
        nested.writestr("other/meta.json", b"{}")
    with pytest.raises(InvalidArgument, match=r"expected a member meta\.json in the zip file, got "):
        Gaussians.load(tmp_path / "nested.sog")


def test_extreme_values_stay_finite(tmp_path):
    made = cloud(count=40, degree=1)
    made.scales[:20], made.opacities[:2], made.quats[0] = 0.0, (0, 1), 0
    made.means[1:4] = 0, 1e6, -1e-6
    for name in ("scene.sog", "scene.compressed.ply", "scene.ksplat", "scene.glb"):
        gaussians_of(made).save(tmp_path / name)
        assert len(Gaussians.load(tmp_path / name)) == 40


def test_one_place_and_equal_values(tmp_path):
    colors = np.array([[1, 0, 0.5]] * 5)
    same = Gaussians(np.ones((5, 3)), [[1, 0, 0, 0]] * 5, np.full((5, 3), 0.1), np.full(5, 0.5), colors=colors)
    for name in ("scene.sog", "scene.compressed.ply"):
        same.save(tmp_path / name)
        read = Gaussians.load(tmp_path / name)
        np.testing.assert_allclose(read.means, same.means, rtol=1e-6)
        np.testing.assert_allclose(read.scales, same.scales, rtol=1e-6)
        np.testing.assert_allclose(read.sh[:, 0], (colors - 0.5) / 0.28209479, atol=1e-5)


def test_morton_order_keeps_neighbours_together():
    cells = np.stack(np.meshgrid(*[np.arange(8)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    order = morton_order(np.random.default_rng(0).permutation(cells).astype(np.float32))
    assert sorted(order) == list(range(512))
    shuffled = np.random.default_rng(0).permutation(cells)[order]
    # Every eighth of the order is an octant.
    assert all(np.ptp(shuffled[64 * k : 64 * k + 64], axis=0).max() == 3 for k in range(8))


def test_palettes_are_means_of_their_vectors_and_close():
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(50, 9)) * 10
    vectors = (centers[generator.integers(0, 50, 4000)] + generator.normal(size=(4000, 9)) * 0.01).astype(np.float32)
    entries, labels = palette(vectors, 256)
    assert len(entries) == 256 and set(labels.tolist()) == set(range(256))
    for label in (0, 100, 255):
        np.testing.assert_allclose(entries[label], vectors[labels == label].mean(axis=0), rtol=1e-4, atol=1e-4)
    # The palette explains nearly all of the variance.
    assert np.square(entries[labels] - vectors).mean() < 0.02 * vectors.var(axis=0).mean()
    few, own = palette(vectors[:100], 256)
    np.testing.assert_array_equal(few[own], vectors[:100])


def test_code_books_are_better_than_even_steps():
    values = np.random.default_rng(0).normal(size=20_000) ** 3
    book = code_book(values, 256)
    assert (np.diff(book) >= 0).all()
    even = np.linspace(values.min(), values.max(), 256)
    errors = [np.square(each[nearest_entries(each, values)] - values).mean() for each in (book, even)]
    assert errors[0] < 0.1 * errors[1]
    np.testing.assert_allclose(code_book(np.full(3, 7.0), 256), 7.0)


# Least PSNR of the picture in decibels, against a picture of the scene itself.
PICTURES = {suffix: 90.0 for suffix in (".ply", ".glb", ".gltf", ".usda", ".usdc", ".usd", ".usdz")}
PICTURES |= {".ksplat": 60.0, ".compressed.ply": 45.0, ".sog": 45.0, ".splat": 20.0, ".spz": 33.0}


def test_pictures_of_what_was_written(client: Client, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    count = 3000
    means = generator.normal(size=(count, 3)) * 0.6
    sh = generator.normal(size=(count, 16, 3)) * np.array([0.45] + [0.1] * 15)[:, None]
    scales, quats = np.exp(generator.uniform(-4.5, -2.5, size=(count, 3))), generator.normal(size=(count, 4))
    scene = Gaussians(means, quats, scales, generator.uniform(0.3, 0.99, count), sh=sh)
    camera = Camera.look_at((0, 0, -3), (0, 0, 0), up=(0, -1, 0), width=160, height=120, fov_degrees=40)
    expected = client.render(scene, camera)["color"]
    assert expected.mean() > 0.1
    assert set(PICTURES) == set(WRITABLE)
    for suffix, least in PICTURES.items():
        if suffix.startswith(".usd"):
            pytest.importorskip("pxr", reason="there is no usd-core for this Python")
        scene.save(tmp_path / f"scene{suffix}")
        picture = client.render(Gaussians.load(tmp_path / f"scene{suffix}"), camera)["color"]
        decibels = -10 * np.log10(np.square(picture - expected).mean() + 1e-12)
        assert decibels > least, (suffix, decibels)


def test_losses_are_named():
    made = cloud(count=2, degree=4)
    scene = StoredScene.of(gaussians_of(made), "scene.ply", antialiased=True)
    assert losses(scene, ".ply") == []
    assert losses(scene, ".glb") == [
        "cuts harmonics from degree 4 to 3",
        "does not say that the scene was trained with antialiasing",
        "is drawn by distance to the camera, not by depth along the view direction, so pictures differ",
    ]
    assert losses(scene, ".sog")[0].startswith("rounds everything")
    assert losses(scene, ".sog")[-1] == "changes the order of the Gaussians"
    assert losses(scene.of_degree(0), ".usdc") == ["does not say that the scene was trained with antialiasing"]


def test_numbers_beyond_the_range_of_a_format_are_counted(tmp_path):
    made = cloud(count=5, degree=1)
    made.scales[0], made.scales[1], made.sh[2, 0, 1], made.sh[3:, 2] = 1e-6, 900.0, 5.0, -5.0
    scene = StoredScene.of(gaussians_of(made), "scene.ply")
    colors = "clips base colours of 1 Gaussian to {}"
    clipped = {
        ".ply": [],
        ".glb": [],
        ".splat": [colors.format("0 to 1")],
        ".ksplat": [colors.format("0 to 1")],
        ".sog": [],
        ".compressed.ply": ["clips harmonics of 2 Gaussians to -4 to 4"],
        ".spz": [
            "clips scales of 2 Gaussians to 4.54e-05 to 379",
            colors.format("-0.44 to 1.44"),
            "clips harmonics of 2 Gaussians to -1 to 1",
        ],
    }
    for suffix, expected in clipped.items():
        assert [each for each in losses(scene, suffix) if each.startswith("clips")] == expected, suffix
        save_scene(scene, tmp_path / f"scene{suffix}")
        read = read_scene(tmp_path / f"scene{suffix}")
        pairs = [(np.log(scene.scales), np.log(read.scales)), (scene.sh[:, :1], read.sh[:, :1])]
        pairs += [(scene.sh[:, 1:4], read.sh[:, 1:])] if read.degree else []
        changed = any(np.abs(np.sort(one, axis=0) - np.sort(two, axis=0)).max() > 0.2 for one, two in pairs)
        assert changed == bool(expected), suffix


def test_surfels_are_volumes_in_formats_without_scales_of_0(tmp_path):
    made = cloud(count=9, degree=0)
    made.scales[:, 2] = 0
    scene = StoredScene.of(gaussians_of(made), "scene.ply")
    for suffix in (".ply", ".glb", ".splat", ".ksplat", ".sog", ".compressed.ply", ".spz"):
        save_scene(scene, tmp_path / f"scene{suffix}")
        is_said = "makes surfels volumes, because it has no scale of 0" in losses(scene, suffix)
        assert read_scene(tmp_path / f"scene{suffix}").is_flat != is_said, suffix
        assert not any(each.startswith("clips scales") for each in losses(scene, suffix)), suffix


@pytest.mark.parametrize("name", ["scene.sog", "scene.compressed.ply", "scene.ksplat", "scene.glb", "scene.splat"])
def test_what_is_not_finite_is_written_to_ply_alone(tmp_path, name):
    made = cloud(count=5)
    made.means[2] = np.nan
    with pytest.raises(InvalidArgument, match=r"expected finite numbers, got invalid means; only \.ply can hold"):
        gaussians_of(made).save(tmp_path / name)
    assert not (tmp_path / name).exists()
