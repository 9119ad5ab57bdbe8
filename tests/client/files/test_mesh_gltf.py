"""Meshes from GLB files as compressors, converters and modelling programs write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import InvalidArgument, Mesh
from support.gaussians.gltf_files import Builder

CORNERS = np.array([[0, 0, 0], [2, 0, 0], [0, 1, 0], [0, 0, 1]], np.float64)
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
VOLUME = 1 / 3


class Glb(Builder):
    """Builds a file with one mesh, and one node unless others are given."""

    def triangles(self, positions: np.ndarray = CORNERS, faces: np.ndarray | None = FACES, mode: int = 4) -> Any:
        made: dict[str, Any] = {"attributes": {"POSITION": self.accessor(positions.astype("<f4"))}}
        if faces is not None:
            made["indices"] = self.accessor(faces.ravel().astype("<u2"))
        return made if mode == 4 else {**made, "mode": mode}

    def loaded(self, path: Path, primitives: list[Any], nodes: list[Any] | None = None, **more: Any) -> Mesh:
        self.json |= {"meshes": [{"primitives": primitives}], "nodes": nodes or [{"mesh": 0}]}
        self.json |= {"scenes": [{"nodes": [0]}], "extensionsUsed": [], **more}
        return Mesh.load(self.save(path))


def volume_of(mesh: Mesh) -> float:
    a, b, c = mesh.vertices[mesh.faces].astype(np.float64).transpose(1, 0, 2)
    return float((a * np.cross(b, c)).sum() / 6)


@pytest.mark.parametrize("dtype", ["<i2", "<u2", "i1"])
@pytest.mark.parametrize("normalized", [True, False])
def test_quantized_positions_are_scaled(dtype: str, normalized: bool, tmp_path: Path) -> None:
    # gltfpack and glTF-Transform write integers, which the node scales and places.
    file, most = Glb(), np.iinfo(dtype).max
    stored = np.rint(CORNERS / 2 * most).astype(dtype)
    positions = file.accessor(stored, normalized=normalized)
    primitive = {**file.triangles(), "attributes": {"POSITION": positions}}
    scale = 2.0 if normalized else 2.0 / most
    required = {name: ["KHR_mesh_quantization"] for name in ("extensionsUsed", "extensionsRequired")}
    mesh = file.loaded(tmp_path / "part.glb", [primitive], [{"mesh": 0, "scale": [scale] * 3}], **required)
    np.testing.assert_allclose(mesh.vertices, CORNERS, atol=0.01)
    assert volume_of(mesh) == pytest.approx(VOLUME, rel=0.02)


@pytest.mark.parametrize("mode", [5, 6])
@pytest.mark.parametrize("indexed", [True, False])
def test_strips_and_fans_beside_triangles_are_read(mode: int, indexed: bool, tmp_path: Path) -> None:
    # A square, as a strip and as a fan, faces +z.
    order = {5: [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], 6: [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]}[mode]
    file = Glb()
    square = file.triangles(np.array(order, float), np.arange(4) if indexed else None, mode)
    mesh = file.loaded(tmp_path / "part.glb", [file.triangles(), square, file.triangles(mode=1)])
    assert len(mesh) == len(FACES) + 2
    a, b, c = mesh.vertices[mesh.faces[-2:]].transpose(1, 0, 2)
    np.testing.assert_array_equal(np.cross(b - a, c - a), [[0, 0, 1]] * 2)


def test_strided_and_unindexed_triangles_are_read(tmp_path: Path) -> None:
    file = Glb()
    corners = CORNERS[FACES.ravel()]
    strided = np.concatenate([corners, np.full((len(corners), 2), 7.0)], axis=1).astype("<f4")
    view = file.view(strided.tobytes(), byteStride=20)
    positions = file.accessor(strided[:, :3], bufferView=view)
    mesh = file.loaded(tmp_path / "part.glb", [{"attributes": {"POSITION": positions}}])
    assert volume_of(mesh) == pytest.approx(VOLUME)


def test_nodes_place_turn_and_mirror_meshes(tmp_path: Path) -> None:
    file = Glb()
    half = float(np.sqrt(0.5))
    nodes = [
        {"children": [1, 2], "translation": [10, 0, 0]},
        {"mesh": 0, "scale": [-1, 1, 1]},
        {"mesh": 0, "rotation": [0, 0, half, half], "translation": [0, 5, 0]},
    ]
    mesh = file.loaded(tmp_path / "part.glb", [file.triangles()], [*nodes, {"mesh": 0}])
    assert volume_of(mesh) == pytest.approx(2 * VOLUME, rel=1e-4)
    np.testing.assert_allclose(mesh.vertices[:4], CORNERS * [-1, 1, 1] + [10, 0, 0])
    turned = np.stack([-CORNERS[:, 1], CORNERS[:, 0], CORNERS[:, 2]], axis=1)
    np.testing.assert_allclose(mesh.vertices[4:], turned + np.array([10, 5, 0]), atol=1e-6)


@pytest.mark.parametrize("name", ["KHR_draco_mesh_compression", "EXT_meshopt_compression", "EXT_unheard_of"])
def test_required_extensions_that_change_the_shape_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"part\.glb: expected a file that does not require .*{name}"):
        file = Glb()
        file.loaded(tmp_path / "part.glb", [file.triangles()], extensionsUsed=[name], extensionsRequired=[name])


@pytest.mark.parametrize("accessor", [0, 1])
def test_numbers_that_only_an_extension_has_are_not_zeros(accessor: int, tmp_path: Path) -> None:
    file = Glb()
    made = file.triangles() | {"extensions": {"KHR_draco_mesh_compression": {"bufferView": 0}}}
    del file.json["accessors"][accessor]["bufferView"]
    said = rf"part\.glb: expected data in accessors\[{accessor}\].*KHR_draco_mesh_compression.*without compression"
    with pytest.raises(InvalidArgument, match=said):
        file.loaded(tmp_path / "part.glb", [made], extensionsUsed=["KHR_draco_mesh_compression"])


def test_instances_are_refused_and_not_drawn_once(tmp_path: Path) -> None:
    file = Glb()
    node = {"mesh": 0, "extensions": {"EXT_mesh_gpu_instancing": {"attributes": {"TRANSLATION": 0}}}}
    with pytest.raises(InvalidArgument, match=r"part\.glb: expected nodes\[0\] without EXT_mesh_gpu_instancing"):
        file.loaded(tmp_path / "part.glb", [file.triangles()], [node])


def test_hidden_nodes_and_their_children_are_left_out_and_said(tmp_path: Path) -> None:
    def visibility(visible: bool) -> dict[str, Any]:
        return {"extensions": {"KHR_node_visibility": {"visible": visible}}}

    names = {name: ["KHR_node_visibility"] for name in ("extensionsUsed", "extensionsRequired")}
    file, nodes = Glb(), [{"children": [1, 2, 3]}, {"mesh": 0}, {"mesh": 0, **visibility(True)}]
    hidden = [{"mesh": 0, "children": [4], **visibility(False)}, {"mesh": 0, **visibility(True)}]
    with pytest.warns(UserWarning, match=r"part\.glb: nodes that KHR_node_visibility hides are left out.*: 1$"):
        mesh = file.loaded(tmp_path / "part.glb", [file.triangles()], nodes + hidden, **names)
    assert volume_of(mesh) == pytest.approx(2 * VOLUME)
    file = Glb()
    with pytest.raises(InvalidArgument, match="nodes\\[0\\] KHR_node_visibility"):
        file.loaded(tmp_path / "part.glb", [file.triangles()], [{"mesh": 0, "extensions": {"KHR_node_visibility": 3}}])


def test_bones_and_morph_targets_are_said_to_be_ignored(tmp_path: Path) -> None:
    file = Glb()
    bent = {**file.triangles(), "targets": [{"POSITION": 0}]}
    with pytest.warns(UserWarning, match=r"part\.glb: the skin of nodes\[0\] is ignored"):
        file.loaded(tmp_path / "part.glb", [file.triangles()], [{"mesh": 0, "skin": 0}], skins=[{"joints": [0]}])
    with pytest.warns(UserWarning, match=r"part\.glb: the weights of nodes\[0\] are ignored"):
        file.loaded(tmp_path / "part.glb", [bent], [{"mesh": 0, "weights": [1.0]}])


def test_damage_is_named(tmp_path: Path) -> None:
    file = Glb()
    outside = file.triangles(faces=np.array([[0, 1, 9]]))
    with pytest.raises(InvalidArgument, match=r"part\.glb: expected indices below 4 in meshes\[0\]\.primitives\[0\]"):
        file.loaded(tmp_path / "part.glb", [outside])
    with pytest.raises(InvalidArgument, match=r"part\.glb: expected whole triangles in meshes\[0\]\.primitives\[0\]"):
        file.loaded(tmp_path / "part.glb", [file.triangles(faces=np.array([0, 1, 2, 3]))])
    with pytest.raises(InvalidArgument, match=r"part\.glb: expected triangles, got none"):
        file.loaded(tmp_path / "part.glb", [file.triangles(mode=1)])


def test_matrices_listed_row_after_row_are_refused(tmp_path: Path) -> None:
    file = Glb()
    matrix = np.eye(4)
    matrix[:3, 3] = 1, 2, 3
    mesh = file.loaded(tmp_path / "part.glb", [file.triangles()], [{"mesh": 0, "matrix": matrix.T.ravel().tolist()}])
    np.testing.assert_allclose(mesh.vertices, CORNERS + matrix[:3, 3])
    with pytest.raises(InvalidArgument, match=r"expected the last row 0 0 0 1 in nodes\[0\]\.matrix"):
        file.loaded(tmp_path / "part.glb", [file.triangles()], [{"mesh": 0, "matrix": matrix.ravel().tolist()}])
