"""COLMAP's files cameras.txt, images.txt and points3D.txt: one record per line; images have a second line of points."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from lumigrad.client.datasets.files import portable
from lumigrad.client.datasets.points import LARGEST_POSITION, Points
from lumigrad.client.datasets.view import PARAMETERS, READABLE, ColmapImage, Intrinsics, Track
from lumigrad.client.formats.source import malformed, shortened


def read_cameras(path: Path) -> dict[int, Intrinsics]:
    """Reads the cameras by their ids."""
    cameras: dict[int, Intrinsics] = {}
    for number, line in _records(path):
        words = line.split()
        model = words[1] if len(words) > 1 else ""
        if model not in PARAMETERS:
            raise malformed(path, f"line {number}: expected one of {READABLE}, got model {model!r}")
        names = PARAMETERS[model]
        try:
            camera_id, width, height = int(words[0]), int(words[2]), int(words[3])
            values = dict(zip(names, map(float, words[4:]), strict=True))
        except (ValueError, IndexError) as error:
            raise malformed(
                path, f"line {number}: expected ID {model} WIDTH HEIGHT {' '.join(names)}, got {line!r}"
            ) from error
        if camera_id in cameras:
            raise malformed(path, f"line {number}: expected each camera once, got a second one with the id {camera_id}")
        cameras[camera_id] = Intrinsics(model, width, height, values)
    return cameras


def count_images(path: Path) -> int:
    """Returns the number of images in the file."""
    return sum(1 for _ in _records(path, skip_after=True))


def read_images(path: Path) -> list[ColmapImage]:
    """Reads the images in the file's order."""
    images = []
    records = _records(path, skip_after=True)
    for number, line in records:
        words = line.split(maxsplit=9)
        try:
            w, x, y, z, *translation = map(float, words[1:8])
            images.append(ColmapImage(words[9], int(words[0]), int(words[8]), (w, x, y, z), np.array(translation)))
        except (ValueError, IndexError) as error:
            raise malformed(
                path, f"line {number}: expected ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, got {line!r}"
            ) from error
        if not PurePosixPath(portable(images[-1].name)).name:
            raise malformed(path, f"line {number}: expected the name of a photograph, got {images[-1].name!r}")
    return images


def read_points(path: Path) -> Points:
    """Reads the points with their colours."""
    rows = []
    for number, line in _records(path):
        try:
            values = [float(word) for word in line.split(maxsplit=7)[1:7]]
        except ValueError:
            values = []
        if len(values) != 6:
            raise malformed(path, f"line {number}: expected ID X Y Z R G B …, got {line!r}")
        if not all(abs(value) <= LARGEST_POSITION for value in values[:3]):
            raise malformed(
                path,
                f"line {number}: expected a finite position of at most {LARGEST_POSITION:.4g}, got {values[:3]}",
            )
        if not all(0 <= level <= 255 for level in values[3:]):
            raise malformed(path, f"line {number}: expected R G B from 0 to 255, got {values[3:]}")
        rows.append(values)
    table = np.array(rows).reshape(-1, 6)
    levels = table[:, 3:]
    # Some exporters write fractions.
    are_fractions = levels.max(initial=0) <= 1 and bool((levels % 1).any())
    return Points(table[:, :3], levels if are_fractions else levels / 255.0)


def read_tracks(path: Path, most: int) -> list[Track]:
    """Reads evenly sampled points, and the ids of the images that see each; see `Track`."""
    step = max(1, -(-sum(1 for _ in _records(path)) // most))
    chosen = (line.split() for row, (_, line) in enumerate(_records(path)) if row % step == 0)
    try:
        return [Track(np.array(words[1:4], float), np.array(words[8::2], np.int64)) for words in chosen]
    except (ValueError, OverflowError) as error:
        text = "expected lines of ID X Y Z R G B ERROR, and pairs of IMAGE_ID POINT2D_IDX"
        raise malformed(path, f"{text}: {error}") from error


def _records(path: Path, skip_after: bool = False) -> Iterator[tuple[int, str]]:
    """Yields lines with their numbers, without comments; `skip_after` also skips the line of points after each."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = enumerate(file, start=1)
        for number, line in lines:
            text = line.strip()
            if text and not text.startswith("#"):
                yield number, text
                if skip_after:
                    _check_points(path, *next(lines, (number + 1, "")))


# The longest line, in characters, of which all words are checked; no image's line is longer.
_LONGEST_IMAGE = 1000


def _check_points(path: Path, number: int, line: str) -> None:
    """Raises InvalidArgument unless a line lists the points of an image, X Y POINT3D_ID each, or is empty."""
    words = line.split() if len(line) <= _LONGEST_IMAGE else line.rsplit(maxsplit=1)[1:] * 3
    if words and (len(words) % 3 or not words[-1].lstrip("-").isdigit()):
        text = "expected the points of the image above, X Y POINT3D_ID each, or an empty line if it has none"
        raise malformed(path, f"line {number}: {text}, got {shortened(line.strip(), 80)!r}")
