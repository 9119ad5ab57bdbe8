"""Files of Gaussians that other programs write in unusual but clear ways, and what converting them costs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.datasets import Points
from lumigrad.client.formats import is_gaussian_scene, read_scene, save_gaussians, save_scene
from support.gaussians.clouds import cloud, gaussians_of
from support.gaussians.files import sog_files
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

COUNT = 300
HEAD = ("ply", "format binary_little_endian 1.0")
SAYS_NOT = "does not say that the scene was trained with antialiasing"
BASE = ("x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity")
ROTATION = ("rot_0", "rot_1", "rot_2", "rot_3")
FULL = (*BASE, "scale_0", "scale_1", "scale_2", *ROTATION)


def write(
    path: Path, names: Sequence[str], *, head: Sequence[str] = HEAD, end: str = "\n", kind: str = "float"
) -> np.ndarray:
    """Writes five rows of random numbers, the first byte of which is a line feed."""
    rows = np.random.default_rng(2).normal(size=(5, len(names))).astype("<f4" if kind == "float" else "<f8")
    content = b"\n" + rows.tobytes()[1:]
    lines = [*head, "element vertex 5", *(f"property {kind} {name}" for name in names), "end_header", ""]
    path.write_bytes(end.join(lines).encode() + content)
    return np.frombuffer(content, rows.dtype).reshape(rows.shape)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("before", [(), ("comment a tool", "obj_info about end_header")], ids=len)
def test_lines_of_a_header_may_end_and_begin_as_they_like(tmp_path: Path, end: str, before: tuple[str, ...]) -> None:
    head = ("ply", *before, "format binary_little_endian 1.0", "comment SplatRenderMode: mip")
    rows = write(tmp_path / "scene.ply", FULL, head=head, end=end)
    scene = read_scene(tmp_path / "scene.ply")
    np.testing.assert_array_equal(scene.means, rows[:, :3])
    assert scene.antialiased


@pytest.mark.parametrize("head", [("ply",), ("ply", "comment a"), ("ply", "comment a", "format text 1.0")], ids=str)
def test_a_header_without_a_format_is_refused(tmp_path: Path, head: tuple[str, ...]) -> None:
    write(tmp_path / "scene.ply", FULL, head=head)
    with pytest.raises(InvalidArgument, match=r'expected a line "format …" after "ply", one of ascii, binary_'):
        read_scene(tmp_path / "scene.ply")


@pytest.mark.parametrize("rotation", [(), ROTATION], ids=len)
def test_one_scale_is_that_of_all_axes(tmp_path: Path, rotation: tuple[str, ...]) -> None:
    rows = write(tmp_path / "round.ply", (*BASE, "scale_0", *rotation))
    scene = Gaussians.load(tmp_path / "round.ply")
    assert scene.scales is not None and scene.quats is not None and not scene.is_flat
    np.testing.assert_allclose(scene.scales, np.exp(rows[:, 7:8]).repeat(3, axis=1), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(scene.quats, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ((*BASE, "scale_0", "scale_1", "scale_2"), "rot_0, rot_1, rot_2, rot_3"),
        ((*BASE, "scale_0", "scale_1"), "rot_0, rot_1, rot_2, rot_3"),
        ((*BASE, "scale_0", "scale_2", *ROTATION), "scale_1"),
        ((*BASE, "scale_0", "rot_0"), "rot_1, rot_2, rot_3"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(tmp_path: Path, names: tuple[str, ...], missing: str) -> None:
    write(tmp_path / "scene.ply", names)
    with pytest.raises(InvalidArgument, match=f"expected the vertex properties {missing} as well"):
        Gaussians.load(tmp_path / "scene.ply")
    # The file is not taken for a point cloud either.
    assert "as well" in lumigrad("info", "scene.ply", folder=tmp_path).stderr


def test_properties_that_change_gaussians_are_not_ignored_without_a_word(tmp_path: Path) -> None:
    write(tmp_path / "filtered.ply", [*FULL, "nx", "f_rest_0", "filter_3D", *(f"f_rest_{k}" for k in range(1, 9))])
    with pytest.warns(UserWarning, match=r"filtered.ply: properties of Gaussians that are ignored: filter_3D$") as told:
        Gaussians.load(tmp_path / "filtered.ply")
    assert told[0].filename == __file__
    done = lumigrad("convert", str(tmp_path / "filtered.ply"), str(tmp_path / "scene.splat"))
    assert done.stderr.count("filter_3D") == 1


TAILS = {
    "rows": lambda content: content.replace(b"element vertex 5", b"element vertex 3"),
    "types": lambda content: content.replace(b"property double", b"property float"),
    "line ends": lambda content: content.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("name", TAILS)
def test_content_behind_what_a_header_counts_is_not_left_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / "scene.ply"
    write(path, FULL, kind="double" if name == "types" else "float")
    path.write_bytes(TAILS[name](path.read_bytes()))
    with pytest.raises(InvalidArgument, match=r"scene\.ply: expected the end of the file behind \d vertex, as its"):
        read_scene(path)


def test_rows_of_text_behind_what_a_header_counts_are_not_left_out(tmp_path: Path) -> None:
    lines = ["ply", "format ascii 1.0", "element vertex 1", *(f"property float {name}" for name in "xyz"), "end_header"]
    (tmp_path / "points.ply").write_text("\n".join([*lines, "1 2 3", "4 5 6", ""]))
    with pytest.raises(InvalidArgument, match=r"points\.ply: expected the end of the file behind 1 vertex, as its"):
        Points.load(tmp_path / "points.ply")


@pytest.mark.parametrize("padding", [b"\n", b"\r\n\x1a", b"\0" * 512], ids=len)
def test_padding_behind_a_scene_is_left_out(tmp_path: Path, padding: bytes) -> None:
    rows = write(tmp_path / "scene.ply", FULL)
    with (tmp_path / "scene.ply").open("ab") as file:
        file.write(padding)
    np.testing.assert_array_equal(read_scene(tmp_path / "scene.ply").means, rows[:, :3])


def test_colours_may_stand_for_their_coefficients(tmp_path: Path) -> None:
    made = cloud(count=20, degree=0, seed=4)
    levels = np.random.default_rng(4).integers(0, 256, (20, 3), dtype=np.uint8)
    names = (*"xyz", "red", "green", "blue", "opacity", "scale_0", "scale_1", "scale_2", *ROTATION)
    logits = np.log(made.opacities / (1 - made.opacities))
    columns = [*made.means.T, *levels.T, logits, *np.log(made.scales).T, *made.quats.T]
    table = np.empty(20, [(name, "u1" if name in ("red", "green", "blue") else "<f4") for name in names])
    for name, column in zip(names, columns, strict=True):
        table[name] = column
    kinds = [f"property {'uchar' if table.dtype[name] == np.uint8 else 'float'} {name}" for name in names]
    header = "\n".join([*HEAD, "element vertex 20", *kinds, "end_header", ""])
    (tmp_path / "scene.ply").write_bytes(header.encode() + table.tobytes())
    assert is_gaussian_scene(tmp_path / "scene.ply")
    read = read_scene(tmp_path / "scene.ply")
    np.testing.assert_allclose(0.5 + 0.28209479 * read.sh[:, 0], levels / 255, atol=1e-6)
    np.testing.assert_allclose(read.opacities, made.opacities, atol=1e-6)
    np.testing.assert_allclose(read.scales, made.scales, rtol=1e-5)


def test_gaussians_without_colours_are_not_taken_for_spheres(tmp_path: Path) -> None:
    write(tmp_path / "anchors.ply", (*"xyz", "f_anchor_feat_0", "opacity", "scale_0", "scale_1", "scale_2", *ROTATION))
    with pytest.raises(InvalidArgument, match=r"expected Gaussians \(vertex properties f_dc_0"):
        read_scene(tmp_path / "anchors.ply")
    done = lumigrad("info", "anchors.ply", folder=tmp_path)
    assert done.returncode == 1 and "expected Gaussians (vertex properties f_dc_0" in done.stderr


def test_scales_and_opacities_that_are_not_logarithms_and_logits_are_told(tmp_path: Path) -> None:
    names = (*"xyz", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1", "scale_2", *ROTATION)
    rows = np.random.default_rng(5).uniform(0.01, 0.9, (50, len(names))).astype("<f4")
    lines = [*HEAD, "element vertex 50", *(f"property float {name}" for name in names), "end_header", ""]
    (tmp_path / "scene.ply").write_bytes("\n".join(lines).encode() + rows.tobytes())
    with pytest.warns(UserWarning, match=r"scene\.ply: scale_0 to scale_2 are all above 0, and opacity from 0 to 1"):
        read_scene(tmp_path / "scene.ply")
    rows[:, 7:10] = np.log(rows[:, 7:10])
    (tmp_path / "scene.ply").write_bytes("\n".join(lines).encode() + rows.tobytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_scene(tmp_path / "scene.ply")


def test_the_folder_of_a_scene_is_named_from_inside(tmp_path: Path, worker_process: WorkerProcess) -> None:
    folder = tmp_path / "garden"
    (folder / "below").mkdir(parents=True)
    for name, content in sog_files(cloud(degree=1)).items():
        (folder / name).write_bytes(content)
    (tmp_path / "garden.view.json").write_text(
        '{"eye": [0, 0, -9], "target": [0, 0, 0], "up": [0, -1, 0], "fov_degrees": 40}'
    )
    for within, path in ((folder, "."), (folder / "below", ".."), (tmp_path, "garden"), (tmp_path, "garden/")):
        done = lumigrad("convert", path, "scene.ply", folder=within)
        assert done.returncode == 0 and len(Gaussians.load(within / "scene.ply")) == COUNT, done.stderr
        assert (within / "scene.view.json").read_bytes() == b'{"eye": [0.0, 0.0, -9.0], "target": [0.0, 0.0, 0.0], ' \
            b'"up": [0.0, -1.0, 0.0], "fov_degrees": 40.0}\n'  # fmt: skip
        (within / "scene.ply").unlink()
    options = ("--size", "32x24", "--target", worker_process.target)
    done = lumigrad("render", ".", "-o", str(tmp_path / "out.png"), *options, folder=folder)
    assert done.returncode == 0, done.stderr


def test_converting_says_what_the_format_loses(tmp_path: Path) -> None:
    save_gaussians(gaussians_of(cloud(degree=2)), tmp_path / "scene.ply", antialiased=True)
    expected = {
        "again.ply": "",
        "scene.spz": "rounds everything, harmonics to 5 and 4 bits",
        "scene.glb": f"{SAYS_NOT}; is drawn by distance to the camera, "
        "not by depth along the view direction, so pictures differ",
        "scene.splat": "rounds base colours, opacities and rotations to 8 bits; cuts harmonics from degree 2 to 0; "
        f"{SAYS_NOT}",
    }
    for name, lost in expected.items():
        done = lumigrad("convert", "scene.ply", name, folder=tmp_path)
        assert done.returncode == 0 and done.stdout.startswith(f"{name}: {COUNT} Gaussians, ")
        assert done.stderr == (f"lumigrad: {name} {lost}\n" if lost else "")
    # Harmonics that the user chose to cut are not reported as lost.
    done = lumigrad("convert", "scene.ply", "cut.ply", "--sh-degree", "1", folder=tmp_path)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize("suffix", [".sog", ".compressed.ply", ".ksplat", ".glb"])
def test_the_advice_for_degree_4_can_be_followed(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("PIL")
    save_gaussians(gaussians_of(cloud(degree=4)), tmp_path / "scene.ply")
    scene, output = str(tmp_path / "scene.ply"), str(tmp_path / f"other{suffix}")
    with pytest.raises(InvalidArgument) as refused:
        save_scene(read_scene(scene), output)
    command, code = str(refused.value).split("lumigrad convert ")[1].split(", or in Python ")
    done = lumigrad("convert", *(part.replace("SCENE", scene).replace("OUTPUT", output) for part in command.split()))
    assert done.returncode == 0 and read_scene(output).degree == 3, done.stderr
    Path(output).unlink()
    module, call = code.rsplit(".save_scene", 1)
    assert module == "lumigrad.client.formats"
    names = {"read_scene": read_scene, "save_scene": save_scene, "SCENE": scene, "OUTPUT": output}
    eval(f"save_scene{call}", names)
    assert read_scene(output).degree == 3
