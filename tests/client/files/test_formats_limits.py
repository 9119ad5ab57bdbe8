"""Scene files that announce more than they hold, hold more than they announce, or end too early."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

from lumigrad.client import InvalidArgument
from lumigrad.client.formats import read_scene
from support.files.scene_files import good, read
from support.gaussians.clouds import cloud
from support.gaussians.files import sog_files, webp

# Damage may move Gaussians far away, which is warned about.
pytestmark = pytest.mark.filterwarnings("error", "ignore::lumigrad.client.errors.PrecisionWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def bomb_gzip() -> bytes:
    """200 MB of zeros behind a header that asks for them."""
    count = 10**7
    return gzip.compress(struct.pack("<4sIIBBBB", b"NGSP", 3, count, 0, 12, 0, 0) + bytes(20 * count), 9)[:100_000]


def bomb_zstandard() -> bytes:
    streams = [zstandard.compress(bytes(128 << 20), 1)] * 5
    sizes = [4 * 9, 4, 12, 12, 16]
    table = b"".join(struct.pack("<QQ", len(s), size) for s, size in zip(streams, sizes, strict=True))
    return struct.pack("<4sIIBBBBI12x", b"NGSP", 4, 4, 0, 12, 0, 5, 32) + table + b"".join(streams)


def bomb_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("meta.json", b" " * (128 << 20))
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


def assert_refused_within(bytes_of_memory, path, content):
    tracemalloc.start()
    try:
        assert read(path, content) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bytes_of_memory


BOMBS = {"gzip.spz": bomb_gzip, "zstandard.spz": bomb_zstandard, "zip.sog": bomb_zip, "pictures.sog": bomb_pictures}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_do_not_go_off(folder, name):
    assert_refused_within(64 << 20, folder / name, BOMBS[name]())


ANNOUNCED = {
    "text.ply": lambda content: content.replace(b"element vertex 40", b"element vertex 4000000000"),
    "scene.ply": lambda content: content.replace(b"element vertex 40", b"element vertex 4000000000"),
    "scene.spz": lambda content: content[:8] + struct.pack("<I", 0xFFFFFFFF) + content[12:],
    "raw.spz": lambda content: content[:8] + struct.pack("<I", 0xFFFFFFFF) + content[12:],
    "scene.ksplat": lambda content: content[:4096] + struct.pack("<II", *[0xFFFFFFFF] * 2) + content[4104:],
}


@pytest.mark.parametrize("name", ANNOUNCED)
def test_announced_counts_are_checked_before_memory_is_taken(folder, name):
    assert_refused_within(8 << 20, folder / name, ANNOUNCED[name](good(name, folder)))


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


@pytest.mark.parametrize("header", [b"PK\x01\x02", b"PK\x03\x04"])
def test_members_whose_names_are_no_text_are_refused(folder, header):
    content = bytearray(good("scene.sog", folder))
    start = content.index(header)
    flags, name = (start + 8, start + 46) if header == b"PK\x01\x02" else (start + 6, start + 30)
    # The flag for UTF-8, and a byte that is not valid UTF-8.
    content[flags + 1] |= 0x08
    content[name] = 0xFF
    path = folder / "name.sog"
    path.write_bytes(content)
    with pytest.raises(
        InvalidArgument, match="^path: " + re.escape(str(path)) + ": expected a (zip file|whole member)"
    ):
        read_scene(path)


def test_absent_files_are_absent(tmp_path):
    for name in ("scene.ply", "scene.spz", "meta.json"):
        with pytest.raises(FileNotFoundError):
            read_scene(tmp_path / name)
    with pytest.raises(InvalidArgument, match=r"expected a file, or a folder with a meta\.json"):
        read_scene(tmp_path)
