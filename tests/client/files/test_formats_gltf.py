"""glTF with KHR_gaussian_splatting: what is written, what others may write, and what is refused."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pygltflib
import pytest
from scipy.spatial.transform import Rotation

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import StoredScene, load_gaussians, read_scene, save_scene
from support.gaussians.clouds import Cloud, cloud, gaussians_of
from support.gaussians.files import spz_content
from support.gaussians.gltf_files import HALF_TURN, NAME, Builder, assert_looks, colors, covariances, lone
from support.workers.forks import lumigrad

TURN = np.block([[HALF_TURN, np.zeros((3, 1))], [np.zeros((1, 3)), np.ones((1, 1))]])


@pytest.mark.parametrize("suffix", [".glb", ".gltf"])
@pytest.mark.parametrize("degree", range(4))
def test_what_is_written_is_read_bit_by_bit(tmp_path, suffix, degree):
    made = gaussians_of(cloud(degree=degree))
    made.save(tmp_path / f"scene{suffix}")
    read = Gaussians.load(tmp_path / f"scene{suffix}")
    for name in ("means", "scales", "opacities", "sh"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    np.testing.assert_allclose(read.quats, made.quats, atol=1e-7)


def test_a_buffer_replaces_no_file_of_something_else(tmp_path):
    (tmp_path / "points3D.bin").write_bytes(b"of COLMAP")
    with pytest.raises(InvalidArgument, match=r"expected no points3D\.bin beside a new \.gltf file"):
        gaussians_of(cloud(count=3)).save(tmp_path / "points3D.gltf")
    assert (tmp_path / "points3D.bin").read_bytes() == b"of COLMAP"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["points3D.bin"]
    for count in (3, 5):
        gaussians_of(cloud(count=count)).save(tmp_path / "scene.gltf")
        assert len(Gaussians.load(tmp_path / "scene.gltf")) == count


def test_another_reader_finds_the_same_gaussians_in_the_axes_of_gltf(tmp_path):
    made = cloud(count=50, degree=3)
    gaussians_of(made).save(tmp_path / "scene.glb")
    file = pygltflib.GLTF2().load(str(tmp_path / "scene.glb"))
    assert file is not None and file.extensionsUsed == [NAME]
    primitive, blob = file.meshes[0].primitives[0], file.binary_blob()
    assert primitive.mode == pygltflib.POINTS
    known = {"kernel": "ellipse", "colorSpace": "srgb_rec709_display", "sortingMethod": "cameraDistance"}
    assert primitive.extensions == {NAME: known}

    def values(name: str) -> np.ndarray:
        accessor = file.accessors[getattr(primitive.attributes, name)]
        view = file.bufferViews[accessor.bufferView]
        width = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}[accessor.type]
        return np.frombuffer(blob, "<f4", accessor.count * width, view.byteOffset).reshape(-1, width)

    means = values("POSITION")
    np.testing.assert_array_equal(means, (made.means * (-1, -1, 1)).astype("f4"))
    accessor = file.accessors[primitive.attributes.POSITION]
    np.testing.assert_array_equal([accessor.min, accessor.max], [means.min(axis=0), means.max(axis=0)])
    quats = values(f"{NAME}:ROTATION")[:, [3, 0, 1, 2]]
    expected = HALF_TURN @ covariances(made.quats, made.scales) @ HALF_TURN
    np.testing.assert_allclose(covariances(quats, values(f"{NAME}:SCALE")), expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(values(f"{NAME}:OPACITY")[:, 0], made.opacities.astype("f4"))
    names = [f"{NAME}:SH_DEGREE_{band}_COEF_{k}" for band in range(4) for k in range(2 * band + 1)]
    sh = np.stack([values(name) for name in names], axis=1)
    directions = np.random.default_rng(0).normal(size=(30, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    np.testing.assert_allclose(colors(sh, directions), colors(made.sh, directions @ HALF_TURN), atol=1e-5)


@pytest.mark.parametrize("kind", ["i1", "i2"])
@pytest.mark.parametrize(("numbers", "normalized"), [("u1", True), ("u2", True), ("u1", False), ("u2", False)])
def test_integers_are_normalised_or_taken_as_they_are(tmp_path, kind, numbers, normalized):
    made = cloud(count=30, degree=1)
    largest, most = np.iinfo(kind).max, np.iinfo(numbers).max
    turns = np.rint(made.quats[:, [1, 2, 3, 0]] * largest).astype(kind)
    sizes = np.rint(made.scales * (most if normalized else 20)).astype(numbers)
    alphas = np.rint(made.opacities * most).astype(numbers)
    places = np.rint(made.means * 8).astype("i1")
    builder = Builder()
    own = {
        "ROTATION": builder.accessor(turns, normalized=True),
        "SCALE": builder.accessor(sizes, normalized=normalized),
        "OPACITY": builder.accessor(alphas, normalized=True),
        "POSITION": builder.accessor(places),
    }
    builder.node(mesh=builder.mesh(builder.primitive(made, **own)))
    builder.json["extensionsRequired"] = ["KHR_mesh_quantization"]
    read = read_scene(builder.save(tmp_path / "scene.glb"))
    np.testing.assert_array_equal(read.means, places * np.float32([-1, -1, 1]))
    np.testing.assert_allclose(read.scales, sizes / (most if normalized else 1), rtol=1e-6)
    np.testing.assert_allclose(read.opacities, alphas / most, rtol=1e-6)
    expected = Cloud(read.means * (-1, -1, 1), turns[:, [3, 0, 1, 2]], read.scales, alphas / most, made.sh)
    assert_looks(read, expected, TURN)


def test_strides_offsets_and_sparse_values(tmp_path):
    made = cloud(count=20, degree=0)
    builder = Builder()
    rows = np.zeros(20, [("lead", "u1", 4), ("mean", "f4", 3), ("scale", "f4", 3), ("trail", "u1", 8)])
    rows["mean"], rows["scale"] = made.means, made.scales
    view = builder.view(bytes(12) + rows.tobytes(), byteStride=rows.dtype.itemsize)
    places = np.array([3, 7, 19], "u2")
    own = {
        "POSITION": builder.accessor(rows["mean"], bufferView=view, byteOffset=16),
        "SCALE": builder.accessor(rows["scale"], bufferView=view, byteOffset=28),
    }
    # Sparse values replace opacities that are 0 for want of a buffer view, and one rotation of a whole array.
    values = {"indices": {"bufferView": builder.view(bytes(2) + places.tobytes()), "byteOffset": 2}}
    values |= {"count": 3, "values": {"bufferView": builder.view(np.float32([0.5, 0.25, 1.0]).tobytes())}}
    values["indices"]["componentType"] = 5123
    own["OPACITY"] = builder.accessor(np.zeros(20, "f4"), sparse=values)
    turns = np.tile(np.float32([0, 0, 0, 1]), (20, 1))
    other = {"count": 1, "indices": {"bufferView": builder.view(b"\x05"), "componentType": 5121}}
    other["values"] = {"bufferView": builder.view(np.float32([1, 0, 0, 0]).tobytes())}
    own["ROTATION"] = builder.accessor(turns, bufferView=builder.view(turns.tobytes()), sparse=other)
    builder.node(mesh=builder.mesh(builder.primitive(made, **own)))
    read = read_scene(builder.save(tmp_path / "scene.glb"))
    made.opacities = np.zeros(20)
    made.opacities[places] = 0.5, 0.25, 1.0
    made.quats = np.tile([1.0, 0, 0, 0], (20, 1))
    made.quats[5] = 0, 1, 0, 0
    assert_looks(read, made, TURN)


def test_nodes_place_instances_and_primitives_of_several_degrees(tmp_path):
    first, second = cloud(count=15, degree=3, seed=1), cloud(count=10, degree=1, seed=2)
    builder = Builder()
    mesh = builder.mesh(builder.primitive(first), {"attributes": {}}, builder.primitive(second))
    turn = np.array([0.3, -0.5, 0.2, 0.7])
    inner = builder.node(root=False, mesh=mesh, scale=[1.5, 1.5, 1.5], translation=[1, 2, 3])
    matrix = np.eye(4)
    matrix[:3] = [[1, 0.2, 0, 4], [0, 2, 0.5, 5], [0.1, 0, 0.5, 6]]
    builder.node(rotation=(turn / np.linalg.norm(turn)).tolist(), children=[inner])
    builder.node(matrix=matrix.T.ravel().tolist(), mesh=mesh)
    read = read_scene(builder.save(tmp_path / "scene.glb"))
    assert (len(read), read.degree) == (50, 3)
    turned = np.eye(4)
    turned[:3, :3] = Rotation.from_quat(turn).as_matrix()
    scaled = np.diag([1.5, 1.5, 1.5, 1.0])
    scaled[:3, 3] = 1, 2, 3
    padded = Cloud(second.means, second.quats, second.scales, second.opacities, np.zeros((10, 16, 3)))
    padded.sh[:, :4] = second.sh
    parts = [(first, 0, 15), (padded, 15, 25)]
    for place, whole in ((0, turned @ scaled), (25, matrix)):
        for made, start, end in parts:
            assert_looks(read.reordered(np.arange(place + start, place + end)), made, TURN @ whole)


@pytest.mark.parametrize("wrap", ["raw", "gzip"])
def test_an_spz_stream_in_a_buffer_view(tmp_path, wrap):
    made = cloud(count=25, degree=2)
    content = spz_content(made, 2)
    builder = Builder()
    view = builder.view(content if wrap == "raw" else gzip.compress(content))
    empty = {"POSITION": {"componentType": 5126, "count": 25, "type": "VEC3"}}
    empty |= {f"{NAME}:OPACITY": {"componentType": 5126, "count": 25, "type": "SCALAR"}}
    builder.json["accessors"] = list(empty.values())
    name = "KHR_gaussian_splatting_compression_spz_2"
    extension = {"kernel": "ellipse", "colorSpace": "srgb_rec709_display", "extensions": {name: {"bufferView": view}}}
    primitive = {"mode": 0, "attributes": {key: k for k, key in enumerate(empty)}, "extensions": {NAME: extension}}
    builder.node(mesh=builder.mesh(primitive))
    builder.json["extensionsRequired"] = [NAME, name]
    read = read_scene(builder.save(tmp_path / "scene.glb"))
    (tmp_path / "scene.spz").write_bytes(content)
    # The stream's numbers are in glTF's axes here, but in right, up, back in a file of its own.
    alone = read_scene(tmp_path / "scene.spz")
    np.testing.assert_array_equal(read.means, alone.means * np.float32([-1, 1, -1]))
    np.testing.assert_array_equal(read.scales, alone.scales)
    turn = np.diag([-1.0, 1.0, -1.0])
    turned = turn @ covariances(alone.quats, alone.scales) @ turn
    np.testing.assert_allclose(covariances(read.quats, read.scales), turned, rtol=1e-4, atol=1e-8)
    builder.json["accessors"][0]["count"] = 24
    with pytest.raises(InvalidArgument, match=r"expected 25 elements of POSITION in meshes\[0\]\.primitives\[0\]"):
        read_scene(builder.save(tmp_path / "scene.glb"))


def test_buffers_in_the_text_and_beside_it(tmp_path):
    made = cloud(count=12, degree=1)
    builder = lone(made)
    builder.glb()
    uri = "data:application/octet-stream;base64," + base64.b64encode(builder.binary).decode()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "the data.bin").write_bytes(builder.binary + b"more")
    for place in (uri, "parts/the%20data.bin"):
        builder.json["buffers"] = [{"byteLength": len(builder.binary), "uri": place}]
        (tmp_path / "scene.gltf").write_text(json.dumps(builder.json))
        assert_looks(read_scene(tmp_path / "scene.gltf"), made, TURN)


@pytest.mark.parametrize(
    "uri", ["../outside.bin", "/etc/passwd", "http://localhost/a.bin", "file:///etc/passwd", "link.bin", "a\0b", "."]
)
def test_buffers_elsewhere_are_not_opened(tmp_path, uri):
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(10_000))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    builder = lone(cloud(count=12, degree=1))
    builder.glb()
    builder.json["buffers"] = [{"byteLength": 1, "uri": uri}]
    (folder / "scene.gltf").write_text(json.dumps(builder.json))
    with pytest.raises(
        InvalidArgument, match=r"scene\.gltf: expected a file in the folder of this one in buffers\[0\]"
    ):
        read_scene(folder / "scene.gltf")


def test_linear_colors_are_kept_but_not_taken_for_displayed_ones(tmp_path):
    builder = lone(cloud(count=5, degree=0))
    builder.json["meshes"][0]["primitives"][0]["extensions"][NAME]["colorSpace"] = "lin_rec709_display"
    scene = read_scene(builder.save(tmp_path / "scene.glb"))
    assert scene.color_space == "lin_rec709_display"
    with pytest.raises(InvalidArgument, match=r"got lin_rec709_display: pictures of it are linear light"):
        load_gaussians(tmp_path / "scene.glb")
    save_scene(scene, tmp_path / "again.glb")
    assert read_scene(tmp_path / "again.glb").color_space == "lin_rec709_display"
    with pytest.raises(InvalidArgument, match=r"got lin_rec709_display, which only \.glb, \.gltf and USD can say"):
        save_scene(scene, tmp_path / "again.ply")


def test_linear_colors_are_not_rendered_at_the_shell(tmp_path):
    scene = StoredScene.of(gaussians_of(cloud(count=1, degree=0)), "one")
    save_scene(replace(scene, color_space="lin_rec709_display"), tmp_path / "scene.glb")
    done = lumigrad("render", "scene.glb", "-o", "out.png", folder=tmp_path)
    assert done.returncode == 1 and "pictures of it are linear light" in done.stderr


def primitive_of(builder: Builder) -> dict:
    return builder.json["meshes"][0]["primitives"][0]


def extension_of(builder: Builder) -> dict:
    return primitive_of(builder)["extensions"][NAME]


def renamed(builder: Builder, old: str, new: str) -> None:
    attributes = primitive_of(builder)["attributes"]
    attributes[new] = attributes.pop(f"{NAME}:{old}")


REFUSED = [
    (lambda b: extension_of(b).update(kernel="cone"), "expected ellipse as kernel .* got 'cone'"),
    (lambda b: extension_of(b).update(colorSpace="aces"), "as colorSpace .* got 'aces'"),
    (lambda b: extension_of(b).update(projection="fisheye"), "expected perspective as projection"),
    (lambda b: extension_of(b).update(sortingMethod="zDepth"), "expected cameraDistance as sortingMethod"),
    (lambda b: extension_of(b).update(extensions={"ACME_x": {}}), "expected no extension .* got ACME_x"),
    (lambda b: b.json.update(extensionsRequired=["ACME_mesh"]), "not require the extension 'ACME_mesh'"),
    (
        lambda b: primitive_of(b)["extensions"].update(KHR_spz_gaussian_splats_compression={}),
        "got KHR_spz_gaussian_splats_compression, a withdrawn draft",
    ),
    (lambda b: renamed(b, "SCALE", "_SCALE"), "got _SCALE of a draft"),
    (lambda b: primitive_of(b)["extensions"].update({NAME: {"shape": "ellipse"}}), "got 'shape' of a draft"),
    (
        lambda b: b.json["bufferViews"][0].update(extensions={"EXT_meshopt_compression": {}}),
        "without the extension EXT_meshopt_compression",
    ),
    (lambda b: renamed(b, "SH_DEGREE_1_COEF_2", f"{NAME}:SH_DEGREE_2_COEF_2"), "got no SH_DEGREE_1_COEF_2, SH_DEGREE"),
    (lambda b: primitive_of(b)["attributes"].update({f"{NAME}:SH_DEGREE_4_COEF_0": 0}), "degrees from 0 to at most 3"),
    (lambda b: primitive_of(b)["attributes"].pop(f"{NAME}:OPACITY"), "expected the attributes .*:OPACITY in"),
    (lambda b: primitive_of(b).update(mode=4), r"expected mode 0 \(points\)"),
    (lambda b: primitive_of(b).update(indices=0), r"expected mode 0 \(points\) without indices"),
    (lambda b: b.json["nodes"][0].update(scale=[1, -1, 1]), "neither mirror nor flatten"),
    (lambda b: b.json["nodes"][0].update(scale=[10**400, 1, 1]), "neither mirror nor flatten"),
    (lambda b: b.json["nodes"][0].update(children=[0]), "expected a tree of nodes"),
    (lambda b: b.json["nodes"][0].update(extensions={"EXT_mesh_gpu_instancing": {}}), "EXT_mesh_gpu_instancing"),
    (lambda b: primitive_of(b)["attributes"].update(POSITION=99), "expected an index below 8, the number of accessors"),
    (lambda b: b.json["accessors"][2].update(count=3), "expected 12 elements of SCALE .* as POSITION has, got 3"),
    (lambda b: b.json["accessors"][1].update(componentType=5123), "expected VEC4 of float, normalised int8"),
    (lambda b: b.json["bufferViews"][0].update(byteStride=8), "expected a byteStride of at least 12"),
    (lambda b: b.json["bufferViews"][0].update(byteLength=8), r"expected 144 bytes of elements"),
    (lambda b: b.json.update(asset={"version": "1.0"}), "expected glTF 2.0 in asset.version, got '1.0'"),
    (
        lambda b: b.json.update(meshes=[{"primitives": [{"attributes": {"POSITION": 0}}]}]),
        "Mesh.load and `lumigrad query` read triangles",
    ),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path, change, said):
    builder = lone(cloud(count=12, degree=1))
    change(builder)
    with pytest.raises(InvalidArgument, match=r"^path: .*scene\.glb: .*" + said):
        read_scene(builder.save(tmp_path / "scene.glb"))


def test_scales_of_the_draft_that_held_logarithms_are_refused(tmp_path):
    made = cloud(count=12, degree=0)
    made.scales = np.log(made.scales)
    with pytest.raises(InvalidArgument, match=r"expected scales >= 0 .* files of the draft of 2025 hold logarithms"):
        read_scene(lone(made).save(tmp_path / "scene.glb"))


def announced(builder: Builder) -> None:
    for accessor in builder.json["accessors"]:
        accessor["count"] = 1 << 40


def without_bytes(builder: Builder) -> None:
    for accessor in builder.json["accessors"]:
        accessor["count"] = 1 << 30
        del accessor["bufferView"]


def instances(builder: Builder) -> None:
    for accessor in builder.json["accessors"]:
        accessor["count"] = 100_000
        del accessor["bufferView"]
    builder.json["nodes"] = [{"mesh": 0}] * 10_000
    builder.json["scenes"][0]["nodes"] = list(range(10_000))


@pytest.mark.parametrize("bomb", [announced, without_bytes, instances])
def test_announced_sizes_are_checked_before_memory_is_taken(tmp_path, bomb):
    builder = lone(cloud(count=12, degree=1))
    bomb(builder)
    builder.save(tmp_path / "scene.glb")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match=r"scene\.glb: "):
            read_scene(tmp_path / "scene.glb")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_headers_that_do_not_fit_the_file(tmp_path):
    content = lone(cloud(count=12, degree=0)).glb()
    path = tmp_path / "scene.glb"
    for damaged, said in (
        (content[:-4], "expected [0-9,]+ bytes, as byte 8 says, but the file has"),
        (content[:4] + struct.pack("<I", 1) + content[8:], "expected a .glb file of version 2 at byte 4, got 1"),
        (content[:16] + b"\0\0\0\0" + content[20:], "expected a chunk of JSON at byte 12"),
        (content[:12] + struct.pack("<I", 1 << 31) + content[16:], "bytes of a chunk at byte 20"),
        (content.replace(b'"asset"', b'"asset '), "expected JSON: "),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InvalidArgument, match=r"scene\.glb: .*" + said):
            read_scene(path)
