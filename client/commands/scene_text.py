"""The text of `lumigrad info FILE`: what a scene file holds, in words and with units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lumigrad.client.base.counts import counted
from lumigrad.client.formats.beside import offset_text
from lumigrad.client.formats.save import ORDERS
from lumigrad.client.formats.scene import SRGB


def scene_text(described: Mapping[str, Any]) -> str:
    """Returns the description of a file as aligned lines.

    Args:
        described: the values that `lumigrad info FILE --json` prints.
    """
    details = dict(described.get("details", {}))
    rows = {"file": described["file"]}
    if "bytes" in described:
        rows["size"] = counted(described["bytes"], "bytes")
    rows |= _format_rows(details)
    kind = "Gaussians" if described["kind"] == "gaussians" else "spheres"
    rows["content"] = counted(described["count"], kind)
    if described.get("not_finite"):
        rows["left out"] = f"{counted(described['not_finite'], kind)} with values that are not finite"
    if "low" in described:
        rows["bounds" if "pages" in details else "centres"] = _box_text(described["low"], described["high"])
    if described.get("precision"):
        rows["precision"] = described["precision"]
    if "offset" in described:
        rows["coordinates"] = offset_text(described["offset"])
    if "sh_degree" in described:
        rows |= _gaussian_rows(described)
    rows |= _detail_rows(details)
    return "\n".join([aligned(rows), *_loss_lines(described.get("would_lose", {}))])


def aligned(rows: Mapping[str, Any]) -> str:
    """Returns lines of labels and values; the values start in one column.

    Args:
        rows: values by label.
    """
    width = max(13, *(len(label) + 2 for label in rows))
    return "\n".join(f"{label:<{width}}{value}" for label, value in rows.items())


def _format_rows(details: dict[str, Any]) -> dict[str, str]:
    """Returns the format with its version or compression, and removes these from the details."""
    if "format" not in details:
        return {}
    text = str(details.pop("format"))
    for name, label in (("version", "version"), ("compression_level", "compression level")):
        if name in details:
            text += f", {label} {details.pop(name)}"
    return {"format": text}


def _gaussian_rows(described: Mapping[str, Any]) -> dict[str, str]:
    degree = described["sh_degree"]
    return {
        "harmonics": f"degree {degree}" if degree else "none (one colour for all directions)",
        "colours": "sRGB" if described["color_space"] == SRGB else "linear light, Rec. 709 primaries",
        "antialiasing": "the file was trained with it" if described["antialiased"] else "not recorded",
    }


def _detail_rows(details: dict[str, Any]) -> dict[str, str]:
    """Returns rows for all other details; those without a label of their own keep their name, in words."""
    rows = {}
    if "sorting" in details:
        methods = str(details.pop("sorting")).split(", ")
        rows["drawing order"] = ", ".join(ORDERS.get(method, method) for method in methods)
    if "up_axis" in details:
        rows["up axis"] = str(details.pop("up_axis")).lower()
    if "meters_per_unit" in details:
        default = ", the default of USD: the file states none" if details.pop("unit_is_default", False) else ""
        rows["scene unit"] = f"{details.pop('meters_per_unit'):g} m{default}"
    if "lod" in details:
        level, levels = details.pop("lod"), details.pop("lods")
        rows["detail"] = f"level {level} of 0 to {levels - 1}, where 0 is the finest"
    if "pages" in details:
        counts = ", ".join(f"{count:,}" for count in details.pop("level_counts"))
        rows["levels"] = f"{counts} Gaussians in {counted(details.pop('pages'), 'pages')}"
    return rows | {name.replace("_", " "): str(value) for name, value in details.items()}


def _box_text(low: list[float], high: list[float]) -> str:
    sides = (f"{axis} {least:g} to {most:g}" for axis, least, most in zip("xyz", low, high, strict=True))
    return f"{', '.join(sides)} scene units"


def _loss_lines(lost_by_suffix: Mapping[str, list[str]]) -> list[str]:
    """Returns what each format would lose, with one line for all formats that lose the same."""
    groups: dict[str, list[str]] = {}
    for suffix, lost in lost_by_suffix.items():
        groups.setdefault("; ".join(lost) or "loses nothing", []).append(suffix)
    if not groups:
        return []
    width = max((len(", ".join(suffixes)) for suffixes in groups.values() if len(suffixes) < 3), default=0)
    lines = [f"  {', '.join(suffixes):<{width}}  {lost}" for lost, suffixes in groups.items()]
    return ["", "what lumigrad convert would lose in each format:", *lines]
