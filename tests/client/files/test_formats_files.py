"""Scene files: round trips, and files of other programs, read as these mean them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import is_gaussian_scene, load_gaussians, read_scene
from support.gaussians.clouds import Cloud, assert_close, cloud, gaussians_of, same_rotations
from support.gaussians.files import sog_files, write_compressed_ply, write_ksplat, write_sog

DATA = os.environ.get("LUMIGRAD_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="set LUMIGRAD_TEST_DATA to the folder that holds scenes/formats")


@pytest.mark.parametrize("degree", range(5))
def test_inria_ply_keeps_everything(tmp_path, degree):
    made = cloud(degree=degree)
    gaussians_of(made).save(tmp_path / "scene.ply")
    read = Gaussians.load(tmp_path / "scene.ply")
    assert_close(read, made, means=1e-6, scales=2e-6, opacity=1e-6, sh=1e-7, angle=2e-3)
    np.testing.assert_array_equal(read.means, made.means.astype(np.float32))
    np.testing.assert_array_equal(read.sh, made.sh.astype(np.float32))


def test_inria_ply_has_the_properties_and_order_of_the_original(tmp_path):
    made = cloud(count=2, degree=3)
    gaussians_of(made).save(tmp_path / "scene.ply")
    content = (tmp_path / "scene.ply").read_bytes()
    header, _, body = content.partition(b"end_header\n")
    names = [line.split()[2] for line in header.decode().splitlines() if line.startswith("property float ")]
    expected = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    expected += [f"f_rest_{k}" for k in range(45)] + ["opacity", "scale_0", "scale_1", "scale_2"]
    assert names == [*expected, "rot_0", "rot_1", "rot_2", "rot_3"]
    row = dict(zip(names, np.frombuffer(body, "<f4", len(names)), strict=True))
    # Channel by channel: coefficient 15 of red, then coefficient 1 of green.
    assert (row["f_rest_14"], row["f_rest_15"]) == (np.float32(made.sh[0, 15, 0]), np.float32(made.sh[0, 1, 1]))
    assert row["scale_1"] == pytest.approx(np.log(made.scales[0, 1]), rel=1e-6)
    assert row["opacity"] == pytest.approx(np.log(made.opacities[0] / (1 - made.opacities[0])), rel=1e-5)
    assert (row["rot_0"], row["nx"]) == (np.float32(made.quats[0, 0]), 0)


def test_ply_in_text_and_big_endian_with_double_and_foreign_properties(tmp_path):
    names = ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3", "z", "y", "x", "extra"]
    names += ["f_dc_0", "f_dc_1", "f_dc_2"]
    values = [0.0, -1.0, -2.0, -3.0, 2.0, 0.0, 0.0, 2.0, 3.0, 2.0, 1.0, 9.0, 0.1, 0.2, 0.3]
    for kind in ("ascii", "binary_big_endian"):
        header = [f"format {kind} 1.0", "comment antialiased 1", "element vertex 1"]
        text = "\n".join(["ply", *header, *(f"property double {name}" for name in names), "end_header", ""])
        body = " ".join(map(str, values)).encode() if kind == "ascii" else struct.pack(f">{len(values)}d", *values)
        (tmp_path / "scene.ply").write_bytes(text.encode() + body)
        scene = read_scene(tmp_path / "scene.ply")
        assert scene.antialiased
        read = scene.gaussians()
        np.testing.assert_allclose(read.means, [[1, 2, 3]])
        np.testing.assert_allclose(read.scales, np.exp([[-1, -2, -3]]), rtol=1e-6)
        np.testing.assert_allclose(read.opacities, [0.5])
        np.testing.assert_allclose(read.quats, [[0.5**0.5, 0, 0, 0.5**0.5]], rtol=1e-6)
        np.testing.assert_allclose(read.sh, [[[0.1, 0.2, 0.3]]], rtol=1e-6)


def test_opacities_of_0_and_1_survive_the_logit(tmp_path):
    made = Gaussians(np.zeros((2, 3)), [[1, 0, 0, 0]] * 2, np.zeros((2, 3)), [0, 1], colors=[[0, 0.5, 1]] * 2)
    made.save(tmp_path / "scene.ply")
    read = Gaussians.load(tmp_path / "scene.ply")
    np.testing.assert_allclose(read.opacities, [0, 1], atol=1e-8)
    np.testing.assert_allclose(read.scales, 0, atol=1e-37)
    np.testing.assert_allclose(0.5 + 0.28209479177387814 * read.sh[:, 0], [[0, 0.5, 1]] * 2, atol=1e-7)


def test_splat_keeps_positions_scales_and_the_base_color(tmp_path):
    made = cloud(degree=2)
    gaussians_of(made).save(tmp_path / "scene.splat")
    assert (tmp_path / "scene.splat").stat().st_size == 32 * len(made)
    assert_close(
        Gaussians.load(tmp_path / "scene.splat"), made, means=1e-6, scales=1e-6, opacity=0.5 / 255 + 1e-6, sh=0.008,
        angle=0.04,
    )  # fmt: skip


@pytest.mark.parametrize("color_bounds", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_compressed_ply(tmp_path, color_bounds, degree):
    made = cloud(degree=degree)
    made.sh[:, 0] = np.clip(made.sh[:, 0], -1.7, 1.7)
    write_compressed_ply(tmp_path / "scene.compressed.ply", made, color_bounds=color_bounds)
    assert is_gaussian_scene(tmp_path / "scene.compressed.ply")
    read = Gaussians.load(tmp_path / "scene.compressed.ply")
    assert_close(read, made, means=0.02, scales=0.005, opacity=0.5 / 255 + 1e-6, sh=0.0157, angle=0.01)
    if degree:
        assert read.sh.shape[1] == (degree + 1) ** 2


@pytest.mark.parametrize("level", [0, 1, 2])
def test_ksplat_with_sections_of_different_degrees(tmp_path, level):
    clouds = [cloud(count=200, degree=2, seed=1), cloud(count=128, degree=0, seed=2), cloud(count=37, degree=1, seed=3)]
    write_ksplat(tmp_path / "scene.ksplat", clouds, level)
    rows = [np.zeros((len(part), 9, 3)) for part in clouds]
    for row, part in zip(rows, clouds, strict=True):
        row[:, : part.sh.shape[1]] = part.sh
    whole = Cloud(
        *(
            np.concatenate([getattr(part, name) for part in clouds])
            for name in ("means", "quats", "scales", "opacities")
        ),
        np.concatenate(rows),
    )
    read = Gaussians.load(tmp_path / "scene.ksplat")
    fine = level == 0
    assert_close(
        read, whole, means=1e-6 if fine else 1e-3, scales=1e-6 if fine else 2e-3, opacity=0.5 / 255 + 1e-6, sh=0.0085,
        angle=2e-3,
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("bundled", [True, False])
def test_sog(tmp_path, version, degree, bundled):
    made = cloud(degree=degree)
    if bundled:
        write_sog(tmp_path / "scene.sog", made, version)
        path = tmp_path / "scene.sog"
    else:
        path = tmp_path / "scene"
        path.mkdir()
        for name, content in sog_files(made, version).items():
            (path / name).write_bytes(content)
    scene = read_scene(path)
    assert scene.antialiased == (version == 2)
    assert_close(scene.gaussians(), made, means=1e-3, scales=0.06, opacity=0.011, sh=0.03, angle=0.03)
    if not bundled:
        np.testing.assert_array_equal(read_scene(path / "meta.json").means, scene.means)


def test_content_decides_over_the_name(tmp_path):
    made = cloud(count=4)
    gaussians_of(made).save(tmp_path / "scene.spz")
    (tmp_path / "scene.spz").rename(tmp_path / "scene.splat")
    assert len(load_gaussians(tmp_path / "scene.splat")) == 4
    write_ksplat(tmp_path / "scene.ksplat", [made], 0)
    (tmp_path / "scene.ksplat").rename(tmp_path / "scene.bin")
    assert len(load_gaussians(tmp_path / "scene.bin")) == 4


def test_points_are_no_gaussians(tmp_path):
    properties = "".join(f"property float {axis}\n" for axis in "xyz")
    (tmp_path / "points.ply").write_text(f"ply\nformat ascii 1.0\nelement vertex 1\n{properties}end_header\n0 0 0")
    assert not is_gaussian_scene(tmp_path / "points.ply")
    with pytest.raises(
        InvalidArgument, match=r"^path: .*points\.ply: expected Gaussians .* Spheres\.load reads points$"
    ):
        load_gaussians(tmp_path / "points.ply")


def test_what_no_format_can_hold_is_refused(tmp_path):
    shape = [[1, 0, 0, 0]], [[1, 1, 1]], [1]
    two = Gaussians(np.zeros((2, 1, 3)), [shape[0]] * 2, [shape[1]] * 2, [shape[2]] * 2, colors=np.ones((2, 1, 3)))
    with pytest.raises(InvalidArgument, match=r"expected one scene with 3 colour channels, got means \[2, 1, 3\]"):
        two.save(tmp_path / "scene.ply")
    with pytest.raises(InvalidArgument, match=r"got means .* and 4 channels"):
        Gaussians([[0, 0, 0]], *shape, colors=[[1, 1, 1, 1]]).save(tmp_path / "scene.ply")
    covariances = Gaussians([[0, 0, 0]], None, None, [1], colors=[[1, 1, 1]], covariances=[[1, 0, 0, 1, 0, 1]])
    with pytest.raises(InvalidArgument, match="expected Gaussians with quats and scales"):
        covariances.save(tmp_path / "scene.ply")
    for name in ("scene.lcc", "scene.json", "scene"):
        with pytest.raises(InvalidArgument, match=r"expected a name that ends in \.ply, .*, \.usdz, got .*scene"):
            gaussians_of(cloud(count=1)).save(tmp_path / name)


def test_what_is_not_finite_is_named_or_left_out(tmp_path):
    made = cloud(count=10)
    made.means[3, 1] = np.nan
    made.sh[7, 1, 2] = np.inf
    gaussians_of(made).save(tmp_path / "scene.ply")
    said = r"scene\.ply: .* but 2 of 10 Gaussians have invalid means, sh, the first is number 3; skip_invalid=True"
    with pytest.raises(InvalidArgument, match=said):
        load_gaussians(tmp_path / "scene.ply")
    read = load_gaussians(tmp_path / "scene.ply", skip_invalid=True)
    np.testing.assert_array_equal(read.means, np.delete(made.means, [3, 7], axis=0).astype(np.float32))


def test_rotations_of_length_0_are_none(tmp_path):
    Gaussians([[0, 0, 0]], [[0, 0, 0, 0]], [[1, 2, 3]], [1], colors=[[1, 1, 1]]).save(tmp_path / "scene.ply")
    np.testing.assert_array_equal(Gaussians.load(tmp_path / "scene.ply").quats, [[1, 0, 0, 0]])


@needs_data
def test_files_of_other_writers_agree():
    folder = Path(DATA or "", "scenes", "formats")
    splat = load_gaussians(folder / "minimal.splat")
    np.testing.assert_allclose(splat.means, [[-1, 0, -1], [0, 0, -1], [-1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(splat.scales, 0.1, rtol=1e-6)
    ksplat = load_gaussians(folder / "minimal.ksplat")
    for name in ("means", "scales", "opacities", "sh"):
        np.testing.assert_allclose(getattr(ksplat, name), getattr(splat, name), atol=1e-6)
    third, fourth = (load_gaussians(folder / f"minimal-v{version}.spz") for version in (3, 4))
    for name in third.tensors:
        np.testing.assert_array_equal(third.tensors[name], fourth.tensors[name])
    raw, second = (load_gaussians(folder / f"minimal-{name}.spz") for name in ("raw", "v2"))
    for name in second.tensors:
        np.testing.assert_array_equal(raw.tensors[name], second.tensors[name])
    np.testing.assert_allclose(second.scales, 0.1, rtol=0.04)


@needs_data
def test_a_trained_scene_is_the_same_in_every_format(tmp_path):
    folder = Path(DATA or "", "scenes", "trained_biker")
    expected = np.load(folder / "biker_gaussians.npz")
    packed = load_gaussians(folder / "biker.compressed.ply")
    spz = load_gaussians(folder / "biker.spz")
    for read, tolerances in ((packed, (1e-6, 1e-6, 0, 1e-6)), (spz, (2e-4, 0.04, 0, 0.0131))):
        np.testing.assert_allclose(read.means, expected["means"], atol=tolerances[0])
        # Scales that .spz can hold.
        held = expected["scales"] > 5e-5
        np.testing.assert_allclose(read.scales[held], expected["scales"][held], rtol=tolerances[1])
        np.testing.assert_allclose(read.opacities, expected["opacities"], atol=1e-7)
        np.testing.assert_allclose(read.sh[:, 0], expected["sh0"], atol=tolerances[3])
        assert same_rotations(read.quats, expected["quats"]) < 0.01
    packed.save(tmp_path / "biker.ply")
    again = load_gaussians(tmp_path / "biker.ply")
    np.testing.assert_array_equal(again.means, packed.means)
    np.testing.assert_allclose(again.scales, packed.scales, rtol=2e-6)


@pytest.mark.parametrize("degree", [0, 2])
def test_scenes_without_gaussians_are_stored_or_refused(tmp_path, degree):
    empty = gaussians_of(cloud(count=5, degree=degree))
    empty = Gaussians(empty.means[:0], empty.quats[:0], empty.scales[:0], empty.opacities[:0], sh=empty.sh[:0])
    for name in ("empty.ply", "empty.spz"):
        empty.save(tmp_path / name)
        read = Gaussians.load(tmp_path / name)
        assert len(read) == 0 and read.sh_degree == degree
    for name in ("empty.splat", "empty.compressed.ply", "empty.ksplat", "empty.sog", "empty.glb", "empty.usda"):
        with pytest.raises(InvalidArgument, match=r"empty\..*: expected at least one Gaussian, got none"):
            empty.save(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_ply_of_surfels_has_two_scales(tmp_path):
    path, volumes = tmp_path / "surfels.ply", gaussians_of(cloud(20, 1))
    surfels = Gaussians(volumes.means, volumes.quats, volumes.scales[:, :2], volumes.opacities, sh=volumes.sh)
    surfels.save(path)
    volumes.save(tmp_path / "volumes.ply")
    head = path.read_bytes().split(b"end_header")[0].decode()
    assert "property float scale_1\nproperty float rot_0" in head
    stored = read_scene(path)
    assert stored.is_flat and not read_scene(tmp_path / "volumes.ply").is_flat
    np.testing.assert_allclose(stored.scales, surfels.scales, rtol=1e-6)
    assert stored.gaussians().is_flat
