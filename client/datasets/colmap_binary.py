"""COLMAP's files cameras.bin, images.bin and points3D.bin: little-endian records after their count."""

from __future__ import annotations

import struct
from pathlib import Path, PurePosixPath

import numpy as np

from lumigrad.client.datasets.files import portable
from lumigrad.client.datasets.points import LARGEST_POSITION, Points
from lumigrad.client.datasets.view import PARAMETERS, READABLE, ColmapImage, Intrinsics, Track
from lumigrad.client.formats.source import Source

# Camera models by id.
_MODELS = (
    *("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE", "FULL_OPENCV", "FOV"),
    *("SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "THIN_PRISM_FISHEYE", "RAD_TAN_THIN_PRISM_FISHEYE"),
    *("SIMPLE_DIVISION", "DIVISION", "SIMPLE_FISHEYE", "FISHEYE", "EUCM", "EQUIRECTANGULAR"),
)
_CAMERA, _IMAGE, _POINT = struct.Struct("<iiQQ"), struct.Struct("<i7di"), struct.Struct("<Q3d3BdQ")
_POINT_2D_BYTES, _TRACK_BYTES = 24, 8


def read_cameras(path: Path) -> dict[int, Intrinsics]:
    """Reads the cameras by their ids."""
    source = Source.open(path)
    offset = 8
    cameras: dict[int, Intrinsics] = {}
    for _ in range(_count(source, _CAMERA.size)):
        camera_id, number, width, height = _CAMERA.unpack(source.take(offset, _CAMERA.size, "a camera"))
        model = _MODELS[number] if 0 <= number < len(_MODELS) else f"number {number}"
        if model not in PARAMETERS:
            raise source.fail(f"camera {camera_id} at byte {offset:,}: expected one of {READABLE}, got model {model}")
        if camera_id in cameras:
            raise source.fail(f"expected each camera once, got a second one with the id {camera_id} at byte {offset:,}")
        offset += _CAMERA.size
        names = PARAMETERS[model]
        values = source.unpack(f"{len(names)}d", offset, f"parameters of camera {camera_id}")
        offset += 8 * len(names)
        cameras[camera_id] = Intrinsics(model, width, height, dict(zip(names, values, strict=True)))
    _check_end(source, offset)
    return cameras


def count_images(path: Path) -> int:
    """Returns the number of images that the file announces."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def read_images(path: Path) -> list[ColmapImage]:
    """Reads the images in the file's order."""
    source = Source.open(path)
    offset = 8
    images = []
    for _ in range(_count(source, _IMAGE.size + 1 + 8)):
        image_id, w, x, y, z, *translation, camera_id = _IMAGE.unpack(source.take(offset, _IMAGE.size, "an image"))
        offset += _IMAGE.size
        end = source.data.find(b"\0", offset)
        if end < 0:
            raise source.fail(f"expected the name of an image at byte {offset:,}, but it does not end")
        name = source.data[offset:end].decode("utf-8", "replace")
        if not PurePosixPath(portable(name)).name:
            raise source.fail(f"image {image_id}: expected the name of its photograph, got {name!r}")
        (count,) = source.unpack("Q", end + 1, "number of points")
        offset = end + 9
        source.take(offset, _POINT_2D_BYTES * count, f"points of image {name}")
        offset += _POINT_2D_BYTES * count
        images.append(ColmapImage(name, image_id, camera_id, (w, x, y, z), np.array(translation)))
    _check_end(source, offset)
    return images


def read_points(path: Path) -> Points:
    """Reads the points with their colours."""
    source = Source.open(path)
    count = _count(source, _POINT.size)
    positions, colors = np.empty((count, 3)), np.empty((count, 3))
    offset = 8
    for row in range(count):
        point_id, *place_and_color, _, track = _POINT.unpack(source.take(offset, _POINT.size, "a point"))
        if not all(abs(value) <= LARGEST_POSITION for value in place_and_color[:3]):
            raise source.fail(
                f"point {point_id}: expected a finite position of at most {LARGEST_POSITION:.4g}, "
                f"got {place_and_color[:3]}"
            )
        positions[row], colors[row] = place_and_color[:3], place_and_color[3:]
        offset += _POINT.size + _TRACK_BYTES * track
    _check_end(source, offset)
    return Points(positions, colors / 255.0)


def read_tracks(path: Path, most: int) -> list[Track]:
    """Reads evenly sampled points, and the ids of the images that see each; see `Track`."""
    source = Source.open(path)
    count = _count(source, _POINT.size)
    tracks, offset, step = [], 8, max(1, -(-count // most))
    for row in range(count):
        _, x, y, z, *_, length = _POINT.unpack(source.take(offset, _POINT.size, "a point"))
        offset += _POINT.size
        if row % step == 0:
            pairs = np.frombuffer(source.take(offset, _TRACK_BYTES * length, "a track"), "<i4")
            tracks.append(Track(np.array([x, y, z]), pairs[::2].astype(np.int64)))
        offset += _TRACK_BYTES * length
    return tracks


def _count(source: Source, least_bytes: int) -> int:
    """Returns the number of records, which must fit into the file."""
    (count,) = source.unpack("Q", 0, "number of records")
    source.take(8, count * least_bytes, f"{count:,} records")
    return int(count)


def _check_end(source: Source, offset: int) -> None:
    """Raises InvalidArgument if a file continues after the records that its first bytes announce."""
    if offset != len(source):
        (count,) = source.unpack("Q", 0, "number of records")
        rest = len(source) - offset
        raise source.fail(
            f"expected the end of the file at byte {offset:,}, behind its {count:,} records, got {rest:,} more"
        )
