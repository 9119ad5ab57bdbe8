"""URDF files: links, joints, and the meshes of links."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from lumigrad.client.base.arguments import file_path
from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.extras import require
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.mesh_files import scaled
from lumigrad.client.formats.world_files import SECTIONS, SUBDIVISIONS, nearby
from lumigrad.client.robots.chain import Joint, Mimic
from lumigrad.client.robots.urdf_elements import check_elements, malformed, warn_of_degrees
from lumigrad.client.values.mesh import Mesh

_KINDS = ("fixed", "revolute", "continuous", "prismatic")
# URL schemes of meshes.
_PACKAGES = ("package", "model")
_SCHEMES = ("", "file", *_PACKAGES)


@dataclass(frozen=True, eq=False)
class Urdf:
    """The content of a URDF file, in its order; `shapes` are yourdfpy's collision elements, by link."""

    path: Path
    links: tuple[str, ...]
    joints: tuple[Joint, ...]
    shapes: dict[str, tuple[Any, ...]]

    @staticmethod
    def read(path: str | PathLike[str]) -> Urdf:
        """Parses a file, without reading meshes.

        Raises:
            InvalidArgument: an invalid URDF; names the file and the element.
        """
        path = file_path("urdf", path)
        robot = _parse(path)
        links = tuple(link.name for link in robot.links)
        joints = tuple(_joint(path, joint, frozenset(links)) for joint in robot.joints)
        for what, names in (("link", links), ("joint", tuple(joint.name for joint in joints))):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise malformed(path, f"expected {what}s with unique names, {twice[0]!r} occurs more than once")
        return Urdf(path, links, joints, {link.name: tuple(link.collisions) for link in robot.links if link.collisions})

    @property
    def root(self) -> str:
        """The link without a parent.

        Raises:
            InvalidArgument: there is none, or there are several.
        """
        children = {joint.child for joint in self.joints}
        roots = [name for name in self.links if name not in children]
        if len(roots) != 1:
            raise InvalidArgument.of(
                "base_link",
                f"expected one link without a parent joint in {self.path}, got {', '.join(roots) or 'none'}; "
                "pass base_link",
            )
        return roots[0]


def _parse(path: Path) -> Any:
    """Parses the robot with yourdfpy."""
    yourdfpy = require("yourdfpy", "robot", "reading URDF files")
    etree = require("lxml.etree", "robot", "reading URDF files")
    content = path.read_bytes()
    try:
        # yourdfpy accepts damaged files partially.
        root = etree.fromstring(content, etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError as error:
        raise malformed(path, f"expected XML: {error}; expand xacro files first") from error
    if root.tag != "robot":
        raise malformed(path, f"expected a URDF, whose root is <robot>, got <{root.tag}>")
    if macro := next((each.tag for each in root.iter(etree.Element) if "xacro}" in each.tag), None):
        raise malformed(path, f"expected a URDF, got xacro's {macro.rpartition('}')[2]!r}; expand xacro files first")
    check_elements(path, root)
    warn_of_degrees(path, root)
    try:
        urdf = yourdfpy.URDF.load(io.BytesIO(content), build_scene_graph=False, load_meshes=False)
    except Exception as error:  # The parser raises various errors, as for missing elements and invalid numbers.
        raise malformed(path, f"expected a URDF: {type(error).__name__}: {error}") from error
    if not urdf.robot.links:
        raise malformed(path, "expected links, got none")
    return urdf.robot


def _joint(path: Path, joint: Any, links: frozenset[str]) -> Joint:
    def wrong(expected: str, value: Any) -> InvalidArgument:
        return malformed(path, f"joint {joint.name!r}: expected {expected}, got {value!r}")

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
            raise wrong("an axis of three numbers that are not all 0", axis.tolist())
        axis = axis / length
    limits = _limits(joint)
    if any(map(math.isnan, limits)):
        raise wrong("limits that are numbers", limits)
    mimic = None if joint.mimic is None else Mimic(joint.mimic.joint, joint.mimic.multiplier, joint.mimic.offset)
    if mimic is not None and not (math.isfinite(mimic.multiplier) and math.isfinite(mimic.offset)):
        raise wrong("a mimic with a finite multiplier and offset", (mimic.multiplier, mimic.offset))
    return Joint(joint.name, joint.type, joint.parent, joint.child, origin, axis, limits, mimic)


def _limits(joint: Any) -> tuple[float, float]:
    """Returns the limits of a joint; infinite without <limit>. A missing number means 0 in the format."""
    if joint.limit is None or joint.type == "continuous":
        return -math.inf, math.inf
    return joint.limit.lower or 0.0, joint.limit.upper or 0.0


def resolved(path: Path, file: str) -> Path:
    """Finds a file that a URDF names, in its folder or one above; packages of ROS and models of Gazebo are folders.

    Raises:
        InvalidArgument: the file does not exist, or is named by another kind of address.
    """
    scheme, _, rest = file.replace("\\", "/").rpartition("://")
    if scheme not in _SCHEMES:
        known = ", ".join(f"{known}://" for known in _SCHEMES if known)
        raise malformed(path, f"expected a file, or an address with {known}, got {file!r}")
    names = [Path(rest), Path(unquote(rest))]
    if scheme in _PACKAGES:
        # Packages are folders, with or without their own name.
        names += [Path(*name.parts[1:]) for name in names]
    found = nearby(path, names)
    if found is None:
        raise malformed(path, f"expected {file!r} in its folder or in one above; it is not there")
    return found


def mesh_of(urdf: Urdf, link: str) -> Mesh:
    """Returns all collision elements of a link as one mesh in its frame: mesh files, boxes, cylinders and spheres.

    Raises:
        InvalidArgument: a mesh file is missing or invalid, or a size is.
    """
    vertices: list[Float64] = []
    faces: list[Any] = []
    count = 0
    for shape in urdf.shapes[link]:
        try:
            points, triangles = _triangles(urdf, shape.geometry)
        except InvalidArgument:
            raise
        except ValueError as error:
            raise malformed(urdf.path, f"link {link!r}: {error}") from error
        origin = np.eye(4) if shape.origin is None else np.asarray(shape.origin, np.float64)
        vertices.append(points @ origin[:3, :3].T + origin[:3, 3])
        faces.append(triangles + count)
        count += len(points)
    return Mesh(np.concatenate(vertices), np.concatenate(faces), name=link)


def _triangles(urdf: Urdf, geometry: Any) -> tuple[Float64, Any]:
    """Returns vertices [V, 3] in the element's frame, metres, and faces [F, 3]."""
    if geometry.mesh is None:
        made = _made(geometry)
        return np.asarray(made.vertices, np.float64), np.asarray(made.faces)
    named = geometry.mesh.filename
    if named is None:
        raise malformed(urdf.path, "expected a filename for each <mesh>, got none")
    mesh = Mesh.load(resolved(urdf.path, named))
    if geometry.mesh.scale is not None:
        try:
            mesh = scaled(mesh, geometry.mesh.scale)
        except InvalidArgument as error:
            raise malformed(urdf.path, f"{named}: {error}") from error
    return np.asarray(mesh.vertices, np.float64), np.asarray(mesh.faces)


def _made(geometry: Any) -> Any:
    """Returns a box, cylinder or sphere as a mesh; raises ValueError if it is invalid."""
    creation = require("trimesh.creation", "robot", "collision meshes")
    if geometry.box is not None:
        return creation.box(extents=_lengths("box", "three sizes", geometry.box.size, 3))
    if geometry.cylinder is not None:
        sizes = geometry.cylinder.radius, geometry.cylinder.length
        radius, height = _lengths("cylinder", "a radius and a length", sizes, 2)
        return creation.cylinder(radius=radius, height=height, sections=SECTIONS)
    if geometry.sphere is not None:
        radius = _lengths("sphere", "a radius", [geometry.sphere.radius], 1)[0]
        return creation.icosphere(subdivisions=SUBDIVISIONS, radius=radius)
    raise ValueError("expected a <box>, <cylinder>, <sphere> or <mesh> as the geometry of each <collision>, got none")


def _lengths(shape: str, what: str, given: Any, count: int) -> list[float]:
    """Returns the lengths of a shape, metres; raises ValueError unless all are positive."""
    try:
        lengths = [float(length) for length in given]
    except (TypeError, ValueError):
        lengths = []
    if len(lengths) != count or not all(0.0 < length < math.inf for length in lengths):
        text = " ".join(map(str, given)) if given is not None else "none"
        raise ValueError(f"expected a <{shape}> with {what} > 0, got {text}")
    return lengths
