"""Files of Spark 2: all encodings, trees, chunks in files of their own, labels of harmonics, and damage."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import read_scene
from support.files.rad import USUAL, rad_chunks, rad_content, rad_header
from support.gaussians.clouds import Cloud, assert_close, cloud

EXACT = {name: "f32" for name in USUAL}
HALVES = {name: "f16" for name in USUAL} | {"scales": "ln_f16", "center": "f16_lebytes"}
LEVELS = USUAL | {"alpha": "r8", "rgb": "r8", "sh": "s8_delta"}


@pytest.mark.parametrize("degree", range(4))
@pytest.mark.parametrize(
    ("encodings", "bounds"),
    [
        (EXACT, {"means": 2e-6, "scales": 1e-6, "opacity": 1e-7, "sh": 1e-6, "angle": 2e-3}),
        (HALVES, {"means": 0.01, "scales": 0.003, "opacity": 3e-4, "sh": 1e-3, "angle": 0.1}),
        (USUAL, {"means": 2e-6, "scales": 0.05, "opacity": 3e-4, "sh": 0.022, "angle": 0.03}),
        (LEVELS, {"means": 2e-6, "scales": 0.05, "opacity": 5e-3, "sh": 0.022, "angle": 0.03}),
    ],
    ids=["floats", "halves", "usual", "levels"],
)
def test_all_encodings_are_read(tmp_path: Path, encodings: dict[str, str], bounds: dict[str, float], degree: int):
    made = cloud(degree=degree)
    for is_compressed in (True, False):
        (tmp_path / "scene.rad").write_bytes(rad_content(made, encodings, is_compressed=is_compressed))
        assert_close(Gaussians.load(tmp_path / "scene.rad"), made, **bounds)


def test_signed_levels_of_harmonics_may_have_any_range(tmp_path: Path):
    made = cloud(degree=1)
    content = rad_content(made, EXACT | {"sh": "r8"})
    (tmp_path / "scene.rad").write_bytes(content)
    np.testing.assert_allclose(Gaussians.load(tmp_path / "scene.rad").sh, made.sh, atol=0.5 * 2 / 255 + 1e-6)


def test_merged_gaussians_of_a_tree_are_left_out(tmp_path: Path):
    made = cloud(degree=1)
    children = np.where(np.arange(len(made)) % 3 == 0, 4, 0)
    made.opacities[children > 0] = 1.7
    (tmp_path / "scene.rad").write_bytes(rad_content(made, EXACT, children=children))
    read = read_scene(tmp_path / "scene.rad")
    np.testing.assert_array_equal(read.means, made.means[children == 0].astype(np.float32))
    assert "those of the file that it was made from" in read.details["axes"]
    assert read.details["merged_left_out"] == 100 and len(read) == 200
    (tmp_path / "scene.rad").write_bytes(rad_content(made, EXACT, children=np.ones(len(made), int)))
    with pytest.raises(InvalidArgument, match="expected at least one Gaussian without children, got none"):
        read_scene(tmp_path / "scene.rad")


def test_harmonics_may_be_labels_of_codes_in_the_first_chunk(tmp_path: Path):
    made = cloud(degree=3)
    made.sh[:, 1:] = made.sh[np.arange(300) % 20, 1:]
    (tmp_path / "scene.rad").write_bytes(rad_content(made, EXACT, codes=20))
    np.testing.assert_allclose(Gaussians.load(tmp_path / "scene.rad").sh, made.sh, atol=1e-6)
    for encoding in (b"f32", b"s8", b"u8"):
        content = rad_content(made, EXACT, codes=20).replace(b'"encoding": "u16"', b'"encoding": "%s"' % encoding)
        (tmp_path / "other.rad").write_bytes(content)
        with pytest.raises(InvalidArgument):
            read_scene(tmp_path / "other.rad")
    chunks = rad_chunks(made, EXACT, codes=20)
    (tmp_path / "later.rad").write_bytes(chunks[1])
    with pytest.raises(InvalidArgument, match="expected labels of 0 codes of harmonics, got 19"):
        read_scene(tmp_path / "later.rad")


def test_chunks_may_be_files_beside_the_header(tmp_path: Path):
    made = cloud(degree=2)
    chunks = rad_chunks(made, EXACT)
    ranges = [{"offset": 0, "bytes": len(chunk), "filename": f"s-{k}.radc"} for k, chunk in enumerate(chunks)]
    for each, chunk in zip(ranges, chunks, strict=True):
        (tmp_path / str(each["filename"])).write_bytes(chunk)
    (tmp_path / "scene.rad").write_bytes(rad_header(300, ranges, 128))
    np.testing.assert_allclose(Gaussians.load(tmp_path / "scene.rad").sh, made.sh, atol=1e-6)
    # A chunk is a scene, too.
    np.testing.assert_array_equal(Gaussians.load(tmp_path / "s-1.radc").means, made.means[128:256].astype(np.float32))
    (tmp_path / "s-1.radc").unlink()
    with pytest.raises(InvalidArgument, match=r"expected its chunk s-1\.radc beside it, got no such file"):
        read_scene(tmp_path / "scene.rad")
    for name in ("../scene.rad", "", 7, "a\\b"):
        (tmp_path / "scene.rad").write_bytes(rad_header(300, [{**ranges[0], "filename": name}], 128))
        with pytest.raises(InvalidArgument, match="expected the name of a file beside it for each chunk"):
            read_scene(tmp_path / "scene.rad")


CHANGES = {
    '"version": 1, "base"': ('"version": 2, "base"', 'expected "version": 1 at byte'),
    '"type": "gsplat"': ('"type": "meshes"', 'expected "type": "gsplat", got "meshes"'),
    '"count": 300': ('"count": 301', "expected 301 Gaussians, got 300 in 3 chunks"),
    '"encoding": "ln_0r8"': ('"encoding": "ln_0r9"', 'expected scales as one of r8, .*, got "ln_0r9"'),
    '"encoding": "f16"': ('"encoding": "u16"', 'expected alpha as floats or their levels, got "u16"'),
    '"compression": "gz"': ('"compression": "xz"', 'expected the compression "gz" of center, got "xz"'),
    '"property": "alpha"': ('"property": "alphb"', "expected columns with alpha, got center, alphb, rgb"),
    '"property": "sh1"': ('"property": "sh9"', r"expected harmonics of all degrees up to the highest, got \[2, 3\]"),
    '"min": -12.0': ('"min": null ', 'expected "min" of scales, a number, got null'),
    '"count": 128': ('"count": 127', "expected 300 Gaussians, got 299 in 3 chunks"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_wrong_with_a_header_is_said(tmp_path: Path, change: str):
    content = rad_content(cloud(degree=3))
    other, message = CHANGES[change]
    assert change.encode() in content and len(change) == len(other)
    (tmp_path / "scene.rad").write_bytes(content.replace(change.encode(), other.encode(), 1))
    with pytest.raises(InvalidArgument, match=message):
        read_scene(tmp_path / "scene.rad")


def test_a_header_that_announces_too_much_takes_no_memory(tmp_path: Path):
    made: Cloud = cloud(count=40)
    (chunk,) = rad_chunks(made)
    text = re.search(rb"\{.*\}", chunk).group()  # type: ignore[union-attr]
    header = json.loads(text)
    header["count"] = 1 << 40
    longer = json.dumps(header).encode()
    padded = longer + b" " * (-len(longer) % 8)
    rest = chunk[8 + -(-len(text) // 8) * 8 :]
    (tmp_path / "scene.radc").write_bytes(b"RADC" + len(padded).to_bytes(4, "little") + padded + rest)
    with pytest.raises(InvalidArgument, match="expected at most 512 bytes of content per byte of file"):
        read_scene(tmp_path / "scene.radc")
