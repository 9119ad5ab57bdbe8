"""Polycam's raw data: keyframes/ with a JSON file for each photograph. There are no points."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lumigrad.client.datasets.fields import Fields, opengl_pose, read_json, warn_of_lenses
from lumigrad.client.datasets.files import Files
from lumigrad.client.datasets.view import Intrinsics, View
from lumigrad.client.formats.source import malformed

# Poses that Polycam has refined are better than ARKit's.
_FOLDERS = (("corrected_cameras", "corrected_images"), ("cameras", "images"))


def find_keyframes(folder: Path) -> Path | None:
    """Finds the folder of the cameras in a data set's folder or its keyframes/; None if there is none."""
    places = [place / cameras for cameras, _ in _FOLDERS for place in (folder / "keyframes", folder)]
    return next((place for place in places if place.is_dir() and any(place.glob("*.json"))), None)


def read_keyframes(cameras: Path, images: Path | None, sensors: bool) -> tuple[View, ...]:
    """Reads the views, in the order of their names.

    Args:
        cameras: the folder of the JSON files.
        images: the folder of the photographs; None: the one beside that of the cameras.
        sensors: whether cameras are sensors.
    """
    folder = cameras.with_name(dict(_FOLDERS)[cameras.name]) if images is None else images
    photographs = Files(folder)
    files = sorted(cameras.glob("*.json"))
    entries = [Fields(file, read_json(file)) for file in files]
    warn_of_lenses(cameras, entries)
    return tuple(_view(file, fields, photographs, sensors) for file, fields in zip(files, entries, strict=True))


def _view(file: Path, fields: Fields, photographs: Files, sensors: bool) -> View:
    lens = Intrinsics(
        "PINHOLE",
        fields.pixels("width"),
        fields.pixels("height"),
        {name: fields.number(name) for name in ("fx", "fy", "cx", "cy")},
    )
    if min(lens.values["fx"], lens.values["fy"]) <= 0:
        raise malformed(file, f"expected focal lengths in pixels > 0, got {lens.values}")
    to_world = np.array([[fields.number(f"t_{row}{column}") for column in range(4)] for row in range(3)])
    camera = lens.camera(*opengl_pose(fields, "t_00 to t_22", to_world), sensors)
    return View(file.stem, camera, photographs.picture(file.stem), file=file.stem)
