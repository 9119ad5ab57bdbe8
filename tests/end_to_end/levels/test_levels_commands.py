"""Commands for a scene with levels of detail: only what a view needs is drawn, or the error says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.commands import scene_file
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.levels.building import write_levels
from support.workers.forks import lumigrad
from support.workers.spooling import spooling_fixture
from support.workers.worker import WorkerProcess, worker

COUNT, PAGE_ROWS = 6000, 256
# A camera so far above that most pages are coarse.
EYE = "look-at 0,-80,0.1 0,0,0"


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    rng = np.random.default_rng(2)
    places, scales = rng.uniform(-8, 8, (COUNT, 3)) * (1, 0.1, 1), rng.uniform(0.02, 0.1, (COUNT, 3))
    colors = rng.uniform(0, 1, (COUNT, 3))
    Gaussians(places, rng.normal(size=(COUNT, 4)), scales, rng.uniform(0.3, 0.9, COUNT), colors=colors).save(
        folder / "city.ply"
    )
    write_levels(folder / "city.ply", folder / "city", page_rows=PAGE_ROWS)
    return folder / "city"


spooled = spooling_fixture(supervised=False)


def render(scene: Path, target: str, *options: str) -> tuple[dict[str, Any], np.ndarray]:
    path = scene.with_name("out.png")
    aimed = ("--camera", EYE, "--size", "96x64", "--json", "--target", target)
    done = lumigrad("render", str(scene), "-o", str(path), *aimed, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), np.asarray(Image.open(path))


def test_render_draws_levels_by_their_error_and_one_whole_level_if_asked(city: Path, spooled: WorkerProcess) -> None:
    summary, picture = render(city, spooled.target)
    assert summary["count"] == COUNT and summary["kind"] == "gaussians"
    camera = Camera.look_at((0, -80, 0.1), (0, 0, 0), (0, -1, 0), fov_degrees=40, width=96, height=64)
    with Client(spooled.target) as client:
        frame = client.render(client.put(GaussianLevels.open(city)), camera, image_format="uint8")
    assert frame.levels is not None and frame.levels.counts[0] == 0
    assert np.array_equal(picture, frame.color)
    whole, plain = render(city / "lod-meta.json", spooled.target, "--lod", "0")
    assert whole["count"] == COUNT and not np.array_equal(plain, picture)
    # Both pictures show the same scene.
    assert np.abs(plain.astype(int) - picture).mean() < 6


def test_orbits_frame_the_scene_by_a_coarse_level(
    city: Path, spooled: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = city.with_name("turn")
    done = lumigrad(
        "render", str(city), "--orbit", "3", "--size", "64x48", "-o", f"{folder}/", "--target", spooled.target
    )
    assert done.returncode == 0, done.stderr
    pictures = [np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))]
    assert len(pictures) == 3 and all(picture.max() > 60 for picture in pictures)
    monkeypatch.setattr(scene_file, "_OUTLINE", COUNT // 8)
    levels = GaussianLevels.open(city)
    totals = levels.counts.sum(axis=0)
    coarse = scene_file._coarse(levels)
    assert totals[coarse] <= COUNT // 8 < totals[coarse - 1]


def test_a_worker_without_a_spool_is_told_with_the_remedy(city: Path) -> None:
    with worker("--device", "cpu") as process:
        done = lumigrad("render", str(city), "-o", str(city.with_name("no.png")), "--target", process.target)
        assert done.returncode == 1
        assert "(--spool), got one without; --lod N draws one whole level as a plain scene" in done.stderr
        assert render(city, process.target, "--lod", "1")[0]["count"] < COUNT


def test_a_damaged_page_is_told_without_a_remedy_that_does_not_help(
    city: Path, spooled: WorkerProcess, tmp_path: Path
) -> None:
    damaged = shutil.copytree(city, tmp_path / "city")
    for picture in damaged.rglob("*.webp"):
        picture.write_bytes(b"none")
    levels = GaussianLevels.open(damaged)
    outline = Gaussians(np.zeros((1, 3)), np.ones((1, 4)), np.ones((1, 3)), np.ones(1), colors=np.ones((1, 3)))
    with Client(spooled.target) as client, pytest.raises(InvalidArgument, match="webp") as refused:
        scene_file.SceneFile(outline, levels, {}).put(client)
    assert "--lod" not in str(refused.value)


def test_info_reads_the_index_alone(city: Path, tmp_path: Path) -> None:
    index = shutil.copytree(city, tmp_path / "city")
    for picture in index.rglob("*.webp"):
        picture.write_bytes(b"")
    done = lumigrad("info", str(index), "--json")
    assert done.returncode == 0, done.stderr
    told, levels = json.loads(done.stdout), GaussianLevels.open(city)
    assert told["count"] == COUNT and told["details"]["pages"] == len(levels)
    assert told["details"]["level_counts"] == levels.counts.sum(axis=0).tolist()
    assert told["low"] == pytest.approx(levels.bounds[:, 0, 0].min(axis=0), abs=1e-3)
    text = lumigrad("info", str(index)).stdout
    assert f"levels        {COUNT:,}, " in text and f" Gaussians in {len(levels)} pages\n" in text + "\n"
    whole = json.loads(lumigrad("info", str(city), "--lod", "0", "--json").stdout)
    assert whole["count"] == COUNT and whole["details"]["lod"] == 0


def test_commands_that_need_a_whole_scene_say_how_to_make_one(city: Path, spooled: WorkerProcess) -> None:
    done = lumigrad("bench", str(city), "--target", spooled.target)
    assert done.returncode != 0
    remedy = f"`lumigrad convert {city} scene.ply --lod N` writes one of them"
    assert f"expected a scene without levels of detail; {remedy}" in done.stderr
    with pytest.raises(InvalidArgument, match="expected a scene without levels of detail"):
        scene_file.load(city)
