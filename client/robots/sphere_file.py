"""Collision spheres of links, and other settings of a robot, from cuRobo's YAML files or a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import file_path
from lumigrad.client.base.arrays import Float64, to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.world_files import read_yaml
from lumigrad.client.robots.chain import Joint
from lumigrad.client.values.rotations import matrix_of

_LONGEST_DESCRIPTION = 300


@dataclass(frozen=True, eq=False)
class SphereFile:
    """Spheres by link, and settings of joints.

    Attributes:
        spheres: [n, 4] centres in the link's frame and radii, metres, by link.
        base_link: the robot's base link; None: not given.
        joints: names of the joints to set, in order; None: not given.
        locked: fixed joints and their values, radians or metres.
        links: extra links, as fixed joints to links of the URDF.
        rest: default values of joints, radians or metres; joints may be missing.
    """

    spheres: dict[str, Float64]
    base_link: str | None = None
    joints: tuple[str, ...] | None = None
    locked: dict[str, float] = field(default_factory=dict)
    links: tuple[Joint, ...] = ()
    rest: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(source: str | PathLike[str] | Mapping[str, Any]) -> SphereFile:
        """Reads a file or a mapping.

        Args:
            source: a YAML file or a mapping: either cuRobo's configuration of a robot (also without its outer levels
                robot_cfg and kinematics), or only spheres by link.

        Raises:
            InvalidArgument: an invalid entry, which it names.
        """
        if isinstance(source, Mapping):
            return _of_values(source, None)
        path = file_path("spheres", source)
        return _of_values(read_yaml("spheres", path), path)


def _of_values(values: Any, path: Path | None) -> SphereFile:
    for level in ("robot_cfg", "kinematics"):
        values = values[level] if isinstance(values, Mapping) and level in values else values
    if not isinstance(values, Mapping):
        raise _wrong(path, "", "spheres by link", values)
    if "collision_spheres" not in values:
        return SphereFile(_spheres(values, path))
    spheres = values["collision_spheres"]
    if isinstance(spheres, str):
        # A separate file that contains spheres only.
        path = (Path() if path is None else path.parent) / spheres
        spheres = SphereFile.of(path).spheres
    else:
        spheres = _spheres(spheres, path)
    # Spheres of objects that are attached later are in another entry.
    known = [*spheres, *(values.get("extra_collision_spheres") or ())]
    names, buffers = values.get("collision_link_names"), values.get("collision_sphere_buffer") or 0.0
    named = {
        "collision_link_names": names or (),
        "collision_sphere_buffer": buffers if isinstance(buffers, Mapping) else (),
    }
    for entry, links in named.items():
        if unknown := [name for name in links if name not in known]:
            raise _wrong(path, entry, f"links with collision_spheres ({', '.join(known)})", unknown[0])
    if names is not None:
        # Spheres of other links are not for collisions.
        spheres = {name: spheres[name] for name in names if name in spheres}
    locked = values.get("lock_joints") or {}
    cspace = values.get("cspace") or {}
    joints = cspace.get("joint_names")
    return SphereFile(
        {name: _grown(name, rows, buffers, path) for name, rows in spheres.items()},
        values.get("base_link"),
        None if joints is None else tuple(name for name in joints if name not in locked),
        {name: _number(path, f"lock_joints.{name}", value) for name, value in locked.items()},
        tuple(_link(name, entry, path) for name, entry in (values.get("extra_links") or {}).items()),
        _rest(joints or (), cspace, path),
    )


def _rest(joints: Sequence[str], cspace: Mapping[str, Any], path: Path | None) -> dict[str, float]:
    """Returns joint values by name; releases of cuRobo use different keys."""
    entry = next((name for name in ("default_joint_position", "retract_config") if cspace.get(name)), None)
    if entry is None:
        return {}
    values = cspace[entry]
    if not isinstance(values, list) or len(values) != len(joints):
        raise _wrong(path, f"cspace.{entry}", f"a number for each of {len(joints)} joints", values)
    return {name: _number(path, f"cspace.{entry}", value) for name, value in zip(joints, values, strict=True)}


def _wrong(path: Path | None, entry: str, expected: str, value: Any) -> InvalidArgument:
    where = ": ".join(part for part in ("" if path is None else fspath(path), entry) if part)
    return InvalidArgument.of(
        "spheres", f"{where}{': ' if where else ''}expected {expected}, got {str(value)[:_LONGEST_DESCRIPTION]}"
    )


def _number(path: Path | None, entry: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or not np.isfinite(value):
        raise _wrong(path, entry, "a finite number", value)
    return float(value)


def _spheres(values: Any, path: Path | None) -> dict[str, Float64]:
    if not isinstance(values, Mapping):
        raise _wrong(path, "collision_spheres", "spheres by link, or the name of a file", values)
    return {str(name): _rows(f"spheres of link {str(name)!r}", rows, path) for name, rows in values.items()}


def _rows(entry: str, values: Any, path: Path | None) -> Float64:
    """Returns [n, 4], from mappings with center and radius, or from four numbers each."""
    if isinstance(values, list) and values and all(isinstance(value, Mapping) for value in values):
        for value in values:
            if other := [key for key in value if key not in ("center", "radius")]:
                raise _wrong(path, entry, "only center and radius of each sphere", other[0])
        values = [[*(_listed(value.get("center"))), value.get("radius")] for value in values]
    expected = "a list of {center: [x, y, z], radius: r}, or finite numbers [n, 4]: x y z r, metres"
    try:
        rows = to_numpy("spheres", values if hasattr(values, "shape") else np.array(values, np.float64))
    except (InvalidArgument, TypeError, ValueError) as error:
        raise _wrong(path, entry, expected, values) from error
    if rows.size == 0:
        return np.zeros((0, 4))
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype.kind not in "fiu" or not np.isfinite(rows).all():
        raise _wrong(path, entry, expected, values)
    return np.asarray(rows, np.float64)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]


def _grown(name: str, rows: Float64, buffers: Any, path: Path | None) -> Float64:
    """Adds collision_sphere_buffer, one number or one for each link, to the radii of enabled spheres."""
    own = buffers.get(name, 0.0) if isinstance(buffers, Mapping) else buffers
    buffer = _number(path, "collision_sphere_buffer", own)
    return rows + np.where(rows[:, 3:] >= 0, [[0.0, 0.0, 0.0, buffer]], 0.0)


def _link(name: str, entry: Any, path: Path | None) -> Joint:
    if not isinstance(entry, Mapping) or "parent_link_name" not in entry:
        raise _wrong(path, f"extra_links.{name}", "a mapping with parent_link_name", entry)
    if str(entry.get("joint_type", "FIXED")).upper() != "FIXED":
        raise _wrong(path, f"extra_links.{name}.joint_type", "FIXED; put movable joints into the URDF", entry)
    transform = entry.get("fixed_transform") or [0, 0, 0, 1, 0, 0, 0]
    try:
        origin = matrix_of("fixed_transform", transform)
    except InvalidArgument as error:
        raise _wrong(path, f"extra_links.{name}.fixed_transform", "x y z qw qx qy qz", transform) from error
    joint, still = str(entry.get("joint_name", name)), (0.0, 0.0)
    child = str(entry.get("link_name", name))
    return Joint(joint, "fixed", str(entry["parent_link_name"]), child, origin, np.zeros(3), still)
