"""The cameras.json that Inria's trainer writes beside a trained scene."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lumigrad.client.datasets.fields import Fields, checked_rotation, warn_of_lenses
from lumigrad.client.datasets.files import Files, unique_names
from lumigrad.client.datasets.view import Intrinsics, View
from lumigrad.client.formats.source import malformed


def read_cameras_json(path: Path, entries: Any, images: Path, sensors: bool) -> tuple[View, ...]:
    """Reads the views in the file's order. `position` is the camera's; the columns of `rotation` are its axes."""
    if not isinstance(entries, list) or not entries:
        raise malformed(path, f"expected a list of at least one camera, got {type(entries).__name__}")
    fields = [Fields(path, entry, f"[{index}]") for index, entry in enumerate(entries)]
    warn_of_lenses(path, fields)
    files, photographs = [entry.file_name("img_name") for entry in fields], Files(images)
    views = []
    for entry, name, file in zip(fields, unique_names(files), files, strict=True):
        rotation = checked_rotation(entry, "rotation", entry.array("rotation", (3, 3))).T
        values = {"fx": entry.number("fx"), "fy": entry.number("fy")}
        for axis, focal in values.items():
            if focal <= 0:
                raise entry.fail(axis, "a focal length in pixels > 0", focal)
        # Inria's trainer writes no principal point, which is the centre; trainers derived from it do.
        values |= {name: entry.number(name) for name in ("cx", "cy") if name in entry}
        lens = Intrinsics("PINHOLE", entry.pixels("width"), entry.pixels("height"), values)
        camera = lens.camera(rotation, -rotation @ entry.array("position", (3,)), sensors)
        views.append(View(name, camera, photographs.picture(file, moved=True), file=file))
    return tuple(views)
