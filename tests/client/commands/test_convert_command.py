"""`lumigrad convert` writes the content of one format in another."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client.formats import load_gaussians, read_scene, save_gaussians
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.formats.gltf import write_glb
from lumigrad.client.formats.splat import write_splat
from support.gaussians.clouds import Cloud, assert_close, cloud, gaussians_of
from support.gaussians.files import sog_files
from support.workers.forks import lumigrad


@pytest.fixture
def made() -> Cloud:
    return cloud(degree=2)


def convert(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return lumigrad("convert", *arguments, folder=folder)


def save(made: Cloud, path: Path) -> Path:
    save_gaussians(gaussians_of(made), path)
    return path


def test_there_and_back_through_every_format(tmp_path: Path, made: Cloud) -> None:
    save_gaussians(gaussians_of(made), tmp_path / "scene.ply", antialiased=True)
    for source, output in (("scene.ply", "scene.spz"), ("scene.spz", "again.ply"), ("again.ply", "scene.splat")):
        done = convert(source, output, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        count, size = len(load_gaussians(tmp_path / output)), (tmp_path / output).stat().st_size
        assert done.stdout == f"{output}: {count:,} Gaussians, {size:,} bytes\n"
        assert count == len(gaussians_of(made))
    assert_close(
        load_gaussians(tmp_path / "again.ply"), made, means=1e-3, scales=0.06, opacity=0.011, sh=0.07, angle=0.03
    )
    assert read_scene(tmp_path / "again.ply").antialiased
    splat = "rounds base colours, opacities and rotations to 8 bits; cuts harmonics from degree 2 to 0"
    assert done.stderr.startswith(f"lumigrad: scene.splat {splat}"), done.stderr
    # The numbers of a .gltf are in a file beside it.
    done = convert("scene.ply", "apart.gltf", folder=tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.glob("apart.*"))
    assert done.stdout == f"apart.gltf: {len(gaussians_of(made)):,} Gaussians, {size:,} bytes\n"


def test_levels_of_detail_and_degrees_are_chosen(tmp_path: Path, made: Cloud) -> None:
    (tmp_path / "part").mkdir()
    for name, content in sog_files(made).items():
        (tmp_path / "part" / name).write_bytes(content)
    lods = {str(level): {"file": 0, "offset": 0, "count": 40 - 10 * level} for level in range(2)}
    box = {"min": [-9] * 3, "max": [9] * 3}
    meta = {"lodLevels": 2, "filenames": ["part/meta.json"], "tree": {"bound": box, "lods": lods}}
    (tmp_path / "lod-meta.json").write_text(json.dumps(meta))
    done = convert("lod-meta.json", "scene.glb", "--lod", "1", "--sh-degree", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    read = load_gaussians(tmp_path / "scene.glb")
    assert (len(read), read.sh_degree) == (30, 1)
    done = convert("scene.glb", "scene.usdc", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = convert("scene.glb", "again.ply", folder=tmp_path)
    order = "is drawn by depth along the view direction, not by distance to the camera, so pictures differ"
    assert (done.returncode, done.stderr) == (0, f"lumigrad: again.ply {order}\n")
    done = convert("scene.glb", "again.ply", "--lod", "1", folder=tmp_path)
    assert done.returncode == 2 and "--lod: expected a lod-meta.json with it" in done.stderr


def test_levels_say_what_they_lose(tmp_path: Path) -> None:
    flat = cloud(count=40, degree=4)
    flat.scales[:, 2] = 0
    save(flat, tmp_path / "flat.ply")
    save(cloud(count=40, degree=0), tmp_path / "plain.glb")
    said = {
        ("flat.ply",): "cuts harmonics from degree 4 to 3; makes surfels volumes, because it has no scale of 0",
        ("flat.ply", "--sh-degree", "1"): "makes surfels volumes, because it has no scale of 0",
        ("plain.glb",): "is drawn by depth along the view direction, not by distance to the camera, so pictures differ",
    }
    rounded, order = "rounds everything, and harmonics to at most 65,536 different sets", "changes the order of the"
    for (name, *options), lost in said.items():
        done = convert(name, "city", "--levels", *options, folder=tmp_path)
        told = done.stderr.splitlines()[-1]
        assert told == f"lumigrad: city {rounded}; {lost}; {order} Gaussians", done.stderr


def test_a_scene_that_is_replaced_is_named(tmp_path: Path, made: Cloud) -> None:
    save(made, tmp_path / "scene.ply")
    for output, *options in (("out.glb",), ("city", "--levels")):
        told = [convert("scene.ply", output, *options, folder=tmp_path).stderr for _ in range(2)]
        assert f"lumigrad: replaced {output}\n" in told[1]
        assert ": replaced " not in told[0]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    # Neither a refused folder nor a device is replaced.
    done = convert("scene.ply", "other", "--levels", folder=tmp_path)
    assert done.returncode == 1 and ": replaced " not in done.stderr
    (tmp_path / "null.ply").symlink_to("/dev/null")
    assert convert("scene.ply", "null.ply", folder=tmp_path).stderr == ""
    told = [lumigrad("sample", "city", "city.ply", "--count", "100", folder=tmp_path).stderr for _ in range(2)]
    assert told[1] == f"{told[0]}lumigrad: replaced city.ply\n"


@pytest.mark.parametrize("rows", ["property uchar red\n", "element face 1\nproperty list uchar int vertex_indices\n"])
def test_points_and_triangles_are_not_replaced(tmp_path: Path, made: Cloud, rows: str) -> None:
    """A capture needs its points for the next fit, and a link to them is followed."""
    save(made, tmp_path / "scene.ply")
    other = f"ply\nformat ascii 1.0\nelement vertex 0\nproperty float x\n{rows}end_header\n"
    (tmp_path / "points3D.ply").write_text(other)
    (tmp_path / "link.ply").symlink_to("points3D.ply")
    for output in ("points3D.ply", "link.ply"):
        done = convert("scene.ply", output, folder=tmp_path)
        assert done.returncode == 1, done.stderr
        assert f"expected a new file or a scene to replace, got {output}, which has points or triangles" in done.stderr
    assert lumigrad("sample", "city", "points3D.ply", "--count", "100", folder=tmp_path).returncode == 1
    assert (tmp_path / "points3D.ply").read_text() == other


def test_degrees_that_a_format_lacks_are_refused_with_what_to_do(tmp_path: Path) -> None:
    save_gaussians(gaussians_of(cloud(count=4, degree=4)), tmp_path / "scene.ply")
    done = convert("scene.ply", "scene.glb", folder=tmp_path)
    assert done.returncode == 1 and "lumigrad convert SCENE OUTPUT --sh-degree 3" in done.stderr
    assert convert("scene.ply", "scene.glb", "--sh-degree", "3", folder=tmp_path).returncode == 0


def test_info_says_what_a_file_holds_and_what_formats_would_lose(tmp_path: Path, made: Cloud) -> None:
    save_gaussians(gaussians_of(made), tmp_path / "scene.glb")
    done = lumigrad("info", "scene.glb", "--json", folder=tmp_path)
    values = json.loads(done.stdout)
    assert (values["count"], values["sh_degree"], values["color_space"]) == (len(made), 2, "srgb_rec709_display")
    assert values["bytes"] == (tmp_path / "scene.glb").stat().st_size
    assert values["details"] == {"format": "glTF, KHR_gaussian_splatting", "sorting": "cameraDistance"}
    assert values["would_lose"][".usdc"] == [] and values["would_lose"][".splat"]
    done = lumigrad("info", "scene.glb", folder=tmp_path)
    size = f"{(tmp_path / 'scene.glb').stat().st_size:,} bytes"
    low, high = values["low"], values["high"]
    sides = ", ".join(f"{axis} {low[index]:g} to {high[index]:g}" for index, axis in enumerate("xyz"))
    lines = done.stdout.splitlines()
    assert lines[:8] == [
        "file           scene.glb",
        f"size           {size}",
        "format         glTF, KHR_gaussian_splatting",
        f"content        {len(made)} Gaussians",
        f"centres        {sides} scene units",
        "harmonics      degree 2",
        "colours        sRGB",
        "antialiasing   not recorded",
    ]
    assert lines[8:11] == [
        "drawing order  by distance to the camera",
        "",
        "what lumigrad convert would lose in each format:",
    ]
    assert "  .glb, .gltf, .usd, .usda, .usdc, .usdz  loses nothing" in lines
    order = "is drawn by depth along the view direction, not by distance to the camera, so pictures differ"
    assert f"  .ply             {order}" in lines
    splat = "rounds base colours, opacities and rotations to 8 bits; cuts harmonics from degree 2 to 0"
    assert f"  .splat           {splat}; {order}" in lines


def test_a_scene_takes_its_view_along_and_leaves_none_of_what_it_replaces(tmp_path: Path, made: Cloud) -> None:
    seen, plain = (save(made, tmp_path / f"{name}.ply") for name in ("seen", "plain"))
    view = SceneView((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), (0.0, -1.0, 0.0), fov_degrees=45.0)
    view.save(seen)
    output = tmp_path / "out.spz"
    assert convert(seen.name, output.name, folder=tmp_path).returncode == 0
    assert SceneView.load(output) == view
    done = convert(plain.name, output.name, folder=tmp_path)
    assert "lumigrad: removes out.view.json, because plain.ply has no view\n" in done.stderr
    assert SceneView.load(output) is None and SceneView.load(seen) == view
    # A scene that is written anew beside itself keeps what is beside it.
    assert convert(seen.name, "seen.splat", folder=tmp_path).returncode == 0
    assert SceneView.load(seen) == view


def test_a_view_stays_for_another_scene_of_the_same_name(tmp_path: Path) -> None:
    gaussians_of(cloud(count=3)).save(tmp_path / "scene.ply")
    gaussians_of(cloud(count=4)).save(tmp_path / "other.ply")
    (tmp_path / "scene.view.json").write_text("{}")
    done = lumigrad("convert", "other.ply", "scene.spz", folder=tmp_path)
    assert done.returncode == 0
    assert "lumigrad: keeps scene.view.json for scene.ply, although it is read for scene.spz, too\n" in done.stderr
    assert (tmp_path / "scene.view.json").exists()


def test_what_is_not_finite_is_left_out_and_said(tmp_path: Path, made: Cloud) -> None:
    made.means[1] = np.nan
    gaussians = gaussians_of(made)
    for left, text in ((len(gaussians) - 1, f"{len(gaussians) - 1} Gaussians"), (1, "1 Gaussian")):
        save_gaussians(gaussians[: left + 1], tmp_path / "scene.ply")
        done = convert("scene.ply", f"{left}.ply", folder=tmp_path)
        assert done.stderr == "lumigrad: left out 1 Gaussian with values that are not finite\n"
        assert done.stdout.startswith(f"{left}.ply: {text}, ")
        assert len(load_gaussians(tmp_path / f"{left}.ply")) == left


def test_files_of_logarithms_or_logits_are_not_taken_for_damaged_gaussians(tmp_path: Path, made: Cloud) -> None:
    """Scales and opacities are stored as they are in these formats."""
    stored = read_scene(save(made, tmp_path / "scene.ply")).of_degree(0)
    write_glb(replace(stored, opacities=stored.opacities + 2), tmp_path / "scene.glb")
    write_splat(replace(stored, scales=np.log(stored.scales / 9)), tmp_path / "scene.splat")
    for name, said in (("scene.glb", "opacities from 0 to 1"), ("scene.splat", "scales >= 0")):
        done = convert(name, "out.ply", folder=tmp_path)
        assert done.returncode == 1 and f"{name}: expected {said}, but " in done.stderr
        assert not (tmp_path / "out.ply").exists()


def test_refusals_are_of_the_shell(tmp_path: Path, made: Cloud) -> None:
    save_gaussians(gaussians_of(made), tmp_path / "scene.ply")
    done = convert("scene.ply", "scene.lcc", folder=tmp_path)
    assert done.returncode != 0 and "or --levels with a folder, got scene.lcc" in done.stderr
    done = convert("absent.ply", "scene.spz", folder=tmp_path)
    assert done.returncode == 1 and "no such file: absent.ply" in done.stderr
    assert not (tmp_path / "scene.spz").exists()
