"""Checks of the elements of a URDF file that its parser reads in part or in another way than they are meant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from os import fspath
from pathlib import Path
from typing import Any

from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.source import shortened
from lumigrad.client.robots.chain import SLACK

_LONGEST_DESCRIPTION = 300
# Elements that a joint and a collision have once at most.
_ONCE = {
    "joint": ("origin", "parent", "child", "axis", "limit", "mimic"),
    "collision": ("origin", "geometry"),
}
# Attributes with three numbers each.
_ATTRIBUTES = {"origin": ("xyz", "rpy"), "axis": ("xyz",)}
# Limits of revolute joints beyond the first are probably degrees; those beyond the second stand for no limit.
_MANY_RADIANS, _MOST_DEGREES = 30.0, 720.0


def malformed(path: Path, description: str) -> InvalidArgument:
    """Returns the error for an invalid URDF; shortened, because libraries' messages can be long."""
    return InvalidArgument.of("urdf", f"{fspath(path)}: {description[:_LONGEST_DESCRIPTION]}")


def check_elements(path: Path, root: Any) -> None:
    """Raises InvalidArgument for what the parser would leave out: second elements, other attributes and numbers."""
    for owner in _owners(root):
        where = f"joint {owner.get('name')!r}" if owner.tag == "joint" else f"collision of {_name(owner)!r}"
        counts = Counter(child.tag for child in owner.iterchildren())
        if twice := next((tag for tag in _ONCE[owner.tag] if counts[tag] > 1), None):
            raise malformed(path, f"{where}: expected one <{twice}>, got {counts[twice]}")
        for geometry in owner.iterchildren("geometry"):
            shapes = [shape.tag for shape in geometry.iterchildren("{*}*")]
            if len(shapes) > 1:
                text = f"expected one shape in <geometry>, got {', '.join(shapes)}"
                raise malformed(path, f"{where}: {text}; write a <collision> for each")
        for child in owner.iterchildren(*_ATTRIBUTES):
            _check_attributes(path, child, where)


def _owners(root: Any) -> Iterator[Any]:
    """Yields joints and collisions; not those that <gazebo> and other extensions have in formats of their own."""
    yield from root.iterchildren("joint")
    yield from root.iterfind("link/collision")


def _check_attributes(path: Path, element: Any, where: str) -> None:
    known, given = _ATTRIBUTES[element.tag], dict(element.attrib)
    # Axes of many files have angles, mostly 0, which no reader applies.
    angles = given.pop("rpy", "") if element.tag == "axis" else ""
    if any(_numbers(angles)):
        text = f"expected none or zeros, got {shortened(angles)}, which is ignored; turn xyz instead"
        warn_caller(f"{path}: rpy of <axis> in {where}: {text}")
    if other := next((name for name in given if name not in known), None):
        text = f"expected the attributes {' and '.join(known)} alone, got {other}"
        raise malformed(path, f"<{element.tag}> in {where}: {text}, which is not supported")
    for name, text in given.items():
        # The parser repeats a single number, and drops those beyond the third.
        if len(text.split()) != 3:
            raise malformed(path, f"{name} of <{element.tag}> in {where}: expected three numbers, got {text}")


def warn_of_degrees(path: Path, root: Any) -> None:
    """Warns of angles beyond a turn, and limits beyond several, which are probably degrees."""
    for owner in _owners(root):
        for angles in (origin.get("rpy", "") for origin in owner.iterchildren("origin")):
            if any(abs(angle) > math.tau + SLACK for angle in _numbers(angles)):
                text = f"expected radians, got beyond a turn: {shortened(angles)}; are they degrees?"
                warn_caller(f"{path}: rpy of the origin in {owner.tag} of {_name(owner)!r}: {text}")
    for limit in root.iterfind("joint[@type='revolute']/limit"):
        ends = [limit.get(name, "0") for name in ("lower", "upper")]
        found = _numbers(" ".join(ends))
        if any(abs(end) > _MANY_RADIANS for end in found) and all(abs(end) <= _MOST_DEGREES for end in found):
            text = f"expected radians, got {ends[0]} to {ends[1]}; are they degrees?"
            warn_caller(f"{path}: limits of {limit.getparent().get('name')!r}: {text}")


def _name(owner: Any) -> str | None:
    """Returns the name of a joint, or of a collision's link."""
    named = owner if owner.tag == "joint" else owner.getparent()
    name: str | None = named.get("name")
    return name


def _numbers(text: str) -> list[float]:
    """Returns the numbers in a text; none if it has other words, which the parser refuses."""
    try:
        return [float(word) for word in text.split()]
    except ValueError:
        return []
