"""URDF files, parsed by yourdfpy and checked: joints, and the shapes of links that count in collisions."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.extras import require
from lumigrad.client.nearby import nearby
from lumigrad.client.robots.joint import Joint, Mimic

_KINDS = ("fixed", "revolute", "continuous", "prismatic")
_LONGEST_DESCRIPTION = 300


@dataclass(frozen=True, eq=False)
class Urdf:
    """What a file says.

    Attributes:
        path: the file.
        links: names, in the order of the file.
        joints: in the order of the file.
        shapes: yourdfpy's collision elements of each link that has some.
    """

    path: Path
    links: tuple[str, ...]
    joints: tuple[Joint, ...]
    shapes: dict[str, tuple[Any, ...]]

    @staticmethod
    def read(path: str | PathLike[str]) -> Urdf:
        """Parses a file; meshes are not looked at.

        Raises:
            InvalidArgument: no URDF, or one that contradicts itself; names the file and the element.
        """
        path = Path(path)
        robot = _parse(path)
        links = tuple(link.name for link in robot.links)
        joints = tuple(_joint(path, joint, frozenset(links)) for joint in robot.joints)
        for what, names in (("link", links), ("joint", tuple(joint.name for joint in joints))):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise _malformed(path, f"expected {what}s with names that differ, {twice[0]!r} comes more than once")
        return Urdf(path, links, joints, {link.name: tuple(link.collisions) for link in robot.links if link.collisions})

    @property
    def root(self) -> str:
        """The link that no joint carries.

        Raises:
            InvalidArgument: there is none, or there are several.
        """
        children = {joint.child for joint in self.joints}
        roots = [name for name in self.links if name not in children]
        if len(roots) != 1:
            raise InvalidArgument.of(
                "base_link",
                f"expected one link that no joint carries in {self.path}, got {', '.join(roots) or 'none'}; "
                "pass base_link",
            )
        return roots[0]


def _malformed(path: Path, description: str) -> InvalidArgument:
    # What libraries say about a file can be long.
    return InvalidArgument.of("urdf", f"{fspath(path)}: {description[:_LONGEST_DESCRIPTION]}")


def _parse(path: Path) -> Any:
    """The robot as yourdfpy sees it."""
    yourdfpy = require("yourdfpy", "robot", "reading URDF files")
    etree = require("lxml.etree", "robot", "reading URDF files")
    content = path.read_bytes()
    try:
        # yourdfpy goes on with what it could read of a damaged file.
        etree.fromstring(content, etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError as error:
        raise _malformed(path, f"expected XML: {error}; expand xacro files first") from error
    try:
        urdf = yourdfpy.URDF.load(io.BytesIO(content), build_scene_graph=False, load_meshes=False)
    except Exception as error:  # Whatever its parser stumbles over: missing elements, words for numbers.
        raise _malformed(path, f"expected a URDF: {type(error).__name__}: {error}") from error
    if not urdf.robot.links:
        raise _malformed(path, "expected links, got none")
    return urdf.robot


def _joint(path: Path, joint: Any, links: frozenset[str]) -> Joint:
    def wrong(expected: str, value: Any) -> InvalidArgument:
        return _malformed(path, f"joint {joint.name!r}: expected {expected}, got {value!r}")

    if joint.type not in _KINDS:
        raise wrong(f"the type {', '.join(_KINDS[:-1])} or {_KINDS[-1]}", joint.type)
    for link in (joint.parent, joint.child):
        if link not in links:
            raise wrong("a link of the file as parent and child", link)
    origin = np.eye(4) if joint.origin is None else np.asarray(joint.origin, np.float64)
    if not np.isfinite(origin).all():
        raise wrong("a finite origin", origin.tolist())
    axis = np.asarray(joint.axis, np.float64)
    length = float(np.linalg.norm(axis)) if axis.shape == (3,) else math.nan
    if joint.type != "fixed":
        if not 0 < length < math.inf:
            raise wrong("an axis of three numbers with a length", axis.tolist())
        axis = axis / length
    mimic = None if joint.mimic is None else Mimic(joint.mimic.joint, joint.mimic.multiplier, joint.mimic.offset)
    return Joint(joint.name, joint.type, joint.parent, joint.child, origin, axis, _limits(joint), mimic)


def _limits(joint: Any) -> tuple[float, float]:
    """Without a <limit> none; one that lacks a number means 0, says the format."""
    if joint.limit is None or joint.type == "continuous":
        return -math.inf, math.inf
    return joint.limit.lower or 0.0, joint.limit.upper or 0.0


def resolved(path: Path, file: str) -> Path:
    """Where a file lies that a URDF names: beside it or above, packages being folders.

    Raises:
        InvalidArgument: nowhere.
    """
    named = Path(file.partition("://")[2] or file)
    # Packages are folders, with or without their own name.
    names = [named, Path(*named.parts[1:])] if file.startswith("package://") else [named]
    found = nearby(path, names)
    if found is None:
        raise _malformed(path, f"expected {file!r} in its folder or in one above; it is not there")
    return found
