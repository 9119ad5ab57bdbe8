"""Niantic's .spz files of every version: as written here, and as others write them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import load_gaussians, read_scene, save_gaussians
from lumigrad.client.formats.spz import write_spz
from support.gaussians.clouds import Cloud, assert_close, cloud, gaussians_of
from support.gaussians.files import spz_content


def test_version_4_in_a_gzip_stream_is_called_compressed(tmp_path: Path):
    gaussians_of(cloud(count=3)).save(tmp_path / "scene.spz")
    (tmp_path / "packed.spz").write_bytes(gzip.compress((tmp_path / "scene.spz").read_bytes()))
    with pytest.raises(InvalidArgument, match=r"expected an unpacked file: `gunzip < \S+packed\.spz > NEW` unpacks it"):
        read_scene(tmp_path / "packed.spz")


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("degree", range(5))
def test_spz_as_written(tmp_path, version, degree):
    made = cloud(degree=degree)
    scene = read_scene_of(made, tmp_path)
    write_spz(scene, tmp_path / "scene.spz", version=version, harmonics_bits=(8, 8))
    read = read_scene(tmp_path / "scene.spz")
    assert (read.degree, len(read)) == (degree, len(made))
    assert_close(
        read.gaussians(), made, means=0.5 / 4096 + 1e-6, scales=0.04, opacity=0.5 / 255 + 1e-6, sh=0.0131, angle=0.01
    )
    # A scene that was read is written back byte for byte.
    write_spz(read, tmp_path / "again.spz", version=version, harmonics_bits=(8, 8))
    assert (tmp_path / "again.spz").read_bytes() == (tmp_path / "scene.spz").read_bytes()


def read_scene_of(made: Cloud, folder: Path):
    gaussians_of(made).save(folder / "made.ply")
    return read_scene(folder / "made.ply")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("packed", [True, False])
def test_spz_of_earlier_versions(tmp_path, version, packed):
    made = cloud(degree=3)
    content = spz_content(made, version)
    (tmp_path / "scene.spz").write_bytes(gzip.compress(content) if packed else content)
    bounds = {"means": 0.01 if version == 1 else 2e-4, "angle": 0.2 if version < 3 else 0.01}
    read = Gaussians.load(tmp_path / "scene.spz")
    assert_close(read, made, scales=0.04, opacity=0.5 / 255 + 1e-6, sh=0.0131, **bounds)


def test_spz_default_keeps_few_bits_of_harmonics(tmp_path):
    made = cloud(degree=3)
    save_gaussians(gaussians_of(made), tmp_path / "scene.spz", antialiased=True)
    read = read_scene(tmp_path / "scene.spz")
    assert read.antialiased
    assert np.abs(read.sh[:, 1:4] - made.sh[:, 1:4]).max() == pytest.approx(1 / 32, abs=0.001)
    assert np.abs(read.sh[:, 4:] - made.sh[:, 4:]).max() == pytest.approx(1 / 16, abs=0.001)


def test_spz_positions_are_fine_in_small_scenes_and_fit_in_large_ones(tmp_path):
    for size in (1e-3, 1.0, 1e4, 1e6):
        made = cloud(count=50)
        made.means = np.linspace(-size, size, 150).reshape(50, 3)
        gaussians_of(made).save(tmp_path / "scene.spz")
        read = Gaussians.load(tmp_path / "scene.spz")
        assert np.abs(read.means - made.means).max() < 3e-4 * size


@pytest.mark.parametrize(("number", "signs"), [(4, (1, -1, -1)), (6, (1, 1, 1)), (1, (-1, 1, -1))])
def test_spz_axes_that_an_extension_names(tmp_path, number, signs):
    made = cloud(count=5, degree=0)
    write_spz(read_scene_of(made, tmp_path), tmp_path / "scene.spz")
    content = bytearray((tmp_path / "scene.spz").read_bytes())
    content[14] |= 2
    extensions = struct.pack("<II3s", 0x12340001, 3, b"abc") + struct.pack("<III", 0xADBE0003, 4, number)
    struct.pack_into("<I", content, 16, 32 + len(extensions))
    (tmp_path / "other.spz").write_bytes(content[:32] + extensions + content[32:])
    # The stored numbers are in right, up, back.
    expected = made.means * (1, -1, -1) * signs
    np.testing.assert_allclose(Gaussians.load(tmp_path / "other.spz").means, expected, atol=2e-4)


def test_spz_refuses_axes_it_cannot_turn_to(tmp_path):
    write_spz(read_scene_of(cloud(count=5), tmp_path), tmp_path / "scene.spz")
    content = bytearray((tmp_path / "scene.spz").read_bytes())
    content[14] |= 2
    struct.pack_into("<I", content, 16, 44)
    (tmp_path / "scene.spz").write_bytes(content[:32] + struct.pack("<III", 0xADBE0003, 4, 12) + content[32:])
    with pytest.raises(InvalidArgument, match=r"scene\.spz: extensions: expected axes numbered 1 .* got 12"):
        Gaussians.load(tmp_path / "scene.spz")


def test_zstandard_streams_need_not_state_their_size(tmp_path):
    made = cloud(count=20)
    write_spz(read_scene_of(made, tmp_path), tmp_path / "scene.spz")
    content = (tmp_path / "scene.spz").read_bytes()
    count = content[15]
    streams, offset, table = [], 32 + 16 * count, []
    for k in range(count):
        stored, size = struct.unpack_from("<QQ", content, 32 + 16 * k)
        plain = zstandard.ZstdDecompressor().decompress(content[offset : offset + stored])
        streams.append(zstandard.ZstdCompressor(write_content_size=False).compress(plain))
        table.append(struct.pack("<QQ", len(streams[-1]), size))
        offset += stored
    (tmp_path / "other.spz").write_bytes(content[:32] + b"".join(table) + b"".join(streams))
    first, second = (load_gaussians(tmp_path / name) for name in ("scene.spz", "other.spz"))
    np.testing.assert_array_equal(first.means, second.means)


def test_spz_refuses_positions_that_do_not_fit(tmp_path):
    for farthest in (8388608.0, np.inf, np.nan):
        made = cloud(count=5)
        made.means[3, 1] = farthest
        with pytest.raises(InvalidArgument, match=r"scene\.spz: expected positions within 8,388,607 scene units of 0"):
            gaussians_of(made).save(tmp_path / "scene.spz")
    assert not (tmp_path / "scene.spz").exists()
