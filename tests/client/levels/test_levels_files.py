"""Scenes with levels of detail in files: writing and reading in bounded memory, and what a fault leaves behind."""

from __future__ import annotations

import errno
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import read_scene, save_gaussians
from lumigrad.client.formats.levels import GaussianLevels, building, chunks, scratch
from lumigrad.client.formats.levels.building import write_levels
from support.gaussians.clouds import cloud, gaussians_of
from support.gaussians.files import sog_files
from support.held_disk import full_disk
from support.workers.forks import lumigrad

ROWS = 512


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, buckets and samples of so few Gaussians that small scenes have several."""
    monkeypatch.setattr(chunks, "_ROWS", 700)
    monkeypatch.setattr(building, "BUCKET_ROWS", 1500)
    monkeypatch.setattr(building, "_SAMPLE", 1000)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    save_gaussians(gaussians_of(cloud(count=4000, degree=2)), tmp_path / "scene.ply", antialiased=True)
    return tmp_path / "scene.ply"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("small")
def test_what_is_written_is_what_memory_has(tmp_path: Path, scene: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    built = write_levels(scene, tmp_path / "city", page_rows=ROWS, progress=lambda *told: stages.append(told))
    levels = GaussianLevels.open(tmp_path / "city")
    assert (built.count, built.skipped, built.pages, built.levels) == (4000, 0, len(levels), levels.levels)
    assert (levels.sh_degree, levels.antialiased) == (2, True)
    assert levels.counts[:, 0].sum() == 4000 and levels.counts[:, 0].max() <= ROWS
    assert (levels.counts[:, -1] == 1).all() and (np.diff(levels.counts, axis=1) <= 0).all()
    assert not levels.errors[:, 0].any() and (np.diff(levels.errors, axis=1) >= 0).all()
    # Each finished stage has seen all Gaussians.
    assert {stage: done for stage, done, _ in stages} == dict.fromkeys(("reading", "sorting", "merging"), 4000)
    for page in range(len(levels)):
        again = GaussianLevels.of(levels.read(page, 0))
        for level in range(levels.levels):
            part = levels.read(page, level)
            assert len(part) == levels.counts[page, level]
            low, high = levels.bounds[page, level]
            assert ((part.means >= low - 0.01) & (part.means <= high + 0.01)).all()
        np.testing.assert_allclose(levels.bounds[page], again.bounds[0, : levels.levels], atol=0.01, rtol=0.15)
        np.testing.assert_allclose(levels.errors[page, 1], again.errors[0, 1], rtol=0.15)
    finest = np.concatenate([levels.read(page, 0).means for page in range(len(levels))])
    given = read_scene(scene).means
    np.testing.assert_allclose(np.sort(finest, axis=0), np.sort(given, axis=0), atol=2e-3)
    # Readers of whole levels find the same Gaussians.
    for lod in range(levels.levels):
        read = read_scene(tmp_path / "city", lod=lod)
        parts = [levels.read(page, lod).means for page in range(len(levels))]
        np.testing.assert_array_equal(read.means, np.concatenate(parts))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("small")
def test_the_same_scene_makes_the_same_files_from_any_format(tmp_path: Path, scene: Path) -> None:
    write_levels(scene, tmp_path / "one", page_rows=ROWS)
    write_levels(scene, tmp_path / "two", page_rows=ROWS)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    # A folder with levels is itself a scene; its SOG values are rounded again.
    write_levels(tmp_path / "one", tmp_path / "again", page_rows=ROWS, sh_degree=0)
    again = GaussianLevels.open(tmp_path / "again")
    assert (again.counts[:, 0].sum(), again.sh_degree) == (4000, 0)
    Gaussians.load(scene).save(tmp_path / "scene.spz")
    assert write_levels(tmp_path / "scene.spz", tmp_path / "spz").count == 4000


def test_gaussians_that_cannot_be_rendered_are_left_out(tmp_path: Path) -> None:
    made = cloud(count=300)
    scene = read_scene_with_faults(tmp_path, made)
    assert write_levels(scene, tmp_path / "city").skipped == 2
    with pytest.raises(InvalidArgument, match="expected at least one finite Gaussian, got none"):
        save_gaussians(gaussians_of(cloud(count=0)), tmp_path / "none.ply")
        write_levels(tmp_path / "none.ply", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def read_scene_with_faults(folder: Path, made: object) -> Path:
    save_gaussians(gaussians_of(made), folder / "scene.ply")  # type: ignore[arg-type]
    content = bytearray((folder / "scene.ply").read_bytes())
    start = content.index(b"end_header\n") + len(b"end_header\n")
    rows = np.frombuffer(content, "<f4", offset=start).reshape(300, -1)
    rows[7, 0], rows[200, 6] = np.nan, np.inf
    (folder / "scene.ply").write_bytes(content)
    return folder / "scene.ply"


def test_large_gaussians_have_pages_of_their_own() -> None:
    made = cloud(count=2000)
    made.scales[::500] = 40.0
    levels = GaussianLevels.of(gaussians_of(made), page_rows=ROWS)
    sizes = (levels.bounds[:, 0, 1] - levels.bounds[:, 0, 0]).max(axis=1)
    assert (sizes > 100).sum() == 1 and sizes[-1] > 100


def test_a_page_with_fewer_rows_repeats_its_last_level(tmp_path: Path) -> None:
    save_gaussians(gaussians_of(cloud(count=5, degree=0)), tmp_path / "scene.ply")
    built = write_levels(tmp_path / "scene.ply", tmp_path / "city")
    levels = GaussianLevels.open(tmp_path / "city")
    assert (built.levels, levels.counts.tolist()) == (3, [[5, 2, 1]])


HARMS = ("tree", "box", "shrinking", "inverted", "nan", "huge", "errors", "missing", "count", "levels", "degree")


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_files_are_named(tmp_path: Path, scene: Path, harm: str) -> None:
    write_levels(scene, tmp_path / "city")
    index = tmp_path / "city" / "lod-meta.json"
    values = json.loads(index.read_text())
    leaf = values["tree"]
    change: dict[str, Callable[[], object]] = {
        "tree": lambda: leaf["lumigrad"].pop("bounds"),
        "box": lambda: leaf["lumigrad"]["bounds"].pop(),
        "shrinking": lambda: leaf["lumigrad"]["bounds"].reverse(),
        "inverted": lambda: [box.update(min=box["max"], max=box["min"]) for box in leaf["lumigrad"]["bounds"][:1]],
        "nan": lambda: [box.update(min=[math.nan] * 3) for box in leaf["lumigrad"]["bounds"]],
        "huge": lambda: [box.update(max=[10**400] * 3) for box in leaf["lumigrad"]["bounds"]],
        "errors": lambda: leaf["lumigrad"].update(errors=[0, 2, 1, 3, 4, 5, 6]),
        "missing": lambda: values["filenames"].__setitem__(0, "9_9/meta.json"),
        "count": lambda: leaf["lods"]["0"].update(count=5000),
        "levels": lambda: values.update(lodLevels=1 << 40),
        "degree": lambda: values["lumigrad"].update(shDegree=1 << 20),
    }
    change[harm]()
    index.write_text(json.dumps(values))
    with pytest.raises(InvalidArgument, match=r"^path: .*meta\.json: expected "):
        GaussianLevels.open(tmp_path / "city").read(0, 0)


def test_pages_with_one_box_have_it_for_all_levels(tmp_path: Path, scene: Path) -> None:
    write_levels(scene, tmp_path / "city", page_rows=ROWS)
    index = tmp_path / "city" / "lod-meta.json"
    written = GaussianLevels.open(index)
    values = json.loads(index.read_text())
    nodes = [values["tree"]]
    for node in nodes:
        nodes += node.get("children", [])
        if "lumigrad" in node:
            node["lumigrad"]["bound"] = node["lumigrad"].pop("bounds")[-1]
    index.write_text(json.dumps(values))
    levels = GaussianLevels.open(index)
    assert levels.bounds.shape == written.bounds.shape
    assert (levels.bounds == written.bounds[:, -1:]).all()
    assert (levels.bounds[:, 0] != written.bounds[:, 0]).any()


def test_files_of_other_programs_have_estimated_errors_and_generous_bounds(tmp_path: Path) -> None:
    made = cloud(count=400, degree=1)
    for name, count in (("0_0", 400), ("1_0", 100), ("env", 7)):
        (tmp_path / name).mkdir()
        for file, content in sog_files(cloud(count=count, degree=1 if count == 400 else 0)).items():
            (tmp_path / name / file).write_bytes(content)
    low = (made.means - made.scales.max(axis=1, keepdims=True)).min(axis=0)
    high = (made.means + made.scales.max(axis=1, keepdims=True)).max(axis=0)
    lods = {str(level): {"file": level, "offset": 0, "count": count} for level, count in enumerate((400, 100))}
    tree = {"bound": {"min": low.tolist(), "max": high.tolist()}, "lods": lods, "errors": [0, 0.5]}
    names = ["0_0/meta.json", "1_0/meta.json"]
    values = {"lodLevels": 2, "lodErrors": True, "environment": "env/meta.json", "filenames": names, "tree": tree}
    (tmp_path / "lod-meta.json").write_text(json.dumps(values))
    levels = GaussianLevels.open(tmp_path / "lod-meta.json")
    assert (levels.counts.tolist(), levels.sh_degree) == ([[400, 100], [7, 7]], 1)
    diagonal = float(np.linalg.norm(high - low))
    np.testing.assert_allclose(levels.errors, [[0, 0.55 * diagonal / 10], [0, 0]], rtol=1e-6)
    for page, level in np.ndindex(2, 2):
        read = levels.read(page, level)
        reach = 3 * read.scales.max(axis=1, keepdims=True)
        assert (read.means - reach >= levels.bounds[page, level, 0] - 0.01).all()
        assert (read.means + reach <= levels.bounds[page, level, 1] + 0.01).all()
    assert levels.read(1, 1).sh_degree == 1


def test_what_has_no_levels_is_refused_or_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^gaussians: expected Gaussians, got 'sample:vase'; read a file with"):
        GaussianLevels.of("sample:vase")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"expected a folder with a lod-meta\.json; `lumigrad convert --levels`"):
        GaussianLevels.open(tmp_path)
    for absent in ("absent", "absent/lod-meta.json"):
        with pytest.raises(FileNotFoundError, match=absent):
            GaussianLevels.open(tmp_path / absent)


def test_a_full_disk_leaves_the_old_folder_whole_and_nothing_beside_it(
    tmp_path: Path, scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_levels(scene, tmp_path / "city")
    before = contents(tmp_path)
    with full_disk(4000), pytest.raises(OSError) as raised:
        write_levels(scene, tmp_path / "city")
    assert raised.value.filename == str(tmp_path / "city") and contents(tmp_path) == before
    free = type("usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    with pytest.raises(OSError, match=r"expected about \d+ MB of free disk") as short:
        write_levels(scene, tmp_path / "city")
    assert short.value.errno == errno.ENOSPC and contents(tmp_path) == before


def test_folders_of_other_files_are_left_alone(tmp_path: Path, scene: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidArgument, match=r"expected a new folder, an empty one or one with a lod-meta\.json"):
        write_levels(scene, tmp_path / "mine")
    with pytest.raises(InvalidArgument, match="expected a folder, got a file"):
        write_levels(scene, scene)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_a_link_to_a_folder_stays_one(tmp_path: Path, scene: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "city").symlink_to(tmp_path / "disk")
    write_levels(scene, tmp_path / "city")
    assert (tmp_path / "city").is_symlink() and len(GaussianLevels.open(tmp_path / "disk")) == 1
    assert not list(tmp_path.glob(".*"))


KILLED = """
import sys, time
from lumigrad.client.formats.levels.building import write_levels
def wait(stage, done, total):
    if stage == "merging":
        print("merging", flush=True)
        time.sleep(600)
write_levels(sys.argv[1], sys.argv[2], progress=wait)
"""


def test_a_kill_leaves_no_half_result_and_the_next_run_cleans_up(tmp_path: Path, scene: Path) -> None:
    # This name, read as a glob pattern, would match others.
    city = tmp_path / "city[1]"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(scene), str(city)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "merging\n"
        # Another run leaves alone what a living process writes.
        write_levels(scene, city)
        assert len(list(tmp_path.glob(".city*"))) == 1
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert len(list(tmp_path.glob(".city*"))) == 1
    before = contents(city)
    write_levels(scene, city)
    assert not list(tmp_path.glob(".city*")) and contents(city) == before


def test_the_command_writes_a_folder(tmp_path: Path, scene: Path) -> None:
    done = lumigrad("convert", "scene.ply", "city", "--levels", "--sh-degree", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    size = sum(map(len, contents(tmp_path / "city").values()))
    assert done.stdout == f"city: 4,000 Gaussians in 1 page with 7 levels, {size:,} bytes\n"
    assert GaussianLevels.open(tmp_path / "city").sh_degree == 1
    done = lumigrad("convert", "scene.ply", "city", folder=tmp_path)
    assert done.returncode == 2 and "OUTPUT: expected a name that ends in .ply" in done.stderr
    done = lumigrad("convert", "city", "other", "--levels", "--lod", "2", folder=tmp_path)
    assert done.returncode == 2 and "--lod: levels are built from the finest" in done.stderr


def test_memory_does_not_grow_with_the_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No joined array is longer than a chunk, a page, or a bucket with the remainder of the one before it."""
    longest = 0
    monkeypatch.setattr(chunks, "_ROWS", 700)
    monkeypatch.setattr(building, "BUCKET_ROWS", 1500)
    save_gaussians(gaussians_of(cloud(count=20_000, degree=0)), tmp_path / "scene.ply")

    def joined(scenes: list[object]) -> object:
        nonlocal longest
        longest = max(longest, sum(map(len, scenes)))  # type: ignore[arg-type]
        return original(scenes)

    original = scratch.joined
    monkeypatch.setattr(scratch, "joined", joined)
    write_levels(tmp_path / "scene.ply", tmp_path / "city", page_rows=ROWS)
    assert 500 < longest < 3000
