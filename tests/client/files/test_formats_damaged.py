"""Damaged scene files: whatever the bytes, a scene or the typed error comes back, soon and in little memory."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lumigrad.client import InvalidArgument
from lumigrad.client.formats import read_scene
from support.files.scene_files import FORMATS, good, read
from support.gaussians.clouds import cloud
from support.gaussians.files import sog_files

# Damage may move Gaussians far away, which is warned about.
pytestmark = pytest.mark.filterwarnings("error", "ignore::lumigrad.client.errors.PrecisionWarning")

# The same examples in every run, and each in a limited time.
FUZZ = settings(
    max_examples=40, deadline=60_000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_files_are_read(folder, name):
    scene = read(folder / name, good(name, folder))
    assert scene is not None and len(scene) in (40, 80)


@pytest.mark.parametrize("name", FORMATS)
@FUZZ
@given(data=st.data())
def test_truncated_files(folder, name, data):
    content = good(name, folder)
    length = data.draw(st.integers(0, len(content) - 1))
    scene = read(folder / name, content[:length])
    # A .splat has no header, so any multiple of 32 bytes is a file; a text may lose digits of its last number.
    if name == "scene.splat":
        assert (scene is not None) == (length > 0 and length % 32 == 0)
    elif name != "text.ply":
        assert scene is None


@pytest.mark.parametrize("name", FORMATS)
@FUZZ
@given(data=st.data())
def test_flipped_bits(folder, name, data):
    content = bytearray(good(name, folder))
    for _ in range(data.draw(st.integers(1, 8))):
        # Most flips are in the header, where they do most harm.
        last = data.draw(st.sampled_from([min(64, len(content)) - 1, len(content) - 1]))
        content[data.draw(st.integers(0, last))] ^= 1 << data.draw(st.integers(0, 7))
    read(folder / name, bytes(content))


@pytest.mark.parametrize("name", FORMATS)
@FUZZ
@given(data=st.data())
def test_overwritten_words(folder, name, data):
    content = bytearray(good(name, folder))
    word = data.draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF))
    starts = [4 * k for k in range(16)] + [4096 + 4 * k for k in range(11)]
    start = data.draw(st.sampled_from([s for s in starts if s + 4 <= len(content)]))
    content[start : start + 4] = struct.pack("<I", word)
    read(folder / name, bytes(content))


@pytest.mark.parametrize(
    "start", [b"", b"ply\n", b"ply\nformat ascii 1.0\n", b"NGSP", b"\x1f\x8b\x08", b"PK\x03\x04", b"{", b"glTF\2\0\0\0"]
)
@pytest.mark.parametrize(
    "name", ["file.ply", "file.splat", "file.spz", "file.ksplat", "file.sog", "file.gltf", "meta.json", "file"]
)
@settings(FUZZ, max_examples=8)
@given(rest=st.binary(max_size=6000))
def test_noise(folder, name, start, rest):
    read(folder / name, start + rest)


HEADER_LINES = [
    *("format ascii 1.0", "format binary_little_endian 1.0", "element chunk 1", "element vertex 3"),
    *(
        "element vertex -1",
        "element vertex 99999999999999999999",
        "element",
        "end_header",
        "",
        "\xe9",
        "comment c",
        "property quad x",
    ),
    *("property list uchar int x", "property float x", "property float y", "property float z", "property float min_x"),
    *("property uint packed_position", "property uint packed_rotation", "property uint packed_scale"),
    *("property uint packed_color", "property float f_dc_0", "property float scale_0", "property float rot_0"),
]


@FUZZ
@given(lines=st.lists(st.sampled_from(HEADER_LINES), max_size=14), body=st.binary(max_size=200))
def test_ply_headers_of_any_lines(folder, lines, body):
    read(folder / "lines.ply", "\n".join(["ply", *lines, "end_header", ""]).encode("latin1") + body)


def meta_variants() -> list[object]:
    whole = json.loads(sog_files(cloud(count=40), 2)["meta.json"])
    variants: list[object] = [None, [], 7, {}, {"version": 3}]
    variants += [{"version": 2, "count": -4}, {"version": 2, "count": True}]
    for entry in ("means", "scales", "quats", "sh0", "shN", "count"):
        for value in (None, 0, "x", [], {}, 10**30, {"files": ["../secret"]}, {"files": [3]}, {"mins": [None] * 3}):
            variants.append({**whole, entry: value})
    for name in ("means.mins", "means.maxs", "scales.codebook", "shN.bands", "shN.count"):
        entry, key = name.split(".")
        for value in (None, 4, [1e400] * 256, [10**400] * 256, ["1"] * 256, [0.0], {"a": 1}):
            variants.append({**whole, entry: {**whole[entry], key: value}})
    return variants


@pytest.mark.parametrize("bundled", [True, False])
def test_sog_descriptions_of_any_content(folder, bundled):
    files = sog_files(cloud(count=40), 2)
    loose = folder / "loose"
    loose.mkdir(exist_ok=True)
    for name, content in files.items():
        (loose / name).write_bytes(content)
    for meta in meta_variants():
        # JSON has no infinity; a number that is too large reads as one.
        text = json.dumps(meta).replace("Infinity", "1e400").encode()
        if bundled:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as bundle:
                for name, content in {**files, "meta.json": text}.items():
                    bundle.writestr(name, content)
            read(folder / "any.sog", buffer.getvalue())
        else:
            read(loose / "meta.json", text)


def test_sog_files_outside_of_the_folder_are_not_opened(folder):
    files = sog_files(cloud(count=40), 2)
    (folder / "inside").mkdir()
    (folder / "outside.webp").write_bytes(files["quats.webp"])
    meta = json.loads(files["meta.json"])
    meta["quats"]["files"] = ["../outside.webp"]
    for name, content in {**files, "meta.json": json.dumps(meta).encode()}.items():
        (folder / "inside" / name).write_bytes(content)
    with pytest.raises(
        InvalidArgument, match=r"expected the name of a file in the same folder, got '\.\./outside\.webp'"
    ):
        read_scene(folder / "inside")
