"""PLY files: round trips, and the dialects of other programs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import InvalidArgument, Spheres
from lumigrad.client.datasets import Points
from lumigrad.client.formats.levels.chunks import chunks_of
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.points_ply import mean_neighbour_distance
from support.gaussians.clouds import cloud, gaussians_of

HEADER = "ply\nformat ascii 1.0\nelement vertex {count}\n{properties}\nend_header\n{rows}\n"


def write(path, properties: list[str], rows: list[str]):
    text = HEADER.format(
        count=len(rows), properties="\n".join(f"property {entry}" for entry in properties), rows="\n".join(rows)
    )
    path.write_text(text)
    return path


XYZ = ["float x", "float y", "float z"]


@pytest.mark.parametrize("channels", [1, 3, 7])
@pytest.mark.parametrize("opacities", [False, True])
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, channels, opacities):
    generator = np.random.default_rng(3)
    spheres = Spheres(
        generator.normal(size=(50, 3)) * 1e3,
        generator.normal(size=(50, channels)),
        generator.random(50) + 1e-3,
        generator.random(50) if opacities else None,
    )
    spheres.save(tmp_path / "cloud.ply")
    loaded = Spheres.load(tmp_path / "cloud.ply")
    assert list(loaded.tensors) == list(spheres.tensors)
    for name, array in spheres.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name], array, err_msg=name)


def test_integer_colors_are_scaled_and_float_colors_kept(tmp_path):
    bytes_file = write(
        tmp_path / "bytes.ply",
        [*XYZ, "uchar red", "uchar green", "uchar blue", "uchar alpha"],
        ["0 0 0 255 0 51 51", "1 0 0 0 255 0 255"],
    )
    loaded = Spheres.load(bytes_file)
    np.testing.assert_allclose(loaded.colors, [[1, 0, 0.2], [0, 1, 0]], atol=1e-7)
    np.testing.assert_allclose(loaded.opacities, [0.2, 1])
    floats = write(tmp_path / "floats.ply", [*XYZ, "float r", "float g", "float b"], ["0 0 0 0.25 0.5 2"])
    np.testing.assert_array_equal(Spheres.load(floats).colors, [[0.25, 0.5, 2]])


@pytest.mark.parametrize(
    ("kind", "levels"),
    [("int", 255), ("uint", 255), ("short", 255), ("ushort", 65535), ("int", 65535), ("float", 255), ("double", 255)],
)
def test_levels_in_wide_types_are_neither_black_nor_too_bright(kind: str, levels: int, tmp_path: Path) -> None:
    # Scripts store 8-bit levels in wider types; all channels are scaled alike.
    properties = [*XYZ, f"{kind} red", f"{kind} green", f"{kind} blue"]
    path = write(tmp_path / "wide.ply", properties, [f"0 0 0 {levels} 0 3", f"1 0 0 {levels // 5} {levels} 0"])
    expected = [[1, 0, 3 / levels], [levels // 5 / levels, 1, 0]]
    np.testing.assert_allclose(Spheres.load(path).colors, expected, atol=1e-7)
    np.testing.assert_allclose(Points.load(path).colors, expected, atol=1e-7)


@pytest.mark.parametrize(("level", "expected"), [(127, 1.0), (64, 64 / 127), (-1, 1.0), (-128, 128 / 255)])
def test_signed_levels_are_not_below_black(level: int, expected: float, tmp_path: Path) -> None:
    white = 127 if level > 0 else -1
    properties = [*XYZ, *(f"char {name}" for name in "rgb")]
    path = write(tmp_path / "signed.ply", properties, [f"0 0 0 {white} 0 0", f"1 0 0 0 {level} 0"])
    np.testing.assert_allclose(Spheres.load(path).colors, [[1, 0, 0], [0, expected, 0]], atol=1e-7)


@pytest.mark.parametrize(
    "names", [("r", "g", "b"), ("Red", "Green", "Blue"), ("diffuse_red", "diffuse_green", "diffuse_blue")]
)
def test_colors_of_points_have_the_names_that_those_of_spheres_have(names: tuple[str, ...], tmp_path: Path) -> None:
    path = write(tmp_path / "names.ply", [*XYZ, *(f"uchar {name}" for name in names)], ["0 0 0 255 0 51"])
    np.testing.assert_allclose(Points.load(path).colors, [[1, 0, 0.2]], atol=1e-7)
    np.testing.assert_array_equal(Points.load(path).colors, Spheres.load(path).colors)


def test_points_of_gaussians_have_their_base_colors_and_those_of_other_channels_are_grey(tmp_path: Path) -> None:
    properties = [*XYZ, *(f"float f_dc_{k}" for k in range(3))]
    path = write(tmp_path / "splat.ply", properties, ["0 0 0 0 1 -1"])
    np.testing.assert_array_equal(Points.load(path).colors, Spheres.load(path).colors)
    assert np.ptp(Points.load(path).colors) > 0.5
    path = write(tmp_path / "five.ply", [*XYZ, *(f"float color_{k}" for k in range(5))], ["0 0 0 1 0 1 0 1"])
    np.testing.assert_array_equal(Points.load(path).colors, [[0.5, 0.5, 0.5]])


def test_points_that_are_nowhere_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "nan.ply", XYZ, ["0 0 0", "1 nan 0", "2 0 inf"])
    text = r"nan\.ply: expected finite positions, but 2 of 3 are not, the first is number 1"
    with pytest.raises(InvalidArgument, match=text):
        Points.load(path)


def test_radii_come_from_the_caller_the_file_or_the_neighbours(tmp_path):
    with_radii = write(tmp_path / "radii.ply", [*XYZ, "double radius"], ["0 0 0 0.5", "2 0 0 0.25"])
    np.testing.assert_array_equal(Spheres.load(with_radii).radii, [0.5, 0.25])
    np.testing.assert_array_equal(Spheres.load(with_radii, radius=3).radii, [3, 3])
    without = write(tmp_path / "none.ply", ["double x", "double y", "double z"], ["0 0 0", "2 0 0", "5 0 0"])
    # Nearest neighbours at 2, 2 and 3; spheres reach 0.7 of the mean of that.
    np.testing.assert_allclose(Spheres.load(without).radii, 0.7 * 7 / 3, rtol=1e-6)
    single = write(tmp_path / "single.ply", XYZ, ["1 2 3"])
    np.testing.assert_array_equal(Spheres.load(single).radii, [1])


def test_gaussian_splat_files_give_their_base_colors(tmp_path):
    properties = [*XYZ, "float f_dc_0", "float f_dc_1", "float f_dc_2", "float opacity", "float scale_0"]
    splats = write(tmp_path / "splats.ply", properties, ["0 0 0 0 1 9 -3.5 -4", "1 0 0 0 0 0 4 -4"])
    loaded = Spheres.load(splats)
    np.testing.assert_allclose(loaded.colors[0], [0.5, 0.5 + 0.28209479, 1], rtol=1e-6)
    assert loaded.opacities is None


def test_points_without_colors_are_grey(tmp_path):
    loaded = Spheres.load(write(tmp_path / "grey.ply", XYZ, ["0 0 0", "1 1 1"]))
    np.testing.assert_allclose(loaded.colors, 0.7)


def test_a_file_that_becomes_shorter_while_it_is_read_does_not_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "scene.ply"
    gaussians_of(cloud(50)).save(path)
    header, chunks = PlyHeader.read(path), chunks_of(path)
    table = header.table("vertex")
    os.truncate(path, header.length + 1000)
    # Reading pages of a map that are no longer in the file would be a bus error.
    assert not isinstance(table, np.memmap) and len(table) == 50
    with pytest.raises(InvalidArgument, match="expected 50 vertices, but the file became shorter while it was read"):
        list(chunks)


def test_files_that_are_no_clouds_are_refused(tmp_path):
    (tmp_path / "text.ply").write_text("hello\n")
    with pytest.raises(InvalidArgument, match=r"^path: .*text\.ply: expected a PLY header"):
        Spheres.load(tmp_path / "text.ply")
    with pytest.raises(InvalidArgument, match=r"flat\.ply: expected vertex properties x, y, z, got \['x', 'y'\]"):
        Spheres.load(write(tmp_path / "flat.ply", XYZ[:2], ["0 0"]))
    with pytest.raises(FileNotFoundError):
        Spheres.load(tmp_path / "absent.ply")


def test_mean_neighbour_distance_ignores_copies_and_strays():
    grid = np.stack(np.meshgrid(*[np.arange(12.0)] * 3), axis=-1).reshape(-1, 3) * 0.25
    assert mean_neighbour_distance(grid) == pytest.approx(0.25)
    assert mean_neighbour_distance(np.concatenate([grid, grid])) == pytest.approx(0.25)
    assert mean_neighbour_distance(np.concatenate([grid, [[np.nan] * 3]])) == pytest.approx(0.25)
    # Far from the origin, where float32 could not tell the points apart.
    assert mean_neighbour_distance(grid + 1e6) == pytest.approx(0.25)
    assert mean_neighbour_distance(np.zeros((3, 3))) == 0
