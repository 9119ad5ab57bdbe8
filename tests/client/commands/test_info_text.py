"""`lumigrad info FILE` describes scene files in words, with units."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lumigrad.client import Mesh
from lumigrad.client.commands.scene_text import aligned, counted, scene_text
from lumigrad.client.formats import save_gaussians
from support.gaussians.clouds import cloud, gaussians_of
from support.workers.forks import lumigrad

BOX = {"low": [-1.5, 0.0, 2.0], "high": [1.25, 0.5, 3.0]}


def lines_of(**described: object) -> list[str]:
    return scene_text({"file": "scene", "kind": "gaussians", "count": 2, **described}).splitlines()


def test_values_start_in_one_column() -> None:
    assert aligned({"a": 1, "a long label here": 2}) == "a                  1\na long label here  2"


def test_one_is_singular() -> None:
    assert [counted(number, "calls") for number in (0, 1, 2345)] == ["0 calls", "1 call", "2,345 calls"]


def test_spheres_have_no_rows_of_gaussians(tmp_path: Path) -> None:
    header = (
        "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    )
    (tmp_path / "points.ply").write_text(f"{header}0 1 2\n")
    done = lumigrad("info", "points.ply", folder=tmp_path)
    assert done.stdout.splitlines() == [
        "file         points.ply",
        f"size         {len(header) + 6} bytes",
        "content      1 sphere",
        "centres      x 0 to 0, y 1 to 1, z 2 to 2 scene units",
    ]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    made = cloud(count=5, degree=0)
    made.means[1] = np.nan
    save_gaussians(gaussians_of(made), tmp_path / "scene.ply", antialiased=True)
    shown = lumigrad("info", "scene.ply", folder=tmp_path).stdout
    assert "\ncontent       4 Gaussians\nleft out      1 Gaussian with values that are not finite\n" in shown
    assert "\nharmonics     none (one colour for all directions)\n" in shown
    assert "\nantialiasing  the file was trained with it\n" in shown


def test_details_of_formats_are_in_words() -> None:
    shown = lines_of(**BOX, details={"format": "SPZ", "version": 4})
    assert "format       SPZ, version 4" in shown
    assert "centres      x -1.5 to 1.25, y 0 to 0.5, z 2 to 3 scene units" in shown
    assert "format       ksplat, compression level 1" in lines_of(details={"format": "ksplat", "compression_level": 1})
    usd = {"format": "USD", "sorting": "cameraDistance, zDepth", "up_axis": "Y", "meters_per_unit": 0.01}
    assert lines_of(details=usd)[-3:] == [
        "drawing order  by distance to the camera, by depth along the view direction",
        "up axis        y",
        "scene unit     0.01 m",
    ]
    default = lines_of(details={**usd, "unit_is_default": True})[-1]
    assert default == "scene unit     0.01 m, the default of USD: the file states none"
    streamed = {"format": "streamed SOG", "lod": 1, "lods": 3}
    assert lines_of(details=streamed)[-1] == "detail       level 1 of 0 to 2, where 0 is the finest"
    assert lines_of(details={"new_key": 3})[-1] == "new key      3"


def test_meshes_lead_to_distances(tmp_path: Path) -> None:
    corner = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]])
    for name in ("a.obj", "a.stl", "a.ply", "a.glb"):
        corner.save(tmp_path / name)
        done = lumigrad("info", name, folder=tmp_path)
        assert done.stderr.count("\n") == 1 and "`lumigrad query" in done.stderr, done.stderr
        # A PLY file has vertices, which pass for spheres.
        assert (done.returncode, done.stdout.count("3 spheres")) == ((0, 1) if name == "a.ply" else (1, 0))


def test_gaussians_that_lack_a_property_are_no_mesh(tmp_path: Path) -> None:
    """The message lists what is there, also if a program has added faces."""
    names = ("x", "y", "z", "opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3")
    vertex = "element vertex 1\n" + "".join(f"property float {name}\n" for name in names)
    face = "element face 1\nproperty list uchar int vertex_indices\n"
    header = f"ply\nformat ascii 1.0\n{vertex}{face}end_header\n"
    (tmp_path / "a.ply").write_text(f"{header}{'0 ' * len(names)}\n3 0 0 0\n")
    done = lumigrad("info", "a.ply", folder=tmp_path)
    assert done.returncode == 1 and "query" not in done.stderr and "f_dc_0" in done.stderr, done.stderr
