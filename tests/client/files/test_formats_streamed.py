"""Streamed SOG: levels of detail, files that leaves share, the environment, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import load_gaussians, read_scene
from support.gaussians.clouds import cloud
from support.gaussians.files import sog_files

BOX = {"min": [-9, -9, -9], "max": [9, 9, 9]}


def part(count: int, seed: int, folder: Path, degree: int = 1) -> None:
    folder.mkdir(parents=True)
    for name, content in sog_files(cloud(count=count, degree=degree, seed=seed)).items():
        (folder / name).write_bytes(content)


def leaf(**lods: tuple[int, int, int]) -> dict[str, Any]:
    entries = {name[1:]: dict(zip(("file", "offset", "count"), lod, strict=True)) for name, lod in lods.items()}
    return {"bound": BOX, "lods": entries}


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    """Three leaves: two share a file; one lacks level 0, another level 1."""
    for number, (name, count) in enumerate({"fine/a": 30, "fine/b": 20, "1_0": 12, "sky": 5}.items()):
        part(count, number, tmp_path / name, degree=0 if name == "sky" else 1)
    leaves = [leaf(L0=(0, 10, 20), L1=(2, 0, 8)), leaf(L0=(0, 0, 10)), leaf(L1=(2, 8, 4))]
    tree = {"bound": BOX, "children": [{"bound": BOX, "children": leaves[:2]}, leaves[2]]}
    names = ["fine/a/meta.json", "fine/b/meta.json", "1_0/meta.json"]
    return {"version": 1, "lodLevels": 2, "environment": "sky/meta.json", "filenames": names, "tree": tree}


def write(folder: Path, values: Any) -> Path:
    (folder / "lod-meta.json").write_text(json.dumps(values))
    return folder / "lod-meta.json"


def test_each_level_is_the_slices_of_its_leaves_and_the_environment(tmp_path, values):
    path = write(tmp_path, values)
    a, coarse, sky = (load_gaussians(tmp_path / name) for name in ("fine/a", "1_0", "sky"))
    expected = {
        None: [a.means[10:30], a.means[:10], coarse.means[8:12], sky.means],
        0: [a.means[10:30], a.means[:10], coarse.means[8:12], sky.means],
        1: [coarse.means[:8], a.means[:10], coarse.means[8:12], sky.means],
    }
    for lod, means in expected.items():
        scene = read_scene(path, lod=lod)
        np.testing.assert_array_equal(scene.means, np.concatenate(means))
        assert (scene.degree, scene.details["lods"]) == (1, 2)
        # The sky has no higher harmonics.
        assert not scene.sh[-5:, 1:].any()
    assert len(Gaussians.load(tmp_path)) == len(read_scene(tmp_path, lod=0))


def test_files_without_version_counts_or_environment(tmp_path, values):
    for name in ("version", "environment"):
        del values[name]
    assert len(read_scene(write(tmp_path, values), lod=1)) == 22
    values["environment"] = None
    assert len(read_scene(write(tmp_path, values), lod=1)) == 22


def changed(**more: Any) -> Any:
    return lambda values: values.update(more)


def outside(values: dict[str, Any]) -> None:
    values["filenames"][0] = "../other/meta.json"


REFUSED = [
    (changed(version=2), 0, "expected version 1, got 2"),
    (changed(lodLevels="2"), 0, r"expected an integer from 0 to [0-9,]* in lodLevels, got '2'"),
    (changed(filenames=None), 0, "expected a list of paths in filenames"),
    (outside, 0, r"below this file's folder in filenames\[0\], got '\.\./other/meta\.json'"),
    (changed(environment="sky/none.json"), 0, "expected a file sky/none.json for environment; there is none"),
    (changed(tree=None), 0, "expected an object for a node of the tree, got NoneType"),
    (changed(tree={}), 0, "expected an object for lods of a leaf"),
    (changed(tree=leaf(L0=(3, 0, 1))), 0, "expected a file below 3, the number of filenames, got 3"),
    (
        changed(tree=leaf(L0=(0, 25, 6))),
        0,
        "expected at most 30 Gaussians of fine/a/meta.json, got a slice that ends at 31",
    ),
    (changed(tree=leaf(L0=(0, 0, -1))), 0, "expected an integer from 0 to [0-9,]* in count, got -1"),
    (changed(tree=leaf(L0=(0, 0, 10**12))), 0, "expected at most 512 bytes of content per byte"),
    (changed(tree=leaf(), environment=None), 0, "expected Gaussians of level 0, got none"),
]


@pytest.mark.parametrize(("change", "lod", "said"), REFUSED)
def test_what_does_not_fit_is_named(tmp_path, values, change, lod, said):
    part(3, 9, tmp_path.parent / f"{tmp_path.name}_other" / "x")
    change(values)
    with pytest.raises(InvalidArgument, match=r"^path: .*lod-meta\.json: .*" + said):
        read_scene(write(tmp_path, values), lod=lod)


@pytest.mark.parametrize("lod", [-1, 2])
def test_a_level_that_no_scene_has_is_named(tmp_path, values, lod):
    with pytest.raises(
        InvalidArgument, match=rf"^lod: expected .* 0, the finest, to 1 in .*lod-meta\.json, got {lod}$"
    ):
        read_scene(write(tmp_path, values), lod=lod)


def test_deep_trees_are_refused(tmp_path, values):
    values["tree"] = "TREE"
    deep = '{"children": [' * 100 + "{}" + "]}" * 100
    (tmp_path / "lod-meta.json").write_text(json.dumps(values).replace('"TREE"', deep))
    with pytest.raises(InvalidArgument, match="expected a tree of at most 64 levels of nodes"):
        read_scene(tmp_path / "lod-meta.json")
    (tmp_path / "lod-meta.json").write_text('{"a":' * 200_000)
    with pytest.raises(InvalidArgument, match="expected JSON: "):
        read_scene(tmp_path / "lod-meta.json")


def test_links_that_lead_outside_are_refused(tmp_path, values):
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "sky")
    values |= {"environment": None, "filenames": ["link/meta.json"], "tree": leaf(L0=(0, 0, 5))}
    with pytest.raises(InvalidArgument, match=r"below this file's folder in filenames\[0\]"):
        read_scene(write(inside, values))


def test_other_files_have_one_level(tmp_path, values):
    with pytest.raises(InvalidArgument, match=r"^lod: expected a lod-meta\.json with it, got .*, which has one level"):
        read_scene(tmp_path / "sky", lod=1)
