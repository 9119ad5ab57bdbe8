"""Meshes from and to files: STL, OBJ, PLY and GLB, scenes of several parts, damage."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import trimesh

from lumigrad.client import InvalidArgument, Mesh
from support.meshes import shapes as mesh_shapes
from support.rotations import rotation

FORMATS = ("stl", "obj", "ply", "glb")
Outline = Sequence[tuple[float, float]]
L_SHAPE = [(0, 0), (3, 0), (3, 1), (1, 1), (1, 2), (0, 2)]


def torus() -> Mesh:
    shape = mesh_shapes.torus(8, 6)
    return Mesh(shape.vertices, shape.faces)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_saved_is_loaded_again(tmp_path, kind):
    mesh = torus()
    mesh.save(tmp_path / f"part.{kind}")
    loaded = Mesh.load(tmp_path / f"part.{kind}")
    assert loaded.name == "part"
    np.testing.assert_allclose(
        loaded.vertices[loaded.faces], mesh.vertices[mesh.faces], atol=1e-8 if kind == "obj" else 0
    )
    if kind != "stl":
        np.testing.assert_array_equal(loaded.faces, mesh.faces)


def test_units_are_scaled_before_they_are_rounded(tmp_path):
    mesh = Mesh([[1000.1, 0, 0], [1000.2, 0, 0], [1000.1, 0.1, 0]], [[0, 1, 2]])
    mesh.save(tmp_path / "mm.ply")
    loaded = Mesh.load(tmp_path / "mm.ply", scale=0.001)
    expected = mesh.vertices.astype(np.float64) * 0.001
    np.testing.assert_array_equal(loaded.vertices, expected.astype(np.float32))
    for scale in (0.0, -1.0, np.nan, "mm"):
        with pytest.raises(InvalidArgument, match=r"^scale: expected"):
            Mesh.load(tmp_path / "mm.ply", scale=scale)


def test_parts_of_a_scene_are_placed_and_joined(tmp_path):
    scene = trimesh.Scene()
    part = trimesh.creation.box((1.0, 2.0, 3.0))
    aside, mirrored = np.eye(4), np.diag([-1.0, 1.0, 1.0, 1.0])
    aside[:3, 3] = (10.0, 0.0, 0.0)
    scene.add_geometry(part, transform=aside)
    scene.add_geometry(part, transform=mirrored)
    scene.add_geometry(trimesh.PointCloud([[100.0, 0.0, 0.0]]))
    scene.export(tmp_path / "scene.glb")
    loaded = Mesh.load(tmp_path / "scene.glb")
    assert len(loaded) == 24
    np.testing.assert_allclose(loaded.bounds, ((-0.5, -1.0, -1.5), (10.5, 1.0, 1.5)), atol=1e-6)
    # The mirrored part faces outward as well: the volumes add up.
    assert volume_of(loaded) == pytest.approx(12.0, abs=1e-3)


def test_quads_of_a_text_file_become_triangles(tmp_path):
    text = "mtllib missing.mtl\nv 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nusemtl red\nf 1/1/1 2/2/1 3/3/1 4/4/1\n"
    text += "vt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\nvn 0 0 1\n"
    (tmp_path / "quad.obj").write_text(text)
    loaded = Mesh.load(tmp_path / "quad.obj")
    assert len(loaded) == 2
    assert loaded.vertices.max() == 1.0


def volume_of(mesh: Mesh) -> float:
    corners = mesh.vertices[mesh.faces].astype(np.float64)
    return float(np.einsum("ij,ij->", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])) / 6)


def prism_faces(outline: Outline, first: int) -> tuple[list[list[int]], list[tuple[float, float, float]]]:
    """A prism of height 1 over an outline; its base and its top are one polygon each, starting at corner `first`."""
    count = len(outline)
    around = [(corner + first) % count for corner in range(count)]
    faces = [around[::-1], [corner + count for corner in around]]
    faces += [[i, (i + 1) % count, (i + 1) % count + count, i + count] for i in range(count)]
    return faces, [(x, y, z) for z in (0, 1) for x, y in outline]


def prism(outline: Outline, first: int, *, relative: bool) -> str:
    faces, corners = prism_faces(outline, first)
    shift = -len(corners) if relative else 1
    lines = ["v " + " ".join(map(str, corner)) for corner in corners]
    return "\n".join([*lines, *("f " + " ".join(str(corner + shift) for corner in face) for face in faces), ""])


@pytest.mark.parametrize("first", range(10))
@pytest.mark.parametrize("turned", [False, True])
def test_polygons_that_are_not_convex_do_not_fold(first: int, turned: bool, tmp_path: Path) -> None:
    # An L, then a frame: a square with a cut to its square hole. From some corners, a fan would leave the outline.
    frame = [(0, 0), (3, 0), (3, 3), (0, 3), (0, 0), (1, 1), (1, 2), (2, 2), (2, 1), (1, 1)]
    for outline, area in ((L_SHAPE, 4.0), (frame, 8.0)):
        text = prism(outline, first % len(outline), relative=False)
        if turned:  # y up instead of z
            text = "\n".join(
                "v {0} {2} -{1}".format(*line.split()[1:]) if line[:1] == "v" else line for line in text.split("\n")
            )
        (tmp_path / "part.obj").write_text(text)
        loaded = Mesh.load(tmp_path / "part.obj")
        assert volume_of(loaded) == pytest.approx(area, abs=1e-5)
        flat = loaded.vertices[loaded.faces].astype(np.float64)
        normals = np.cross(flat[:, 1] - flat[:, 0], flat[:, 2] - flat[:, 0])
        up = 1 if turned else 2
        # Triangles that fold would cover more than the outline.
        assert np.abs(normals[:, up]).sum() / 2 == pytest.approx(2 * area, abs=1e-5)


def test_cuts_to_holes_in_line_with_other_corners_do_not_fold(tmp_path: Path) -> None:
    frame = np.array([(0, 0), (4, 0), (4, 4), (0, 4), (0, 0), (1, 1), (1, 2), (2, 2), (2, 1), (1, 1)], np.float64)
    # Rotations by which rounding puts corners on the wrong side of a line.
    turns = [rotation(np.random.default_rng(seed).normal(size=4))[:, :2].T for seed in (185, 200, 393)]
    lines = []
    for first, step, turn in itertools.product(range(10), (1, -1), turns):
        lines += [f"v {x!r} {y!r} {z!r}" for x, y, z in (np.roll(frame, first, axis=0)[::step] @ turn).tolist()]
        lines.append("f -10 -9 -8 -7 -6 -5 -4 -3 -2 -1")
    (tmp_path / "frames.obj").write_text("\n".join(lines))
    loaded = Mesh.load(tmp_path / "frames.obj")
    corners = loaded.vertices[loaded.faces].astype(np.float64)
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas = np.linalg.norm(normals, axis=1).reshape(-1, 8).sum(1) / 2
    np.testing.assert_allclose(areas, 15.0, atol=1e-4)


def test_a_byte_order_mark_does_not_hide_the_first_vertex(tmp_path: Path) -> None:
    text = prism([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)], 0, relative=True)
    (tmp_path / "part.obj").write_text("\ufeff" + text, "utf-8")
    assert volume_of(Mesh.load(tmp_path / "part.obj")) == pytest.approx(1.0)
    # If the mark hid the first vertex, these indices would name others.
    (tmp_path / "part.obj").write_text("\ufeff" + text.replace("f ", "v 9 9 9\nf ", 1).replace("-", ""), "utf-8")
    assert len(Mesh.load(tmp_path / "part.obj").vertices) == 9


def test_relative_indices_count_from_the_line_they_are_in(tmp_path: Path) -> None:
    square = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    parts = [prism([(x + 5 * part, y) for x, y in square], 0, relative=True) for part in range(3)]
    (tmp_path / "parts.obj").write_text("".join(f"o {number}\n{part}" for number, part in enumerate(parts)))
    loaded = Mesh.load(tmp_path / "parts.obj")
    assert volume_of(loaded) == pytest.approx(3.0, abs=1e-5)
    np.testing.assert_array_equal(np.unique(loaded.faces), np.arange(24))


def test_lines_may_go_on_and_end_in_comments(tmp_path: Path) -> None:
    text = "v 0 0 0 1.0 0.5 0.5 # red\r\nv 1 0 0\r\n v 0 1 0\r\nvn 0 0 1\r\nf 1//1 \\\r\n2//1 3//1 # one\r\nl 1 2\r\n"
    (tmp_path / "part.obj").write_bytes(text.encode())
    np.testing.assert_array_equal(Mesh.load(tmp_path / "part.obj").faces, [[0, 1, 2]])


@pytest.mark.parametrize("line", ["f 1 2", "f 0 1 2", "f 1 2 -4", "f 1 2 x", "v 1 2", "f 1 2 4"])
def test_lines_that_are_wrong_are_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "part.obj").write_text(f"v 0 0 0\nv 1 0 0\nv 0 1 0\n{line}\nf 1 2 3\n")
    named = "got the index 4" if line == "f 1 2 4" else f"got '{line}' at line 4"
    with pytest.raises(InvalidArgument, match=rf"part.obj: expected .*{named}"):
        Mesh.load(tmp_path / "part.obj")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("damage", ["empty", "junk", "cut"])
def test_damaged_files_are_refused(tmp_path, kind, damage):
    path = tmp_path / f"part.{kind}"
    torus().save(path)
    whole = path.read_bytes()
    junk = np.random.default_rng(1).integers(0, 256, 2000, np.uint8).tobytes()
    path.write_bytes({"empty": b"", "junk": junk, "cut": whole[: len(whole) // 3]}[damage])
    said = "(expected .* got|.* does not parse|.* there are|expected JSON|expected .* but the file has)"
    with pytest.raises(InvalidArgument, match=rf"^path: {path}: {said}"):
        Mesh.load(path)


def test_files_of_points_and_of_nothing_finite_are_refused(tmp_path):
    trimesh.PointCloud(np.eye(3)).export(tmp_path / "points.ply")
    with pytest.raises(InvalidArgument, match=r"points.ply: expected triangles, got none; the file may be incomplete"):
        Mesh.load(tmp_path / "points.ply")
    (tmp_path / "nan.obj").write_text("v nan 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    with pytest.raises(InvalidArgument, match=r"nan.obj: vertices: expected finite values"):
        Mesh.load(tmp_path / "nan.obj")


@pytest.mark.parametrize("name", ["part.dae", "part", "part.zip"])
def test_other_formats_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    text = r"^path: expected a name that ends in one of .stl, .obj, .ply, .glb, got"
    with pytest.raises(InvalidArgument, match=text):
        Mesh.load(tmp_path / name)
    with pytest.raises(InvalidArgument, match=text):
        torus().save(tmp_path / name)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Mesh.load(tmp_path / "none.stl")


def test_names_of_endings_may_be_in_capitals(tmp_path: Path):
    torus().save(tmp_path / "part.STL")
    assert len(Mesh.load(tmp_path / "part.STL")) == len(torus())


def ply(kind: str, faces: list[list[int]], vertices: Sequence[Sequence[float]], rest: bytes = b"") -> bytes:
    """A PLY file with a colour after each vertex, a flag before each face, and edges at the end."""
    header = f"ply\nformat {kind} 1.0\nelement vertex {len(vertices)}\n"
    header += "".join(f"property float {axis}\n" for axis in "xyz") + "property uchar red\n"
    header += f"element face {len(faces)}\nproperty uchar flag\nproperty list uchar int vertex_indices\n"
    header += "element edge 1\nproperty int vertex1\nproperty int vertex2\nend_header\n"
    if kind == "ascii":
        lines = [" ".join(map(str, [*vertex, 7])) for vertex in vertices]
        lines += [" ".join(map(str, [1, len(face), *face])) for face in faces]
        return header.encode() + "\n".join([*lines, "0 1", ""]).encode() + rest
    order = "<" if kind == "binary_little_endian" else ">"
    body = b"".join(struct.pack(f"{order}3fB", *vertex, 7) for vertex in vertices)
    body += b"".join(struct.pack(f"{order}BB{len(face)}i", 1, len(face), *face) for face in faces)
    return header.encode() + body + struct.pack(f"{order}2i", 0, 1) + rest


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("first", range(6))
def test_polygons_of_ply_files_may_be_mixed_and_not_convex(kind: str, first: int, tmp_path: Path) -> None:
    (tmp_path / "part.ply").write_bytes(ply(kind, *prism_faces(L_SHAPE, first)))
    loaded = Mesh.load(tmp_path / "part.ply")
    assert volume_of(loaded) == pytest.approx(4.0, abs=1e-5)
    corners = loaded.vertices[loaded.faces].astype(np.float64)
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    assert np.abs(normals[:, 2]).sum() / 2 == pytest.approx(8.0, abs=1e-5)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_triangles_of_ply_files_keep_their_order(kind: str, tmp_path: Path) -> None:
    shape = mesh_shapes.torus(8, 6)
    faces, vertices = shape.faces.tolist(), shape.vertices.astype(np.float32).tolist()
    (tmp_path / "torus.ply").write_bytes(ply(kind, faces, vertices))
    loaded = Mesh.load(tmp_path / "torus.ply")
    np.testing.assert_array_equal(loaded.faces, shape.faces)
    np.testing.assert_array_equal(loaded.vertices, np.float32(vertices))


@pytest.mark.parametrize("counts", [(2, 0, 1), (1, 1, 1)])
@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_vertices_of_ply_files_may_have_lists(kind: str, counts: tuple[int, ...], tmp_path: Path) -> None:
    vertices = [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 2.0, 0.0)]
    whole = ply(kind, [[0, 1, 2]], vertices).replace(
        b"property uchar red\n", b"property uchar red\nproperty list uchar uchar faces\n"
    )
    header, _, body = whole.partition(b"end_header\n")
    rows = body.split(b"\n")[:3] if kind == "ascii" else [body[13 * row : 13 * row + 13] for row in range(3)]
    listed, rest = b"end_header\n", body[sum(len(row) + (kind == "ascii") for row in rows) :]
    for row, count in zip(rows, counts, strict=True):
        listed += row + (f" {count}{' 0' * count}\n".encode() if kind == "ascii" else bytes([count]) + bytes(count))
    (tmp_path / "part.ply").write_bytes(header + listed + rest)
    np.testing.assert_array_equal(Mesh.load(tmp_path / "part.ply").vertices, np.float32(vertices))


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian"])
def test_ply_files_that_are_wrong_say_what_is(kind: str, tmp_path: Path) -> None:
    faces, vertices = prism_faces(L_SHAPE, 0)
    path = tmp_path / "part.ply"

    def refused(content: bytes, words: str) -> None:
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match=words) as error:
            Mesh.load(path)
        assert len(str(error.value)) <= 500

    refused(ply(kind, [[0, 1, 12]], vertices), "indices of the 12 vertices, from 0, got 12")
    refused(ply(kind, [[0, 1, -1]], vertices), "got -1")
    refused(ply(kind, [[0, 1, 2], [3, 4]], vertices), "at least three corners of each face, got 2 of face 1")
    refused(ply(kind, faces, vertices)[:-30], "the file may be incomplete|bytes behind the header")
    refused(ply(kind, faces, vertices).replace(b"vertex_indices", b"corner_indices"), "a list vertex_indices")
    strips = ply(kind, faces, vertices).replace(b"element face", b"element tristrips")
    refused(strips, 'expected an element "face", got "tristrips"')
    more = b"3 0 1 2\n" if kind == "ascii" else struct.pack("<BB3i", 1, 3, 0, 1, 2)
    refused(ply(kind, faces, vertices, more), "expected the end of the file behind 12 vertex, 8 face, 1 edge")


def test_what_follows_the_triangles_of_a_binary_stl_is_left_out(tmp_path: Path) -> None:
    torus().save(tmp_path / "torus.stl")
    whole = (tmp_path / "torus.stl").read_bytes()
    text = b"made by a scanner\n".ljust(100, b"-")
    for rest in (b"made by a scanner\0" * 9, bytes(50), bytes(84), bytes(512), text, text + bytes(50)):
        (tmp_path / "longer.stl").write_bytes(whole + rest)
        assert len(Mesh.load(tmp_path / "longer.stl")) == len(Mesh.load(tmp_path / "torus.stl"))


def test_headers_of_binary_stl_may_speak_of_facets(tmp_path: Path) -> None:
    torus().save(tmp_path / "torus.stl")
    triangles = (tmp_path / "torus.stl").read_bytes()[80:]
    for rest in (b"", bytes(7), b"made by a scanner\n"):
        (tmp_path / "named.stl").write_bytes(b"solid of 3072 facets".ljust(80) + triangles + rest)
        assert len(Mesh.load(tmp_path / "named.stl")) == len(Mesh.load(tmp_path / "torus.stl"))


@pytest.mark.parametrize("second", ["triangles", "solid"])
def test_triangles_behind_those_that_a_binary_stl_counts_are_not_left_out(tmp_path: Path, second: str) -> None:
    torus().save(tmp_path / "torus.stl")
    whole = (tmp_path / "torus.stl").read_bytes()
    (tmp_path / "more.stl").write_bytes(whole + (whole if second == "solid" else whole[84:384]))
    count = len(Mesh.load(tmp_path / "torus.stl"))
    with pytest.raises(InvalidArgument, match=f"more.stl: expected {count:,} triangles, as its header says, got more"):
        Mesh.load(tmp_path / "more.stl")


@pytest.mark.parametrize("separator", ["\n", "\r", " "])
@pytest.mark.parametrize(
    "name", ["", "facet normal", "my facet normal 0 0 1", "vertex 1", "endsolid", "solid of facets"]
)
def test_names_of_solids_in_text_may_be_keywords(tmp_path: Path, name: str, separator: str) -> None:
    box = trimesh.exchange.stl.export_stl_ascii(trimesh.creation.box((1.0, 2.0, 3.0)))
    solid = re.sub("solid.*", lambda found: f"{found[0].split()[0]} {name}", box)
    (tmp_path / "part.stl").write_text(f"{solid}\n{solid}\n".replace("\n", separator))
    (tmp_path / "plain.stl").write_text(f"{box}\n{box}\n")
    found, expected = Mesh.load(tmp_path / "part.stl"), Mesh.load(tmp_path / "plain.stl")
    assert len(expected) == 24
    np.testing.assert_array_equal(found.vertices, expected.vertices)
    np.testing.assert_array_equal(found.faces, expected.faces)


@pytest.mark.parametrize("separator", ["\n", "\r", " ", "\t\t"])
def test_text_stl_need_not_be_in_lines(tmp_path: Path, separator: str) -> None:
    """Lines end with a carriage return alone on old Macs, and some programs write one line."""
    boxes = [trimesh.creation.box((1.0, 2.0, size)) for size in (3.0, 4.0)]
    text = "\n".join(map(trimesh.exchange.stl.export_stl_ascii, boxes))
    (tmp_path / "lines.stl").write_text(text)
    (tmp_path / "one.stl").write_text(text.replace("\n", separator))
    (tmp_path / "facets.stl").write_text(re.sub(r"\n\s*(?!facet|solid|endsolid)", separator, text))
    expected = Mesh.load(tmp_path / "lines.stl")
    assert len(expected) == 24
    for name in ("one.stl", "facets.stl"):
        found = Mesh.load(tmp_path / name)
        np.testing.assert_array_equal(found.vertices, expected.vertices)
        np.testing.assert_array_equal(found.faces, expected.faces)
    (tmp_path / "one.stl").write_text(text.replace("\n", separator)[:-300])
    with pytest.raises(InvalidArgument, match=r"one.stl: expected \d+ whole triangles, got 12; the file may be"):
        Mesh.load(tmp_path / "one.stl")


@pytest.mark.parametrize("count", [1, 3])
def test_facets_of_more_than_three_vertices_are_refused(tmp_path: Path, count: int) -> None:
    corners = "".join(f"vertex {x} {y} 0\n" for x, y in ((0, 0), (1, 0), (1, 1), (0, 1)))
    facet = f"facet normal 0 0 1\nouter loop\n{corners}endloop\nendfacet\n"
    (tmp_path / "quads.stl").write_text(f"solid a\n{facet * count}endsolid a\n")
    with pytest.raises(InvalidArgument, match=rf"quads\.stl: expected three vertices of each facet, got {4 * count} o"):
        Mesh.load(tmp_path / "quads.stl")


def test_polygons_by_their_older_name_are_read_and_surfaces_without_polygons_refused(tmp_path: Path) -> None:
    corners = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\n"
    (tmp_path / "part.obj").write_text(f"{corners}f 1 2 3\nfo 1 2 4\n")
    np.testing.assert_array_equal(Mesh.load(tmp_path / "part.obj").faces, [[0, 1, 2], [0, 1, 3]])
    (tmp_path / "part.obj").write_text(f"{corners}f 1 2 3\ncstype bspline\nsurf 0 1 0 1 1 2 3 4\nend\n")
    with pytest.raises(InvalidArgument, match=r"part\.obj: expected polygons, got a free-form surface at line 7"):
        Mesh.load(tmp_path / "part.obj")
