"""Damaged scene files: whatever the bytes, a scene or the typed error comes back, soon and in little memory."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import StoredScene, read_scene
from lumigrad.client.formats.splat import write_splat
from lumigrad.client.formats.spz import write_spz
from support.gaussian_files import cloud, sog_files, spz_content, webp, write_compressed_ply, write_ksplat, write_sog

pytestmark = pytest.mark.filterwarnings("error")

FORMATS = ("scene.ply", "text.ply", "scene.compressed.ply", "scene.splat", "scene.spz", "old.spz", "raw.spz")
FORMATS += ("scene.ksplat", "scene.sog")
# The same examples in every run, and each within seconds.
FUZZ = settings(
    max_examples=120, deadline=5000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@cache
def good(name: str, folder: Path) -> bytes:
    """The bytes of a small file of a format."""
    made, path = cloud(count=40, degree=1), folder / "good" / name
    path.parent.mkdir(exist_ok=True)
    Gaussians(made.means, made.quats, made.scales, made.opacities, sh=made.sh).save(folder / "good" / "whole.ply")
    scene = read_scene(folder / "good" / "whole.ply")
    writers: dict[str, Callable[[], object]] = {
        "scene.ply": lambda: Gaussians.load(folder / "good" / "whole.ply").save(path),
        "text.ply": lambda: path.write_bytes(in_text((folder / "good" / "whole.ply").read_bytes())),
        "scene.compressed.ply": lambda: write_compressed_ply(path, made),
        "scene.splat": lambda: write_splat(scene, path),
        "scene.spz": lambda: write_spz(scene, path),
        "old.spz": lambda: path.write_bytes(gzip.compress(spz_content(made, 2))),
        "raw.spz": lambda: path.write_bytes(spz_content(made, 3)),
        "scene.ksplat": lambda: write_ksplat(path, [made, made], 2, capacity=16),
        "scene.sog": lambda: write_sog(path, made),
    }
    writers[name]()
    return path.read_bytes()


def in_text(binary: bytes) -> bytes:
    """A binary PLY file of floats as text."""
    header, end, body = binary.partition(b"end_header\n")
    width = header.count(b"property float")
    rows = np.frombuffer(body, "<f4").reshape(-1, width)
    text = "\n".join(" ".join(f"{value:.9g}" for value in row) for row in rows)
    return header.replace(b"binary_little_endian", b"ascii") + end + text.encode()


def read(path: Path, content: bytes) -> StoredScene | None:
    """The scene, or None if the file was refused as it should be; anything else that is raised fails the test."""
    path.write_bytes(content)
    try:
        scene = read_scene(path, skip_invalid=True)
    except InvalidArgument as error:
        assert str(error).startswith(f"path: {path}: ")
        assert len(str(error)) < 1000
        return None
    scene.gaussians()
    return scene


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
    # Without a header any multiple of 32 bytes is a file; a text may lose digits of its last number.
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
        # Most of the places in the header, where they hurt.
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
    "start", [b"", b"ply\n", b"ply\nformat ascii 1.0\n", b"NGSP", b"\x1f\x8b\x08", b"PK\x03\x04", b"{"]
)
@pytest.mark.parametrize("name", ["file.ply", "file.splat", "file.spz", "file.ksplat", "file.sog", "meta.json", "file"])
@settings(FUZZ, max_examples=15)
@given(rest=st.binary(max_size=6000))
def test_noise(folder, name, start, rest):
    read(folder / name, start + rest)


HEADER_LINES = [
    *(
        "format ascii 1.0",
        "format binary_little_endian 1.0",
        "element chunk 1",
        "element vertex 3",
        "element vertex -1",
    ),
    *("element vertex 99999999999999999999", "element", "end_header", "", "\xe9", "comment c", "property quad x"),
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
    variants: list[object] = [
        None,
        [],
        7,
        {},
        {"version": 3},
        {"version": 2, "count": -4},
        {"version": 2, "count": True},
    ]
    for entry in ("means", "scales", "quats", "sh0", "shN", "count"):
        for value in (None, 0, "x", [], {}, 10**30, {"files": ["../secret"]}, {"files": [3]}, {"mins": [None] * 3}):
            variants.append({**whole, entry: value})
    for entry, key in (
        ("means", "mins"),
        ("means", "maxs"),
        ("scales", "codebook"),
        ("shN", "bands"),
        ("shN", "count"),
    ):
        for value in (None, 4, [1e400] * 256, [10**400] * 256, ["1"] * 256, [0.0], {"a": 1}):
            variants.append({**whole, entry: {**whole[entry], key: value}})
    return variants


@pytest.mark.parametrize("bundled", [True, False])
def test_sog_descriptions_of_any_content(folder, bundled):
    files = sog_files(cloud(count=40), 2)
    loose = folder / "loose"
    loose.mkdir(exist_ok=True)
    for meta in meta_variants():
        # JSON by hand for numbers that the standard does not know.
        text = json.dumps(meta).replace("Infinity", "1e400").encode()
        if bundled:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as bundle:
                for name, content in {**files, "meta.json": text}.items():
                    bundle.writestr(name, content)
            read(folder / "any.sog", buffer.getvalue())
            continue
        for name, content in files.items():
            (loose / name).write_bytes(content)
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


def bomb_gzip() -> bytes:
    """200 MB of zeros behind a header that asks for them."""
    count = 10**7
    return gzip.compress(struct.pack("<4sIIBBBB", b"NGSP", 3, count, 0, 12, 0, 0) + bytes(20 * count), 9)[:100_000]


def bomb_zstandard() -> bytes:
    import zstandard

    streams = [zstandard.compress(bytes(400 << 20), 1)] * 5
    sizes = [4 * 9, 4, 12, 12, 16]
    table = b"".join(struct.pack("<QQ", len(s), size) for s, size in zip(streams, sizes, strict=True))
    return struct.pack("<4sIIBBBBI12x", b"NGSP", 4, 4, 0, 12, 0, 5, 32) + table + b"".join(streams)


def bomb_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("meta.json", b" " * (400 << 20))
    return buffer.getvalue()


def bomb_pictures() -> bytes:
    """Pictures of 64 million pixels each, and a count to go with them."""
    files = sog_files(cloud(count=40, degree=0), 2)
    meta = json.loads(files["meta.json"])
    meta["count"] = 8000 * 8000
    picture = webp(np.zeros((8000, 8000, 4), np.uint8))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name in files:
            bundle.writestr(name, json.dumps(meta) if name == "meta.json" else picture)
    return buffer.getvalue()


BOMBS = {"gzip.spz": bomb_gzip, "zstandard.spz": bomb_zstandard, "zip.sog": bomb_zip, "pictures.sog": bomb_pictures}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_do_not_go_off(folder, name):
    content = BOMBS[name]()
    tracemalloc.start()
    try:
        assert read(folder / name, content) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


ANNOUNCED = {
    "text.ply": lambda content: content.replace(b"element vertex 40", b"element vertex 4000000000"),
    "scene.ply": lambda content: content.replace(b"element vertex 40", b"element vertex 4000000000"),
    "scene.spz": lambda content: content[:8] + struct.pack("<I", 0xFFFFFFFF) + content[12:],
    "raw.spz": lambda content: content[:8] + struct.pack("<I", 0xFFFFFFFF) + content[12:],
    "scene.ksplat": lambda content: content[:4096] + struct.pack("<II", *[0xFFFFFFFF] * 2) + content[4104:],
}


@pytest.mark.parametrize("name", ANNOUNCED)
def test_announced_counts_are_checked_before_memory_is_taken(folder, name):
    content = ANNOUNCED[name](good(name, folder))
    tracemalloc.start()
    try:
        assert read(folder / name, content) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


MESSAGES = [
    ("scene.ply", lambda c: c[:-1], r"expected at least 4,\d+ bytes behind the header for 40 vertex; there are 4,\d+"),
    ("scene.splat", lambda c: c[:-1], r"expected a \.splat file, a multiple of 32 bytes long, got 1,279 bytes"),
    ("scene.spz", lambda c: c[:40], r"expected 96 bytes of table of streams at byte 32, but there are only 8 left"),
    ("raw.spz", lambda c: c[:100], r"expected 360 bytes of positions at byte 16, but there are only 84 left"),
    ("old.spz", lambda c: c[:-20], r"expected a whole gzip stream"),
    ("scene.ksplat", lambda c: c[:-1], r"expected \d,\d+ bytes of records at byte \d,\d+, but there are only"),
    ("scene.sog", lambda c: c[:-1], r"expected a zip file: File is not a zip file"),
    ("scene.spz", lambda c: c[:4] + b"\x09" + c[5:], r"expected \.spz version 1 to 4 at byte 4, got 9"),
    ("scene.ply", lambda c: c.replace(b"rot_3", b"rat_3"), r"expected the vertex properties rot_3 as well"),
    (
        "scene.ply",
        lambda c: c.replace(b"float x", b"floot x"),
        r"expected \"property TYPE NAME\" .* got 'property floot x'",
    ),
]


@pytest.mark.parametrize(("name", "damage", "said"), MESSAGES)
def test_errors_name_file_and_place(folder, name, damage, said):
    path = folder / name
    path.write_bytes(damage(good(name, folder)))
    with pytest.raises(InvalidArgument, match="^path: " + re.escape(str(path)) + ": .*" + said):
        read_scene(path)


def test_absent_files_are_absent(tmp_path):
    for name in ("scene.ply", "scene.spz", "meta.json"):
        with pytest.raises(FileNotFoundError):
            read_scene(tmp_path / name)
    with pytest.raises(InvalidArgument, match=r"expected a file, or a folder with a meta\.json"):
        read_scene(tmp_path)
