"""Coordinates so far from 0 that float32 is too coarse for them cause a warning."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad import client as api
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.formats import read_scene
from lumigrad.client.pictures import write_image
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

UTM = np.array([500_123.4, 4_649_776.2, 105.0])
GENERATOR = np.random.default_rng(5)
PLACES = GENERATOR.uniform(-1, 1, (200, 3))
SPLAT = ["opacity", *(f"{name}_{k}" for name, count in (("f_dc", 3), ("scale", 3), ("rot", 4)) for k in range(count))]
FACES = [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]
TETRAHEDRON = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]])


def gaussians(places: np.ndarray, size: float = 0.02) -> api.Gaussians:
    count = len(places)
    quats = np.tile([1.0, 0, 0, 0], (count, 1))
    return api.Gaussians(places, quats, np.full((count, 3), size), np.full(count, 0.5), colors=np.zeros((count, 3)))


MAKERS: dict[str, Callable[[np.ndarray], Any]] = {
    "means": lambda offset: gaussians(PLACES + offset),
    "positions": lambda offset: api.Spheres(PLACES + offset, np.zeros((200, 3)), np.full(200, 0.02)),
    "vertices": lambda offset: api.Mesh(TETRAHEDRON + offset, FACES),
    "vertices of 'part'": lambda offset: api.Mesh((TETRAHEDRON + offset).astype(np.float32), FACES, "part"),
    "pose of 'box'": lambda offset: api.Obstacle(api.Cuboid((1, 1, 1)), pose=offset, name="box"),
    "pose": lambda offset: api.World([api.Obstacle(api.Mesh(TETRAHEDRON, FACES), pose=offset)]),
    "views": lambda offset: capture().moved(offset),
}


def capture() -> Capture:
    views = [View(f"v{k}", api.Camera.orbit((0, 0, 0), 3, 40 * k, 10, width=8, height=8)) for k in range(8)]
    return Capture(tuple(views), Points(PLACES, np.zeros((200, 3))))


@pytest.mark.parametrize("name", MAKERS)
def test_the_argument_the_step_and_the_remedy_are_named(name: str) -> None:
    with pytest.warns(api.PrecisionWarning) as told:
        MAKERS[name](UTM)
    (text,) = [str(each.message) for each in told]
    assert re.match(rf"{re.escape(name)}: at coordinates of 4\.65e\+06 float32 has steps of 0\.5, coarse for ", text)
    offset = re.search(r"\((-?[\d.]+), (-?[\d.]+), (-?[\d.]+)\)", text)
    assert offset is not None and np.abs(np.abs(np.array(offset.groups(), float)) - UTM).max() < 3
    assert len(text) < 500 and told[0].filename == __file__


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("offset", [0.0, 5.0, 60.0], ids=str)
def test_near_0_nothing_is_said(name: str, offset: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", api.PrecisionWarning)
        MAKERS[name](np.full(3, offset))


def test_wide_scenes_of_fine_parts_are_told_apart_from_those_of_coarse_ones() -> None:
    wide = 2000 * PLACES + UTM
    with pytest.warns(api.PrecisionWarning, match=r"steps of 0\.5, coarse for an extent of .* with parts of 0\.02"):
        gaussians(wide)
    with warnings.catch_warnings():
        warnings.simplefilter("error", api.PrecisionWarning)
        gaussians(wide, size=40.0)


def test_strays_neither_hide_a_far_scene_nor_make_a_near_one_far() -> None:
    with pytest.warns(api.PrecisionWarning):
        gaussians(np.concatenate([PLACES + UTM, [[0, 0, 0]]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", api.PrecisionWarning)
        gaussians(np.concatenate([PLACES, [UTM]]))
        gaussians(PLACES[:1])
        gaussians(PLACES[:0])


def test_spheres_of_a_query_are_measured_by_their_radii(client: api.Client) -> None:
    world = api.World([api.Obstacle(api.Cuboid((1, 1, 1)))])
    spheres = np.concatenate([PLACES, np.full((200, 1), 0.05)], axis=1)
    far = spheres + np.append(UTM, 0)
    with pytest.warns(api.PrecisionWarning, match=r"spheres: .*steps of 0\.5, coarse for a size of 0\.1;"):
        client.query(world, far)
    with pytest.warns(api.PrecisionWarning, match="spheres: .*steps of 0.5, coarse for an extent of 2"):
        client.query(world, far[:, :3])
    with warnings.catch_warnings():
        warnings.simplefilter("error", api.PrecisionWarning)
        client.query(world, spheres)
        client.query(world, spheres[:, :3])


def test_operators_and_drop_ins_are_told_too(client: api.Client) -> None:
    torch = pytest.importorskip("torch")
    from lumigrad.client.torch import mesh_distance

    world = api.World([api.Obstacle(api.Cuboid((1, 1, 1)), name="box")])
    near = torch.zeros(1, 1, 3, 4) + 0.05
    with pytest.warns(api.PrecisionWarning, match=r"spheres: .*steps of 0\.5") as told:
        mesh_distance(near + torch.tensor([*UTM, 0.0]), world, client=client)
    assert len(told) == 1
    with pytest.warns(api.PrecisionWarning, match=r"poses: of 'box': .*steps of 0\.5, coarse for a size of 1;"):
        mesh_distance(near, world, poses=torch.tensor([[*UTM, 1, 0, 0, 0.0]]), client=client)
    with pytest.warns(api.PrecisionWarning, match=r"pose: .*steps of 0\.5"):
        client.field(world, UTM, size=(1, 1, 1), voxel_size=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", api.PrecisionWarning)
        mesh_distance(near, world, poses=torch.tensor([[0, 0, 1, 1, 0, 0, 0.0]]), client=client)


def test_what_a_worker_sends_back_is_not_warned_of_again(client: api.Client) -> None:
    with pytest.warns(api.PrecisionWarning):
        handle = client.put(gaussians(PLACES + UTM))
    with warnings.catch_warnings():
        warnings.simplefilter("error", api.PrecisionWarning)
        assert len(client.get(handle.scene_id).scene or []) in (0, 200)


def write_doubles(path: Path, places: np.ndarray, *, is_splat: bool = True) -> None:
    """Writes a PLY file of doubles as text, like surveying tools."""
    names = [*"xyz", *(SPLAT if is_splat else [])]
    head = ["ply", "format ascii 1.0", f"element vertex {len(places)}", *(f"property double {name}" for name in names)]
    rest = "2 0 0 0 -4 -4 -4 1 0 0 0" if is_splat else ""
    rows = [" ".join(f"{value:.9f}" for value in place) + f" {rest}" for place in places]
    path.write_text("\n".join([*head, "end_header", *rows, ""]))


def test_updates_are_warned_of_once(client: api.Client) -> None:
    for name, near, far in (
        ("means", gaussians(PLACES), gaussians(PLACES).means + UTM),
        ("positions", MAKERS["positions"](np.zeros(3)), PLACES + UTM),
        ("vertices", api.Mesh(TETRAHEDRON, FACES), TETRAHEDRON + UTM),
    ):
        handle = client.put(near)
        with pytest.warns(api.PrecisionWarning) as told:
            updated = client.update(handle, **{name: far})
        assert [str(each.message).partition(":")[0] for each in told] == [name]
        assert told[0].filename == __file__
        np.testing.assert_array_equal(getattr(updated.scene, name), far.astype(np.float32))
        client.delete(updated)


def test_files_of_doubles_say_what_is_lost(tmp_path: Path) -> None:
    for name, is_splat in (("scene.ply", True), ("points.ply", False)):
        path = tmp_path / name
        write_doubles(path, PLACES + UTM, is_splat=is_splat)
        with pytest.warns(api.PrecisionWarning, match=r"steps of 0\.5") as told:
            api.Gaussians.load(path) if is_splat else api.Spheres.load(path)
        assert len(told) == 1 and str(told[0].message).startswith(f"{path}: ")
        # Points of captures keep their precision.
        np.testing.assert_allclose(Points.load(path).positions, PLACES + UTM, atol=1e-8)
    with pytest.warns(api.PrecisionWarning):
        read_scene(tmp_path / "scene.ply")


def test_points_that_were_rounded_by_others_are_told_of(tmp_path: Path) -> None:
    write_doubles(tmp_path / "points.ply", PLACES + UTM, is_splat=False)
    text = (tmp_path / "points.ply").read_text()
    (tmp_path / "points.ply").write_text(text.replace("double", "float"))
    with pytest.warns(api.PrecisionWarning, match=r"points\.ply: .*steps of 0\.5"):
        Points.load(tmp_path / "points.ply")


def test_nodes_of_gltf_are_composed_in_double_and_told_of(tmp_path: Path) -> None:
    gaussians(PLACES).save(tmp_path / "scene.gltf")
    values = json.loads((tmp_path / "scene.gltf").read_text())
    # Axes of glTF: left, up, forward. Two nodes whose translations nearly cancel.
    values["nodes"] = [
        {"children": [1], "translation": [-4.0e6, 5.0e6, 3.0e6]},
        {"mesh": 0, "translation": [4.0e6 + 0.125, -5.0e6 + 0.25, -3.0e6 + 0.5]},
    ]
    (tmp_path / "scene.gltf").write_text(json.dumps(values))
    with warnings.catch_warnings():
        warnings.simplefilter("error", api.PrecisionWarning)
        near = api.Gaussians.load(tmp_path / "scene.gltf")
    np.testing.assert_allclose(near.means, PLACES + np.array([-0.125, -0.25, 0.5]), atol=3e-7)
    values["nodes"][1]["translation"] = [0, 0, 0]
    (tmp_path / "scene.gltf").write_text(json.dumps(values))
    with pytest.warns(api.PrecisionWarning, match="scene.gltf: at coordinates of 5e"):
        api.Gaussians.load(tmp_path / "scene.gltf")


def test_captures_are_written_and_moved_without_loss(tmp_path: Path) -> None:
    with pytest.warns(api.PrecisionWarning, match=r"capture.moved\(\("):
        far = capture().moved(UTM)
    for form in ("nerfstudio", "colmap"):
        far.save(tmp_path / form, form=form)
        with pytest.warns(api.PrecisionWarning, match="views: "):
            again = Capture.load(tmp_path / form)
        assert again.points is not None
        np.testing.assert_allclose(again.points.positions, PLACES + UTM, atol=1e-8)
        back = again.moved(-UTM)
        for before, after in zip(capture().views, back.views, strict=True):
            np.testing.assert_allclose(after.camera.view_matrix, before.camera.view_matrix, atol=1e-7)
    # Files near 0 have single precision, which all programs read.
    capture().save(tmp_path / "near")
    assert b"property float x" in (tmp_path / "near" / "points.ply").read_bytes()


def test_commands_say_it_in_one_line(tmp_path: Path, worker_process: WorkerProcess) -> None:
    write_doubles(tmp_path / "scene.ply", PLACES + UTM)
    shown = lumigrad("info", "scene.ply", folder=tmp_path)
    assert "\nprecision     at coordinates of 4.65e+06 float32 has steps of 0.5, coarse for" in shown.stdout
    assert "loses nothing" not in shown.stdout and not shown.stderr
    as_json = json.loads(lumigrad("info", "scene.ply", "--json", folder=tmp_path).stdout)
    assert as_json["would_lose"][".ply"] == ["keeps positions in float32, which is coarse so far from 0"]
    done = lumigrad("convert", "scene.ply", "scene.glb", folder=tmp_path)
    (line,) = [line for line in done.stderr.splitlines() if "steps of 0.5" in line]
    assert done.returncode == 0 and line.startswith("lumigrad: scene.ply: at coordinates of 4.65e+06 float32")
    api.Mesh(TETRAHEDRON, FACES).save(tmp_path / "part.stl")
    target = ("--target", worker_process.target)
    np.savetxt(tmp_path / "spheres.csv", [[*UTM, 0.1]], delimiter=",")
    pose = ",".join(map(str, UTM))
    done = lumigrad("query", "part.stl", "--pose", pose, "--spheres", "spheres.csv", *target, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[:2] for line in done.stderr.splitlines()] == [
        ["lumigrad", " --pose"],
        ["lumigrad", " --spheres"],
    ]


PICTURE = GENERATOR.random((12, 16, 3)) ** 2


@pytest.mark.parametrize("largest", [255, 65535])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_levels_are_not_trained_with_as_colours_without_a_word(largest: int, kind: type) -> None:
    levels = (largest * PICTURE).astype(kind)
    with pytest.warns(UserWarning, match="^color: expected colours with 1 for white, .* as uint8, or divide") as told:
        api.TargetImage(levels)
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="^colors: expected colours with 1 for white"):
        Points(PLACES[:16], levels[0])


@pytest.mark.parametrize(("largest", "kind"), [(255, np.int64), (255, np.uint16), (100, np.int8), (65535, np.uint16)])
def test_integers_whose_largest_level_is_unknown_are_refused(tmp_path: Path, largest: int, kind: type) -> None:
    levels = (largest * PICTURE).astype(kind)
    got = f"got {levels.dtype} of {levels.min()} to {levels.max()}; pass levels of 8 bits with .astype(np.uint8), "
    for name, take in (
        ("color", lambda: api.TargetImage(levels)),
        ("mask", lambda: api.TargetImage(mask=levels[..., 0])),
        ("picture", lambda: write_image(tmp_path / "a.png", levels)),
    ):
        with pytest.raises(
            api.InvalidArgument, match=f"^{name}: expected levels of 0 to 255 as uint8, .* got {levels.dtype}"
        ):
            take()
    with pytest.raises(api.InvalidArgument) as refused:
        api.TargetImage(levels)
    assert got in str(refused.value)


def test_masks_are_weights_of_0_to_1_or_levels_of_0_to_255() -> None:
    flags = PICTURE[..., 0] > 0.3
    for kind in (bool, np.int64, np.float32, np.uint16):
        np.testing.assert_array_equal(api.TargetImage(mask=flags.astype(kind)).mask, flags)
    for wrong in (255.0 * flags, flags - 2.0, np.where(flags, 1, np.nan)):
        with pytest.raises(api.InvalidArgument, match=r"^mask: expected weights of 0 to 1, got .* as uint8"):
            api.TargetImage(mask=wrong)
    # Filters round to a little more than 1.
    api.TargetImage(mask=np.nextafter(flags.astype(np.float32), np.float32(2)))
    with pytest.raises(api.InvalidArgument, match=r"^mask: expected weights of 0 to 1, got -0\.02 to 1\.02; .* clip"):
        api.TargetImage(mask=np.where(flags, 1.02, -0.02))
    with pytest.warns(UserWarning, match=r"^mask: expected levels of 0 to 255, got uint8 of at most 1, .* as bool"):
        api.TargetImage(mask=flags.astype(np.uint8))


@pytest.mark.filterwarnings("error")
def test_bright_lights_are_colours() -> None:
    for exposure in (0.1, 1.0, 1.5, 8.0):
        picture = exposure * PICTURE
        picture[3, 4] = 5000
        api.TargetImage(picture)
    api.TargetImage((255 * PICTURE).astype(np.uint8), mask=np.ones((12, 16)))
    api.TargetImage(mask=np.zeros((12, 16), np.uint8))
    api.TargetImage(depth=1000 * PICTURE[..., 0])


def test_levels_as_colours_are_told(tmp_path: Path) -> None:
    levels, rest = np.full((4, 3), 255, np.uint8), (np.ones((4, 4)), np.ones((4, 3)), np.ones(4))
    makers: list[Callable[[Any], Any]] = [
        lambda colors: api.Spheres(np.zeros((4, 3)), colors, np.ones(4)),
        lambda colors: api.Gaussians(np.zeros((4, 3)), *rest, colors=colors),
        lambda colors: api.Gaussians(np.zeros((4, 3)), *rest, colors=colors[None]),
    ]
    for maker in makers:
        for kind in (np.uint8, np.int64):
            said = f"^colors: .* got {np.dtype(kind)}, whose values are used as they are; divide"
            with pytest.warns(UserWarning, match=said) as told:
                maker(levels.astype(kind))
            assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            maker(levels / np.float32(255))
            maker(np.eye(4, 3, dtype=np.uint8))
    cloud = tmp_path / "mean.ply"
    properties = "".join(f"property float {name}\n" for name in ("x", "y", "z", "red", "green", "blue"))
    rows = "0 0 0 254.5 0 0\n1 0 0 0 128.2 64\n"
    cloud.write_text(f"ply\nformat ascii 1.0\nelement vertex 2\n{properties}end_header\n{rows}")
    with pytest.warns(UserWarning, match="mean.ply: colors: expected colours with 1 for white, got many beyond 16"):
        api.Spheres.load(cloud)
    assert lumigrad("info", str(cloud)).stderr.count("got many beyond 16") == 1
