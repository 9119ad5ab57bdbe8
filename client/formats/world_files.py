"""Worlds in cuRobo's YAML files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lumigrad.client.base.arguments import file_path
from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.extras import require
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.mesh_files import scaled
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.rotations import IDENTITY, composed, pose_array, quaternion_between, rotated
from lumigrad.client.values.world import Cuboid, Obstacle, Shape, Sign


def nearby(path: Path, names: Iterable[str | Path]) -> Path | None:
    """Returns the first existing file of these names, searched from the folder of `path` upwards, else None."""
    folder, wanted = path.absolute().parent, tuple(names)
    candidates = (above / name for above in (folder, *folder.parents) for name in wanted)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


_LONGEST_REASON = 300


def read_yaml(name: str, path: str | PathLike[str]) -> Any:
    """Reads the content of a YAML file: mappings, lists, numbers and strings. Needs the extra `robot`.

    Args:
        name: name of the argument, for errors.
        path: the file.

    Raises:
        InvalidArgument: not a YAML file, or one with a key twice in a mapping.
    """
    yaml = require("yaml", "robot", "reading YAML files")
    content = Path(path).read_bytes()
    try:
        return yaml.load(content, _loader(yaml))  # a safe one
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # The parser's own errors are those of the syntax; scalars with tags, long numbers and deep lists raise others.
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise InvalidArgument.of(name, f"{fspath(path)}: expected a YAML file, got {reason}") from error


# Numbers and truth of YAML 1.2. PyYAML has those of 1.1: there 1e-3 is text, 010 is 8, 1:30 is 90, and on is true.
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
_CHANGED = ("bool", "int", "float", "timestamp")
_TAG = "tag:yaml.org,2002:"


def _loader(yaml: Any) -> Any:
    """Returns PyYAML's safe loader, made to refuse duplicate keys, of which it would keep only the last."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
            first: [(tag, pattern) for tag, pattern in found if tag.removeprefix(_TAG) not in _CHANGED]
            for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_yaml_int(self, node: Any) -> int:
            return int(self.construct_scalar(node))

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                # Keys that merge other mappings may repeat.
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if (key.tag, key.value) in seen:
                        reason = f"the key {key.value!r} twice in one mapping, of which one would be lost"
                        raise yaml.constructor.ConstructorError(None, None, reason, key.start_mark)
                    seen.add((key.tag, key.value))
            return node

    for name, (pattern, firsts) in _SCALARS.items():
        Loader.add_implicit_resolver(f"{_TAG}{name}", re.compile(f"(?:{pattern})$"), list(firsts))
    Loader.add_constructor(f"{_TAG}int", Loader.construct_yaml_int)
    return Loader


YAML_SUFFIXES = (".yml", ".yaml")
# Fields of each kind of obstacle, and fields of all kinds that do not change the shape.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "cuboid": ("dims",),
    "mesh": ("file_path", "vertices", "faces", "scale"),
    "sphere": ("radius", "position"),
    "capsule": ("radius", "base", "tip"),
    "cylinder": ("radius", "height"),
}
_LOOKS = ("name", "color", "texture", "texture_id", "material", "vertex_colors", "vertex_normals", "face_colors")
_LONGEST_DESCRIPTION = 200
# Round solids become meshes with their corners on the surface, which lie inside it by at most 0.2% of the radius.
SUBDIVISIONS, SECTIONS = 4, 64


def read_obstacles(
    path: str | PathLike[str], *, scale: float = 1.0, pose: Any = IDENTITY, sign: Sign = "auto"
) -> tuple[Obstacle, ...]:
    """Reads the obstacles in a file.

    Args:
        path: a mesh file as `Mesh.load` reads it, or cuRobo's YAML file of a world: obstacles by name under cuboid,
            mesh, sphere, capsule and cylinder. Mesh files are searched in its folder and those above.
        scale: metres per unit of a mesh file. YAML lengths are metres, and each mesh there has its own scale.
        pose: [7] file to world: x y z (metres) and the quaternion w x y z.
        sign: sign policy of its meshes, see `Obstacle`.

    Raises:
        InvalidArgument: a damaged or unsupported file; names the entry.
    """
    path = file_path("path", path)
    place = pose_array("pose", pose)
    if path.suffix.lower() not in YAML_SUFFIXES:
        return (Obstacle(Mesh.load(path, scale=scale), place, sign=sign),)
    values = read_yaml("path", path)
    if not isinstance(values, Mapping):
        raise _wrong(path, f"obstacles by name under {', '.join(_FIELDS)}", values)
    obstacles = []
    for kind, entries in values.items():
        if kind not in _FIELDS:
            raise _wrong(path, f"{', '.join([*_FIELDS][:-1])} or {[*_FIELDS][-1]} as the kind of obstacles", kind)
        if not isinstance(entries or {}, Mapping):
            raise _wrong(path, f"{kind} by name", entries)
        for name, entry in (entries or {}).items():
            if not isinstance(entry, Mapping):
                raise _wrong(path, f"a mapping as {kind}.{name}", entry)
            try:
                obstacles.append(_Entry(path, entry).obstacle(kind, str(name), place, sign))
            except InvalidArgument as error:
                raise InvalidArgument.of("path", f"{fspath(path)}: {kind}.{name}: {error}") from error
    return tuple(obstacles)


class _Entry:
    """One obstacle of a file; errors name the value."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path, self._values = path, values

    def obstacle(self, kind: str, name: str, place: Float64, sign: Sign) -> Obstacle:
        """Returns the obstacle, placed in the world."""
        self._check_fields(kind)
        own = self._numbers("pose", 7, IDENTITY)
        if kind == "sphere" and ("position" in self._values or "pose" not in self._values):
            position = self._numbers("position", 3)
            if "pose" in self._values and not np.array_equal(position, own[:3]):
                raise InvalidArgument.of("position", f"expected that of the pose, {own[:3]}, got {position}; give one")
            own = np.concatenate([position, own[3:]])
        shape = self._shape(kind)
        placed = composed(place, pose_array("pose", own))
        return Obstacle(shape, placed, name, sign=sign if isinstance(shape, Mesh) else "auto")

    def _check_fields(self, kind: str) -> None:
        """Refuses a field that would be ignored, such as a misspelt pose."""
        known = ("pose", *_FIELDS[kind], *_LOOKS)
        for name in self._values:
            if name not in known:
                fields = ", ".join(("pose", *_FIELDS[kind]))
                raise InvalidArgument.of(str(name), f"expected only {fields}, and fields of its appearance")

    def _shape(self, kind: str) -> Shape:
        match kind:
            case "cuboid":
                return Cuboid(self._numbers("dims", 3))
            case "mesh":
                return self._mesh()
            case "capsule":
                return self._capsule()
        radius = self._length("radius")
        if kind == "sphere":
            return _made("icosphere", subdivisions=SUBDIVISIONS, radius=radius)
        return _made("cylinder", radius=radius, height=self._length("height"), sections=SECTIONS)

    def _mesh(self) -> Shape:
        if "vertices" in self._values:
            mesh = Mesh(self._values["vertices"], self._values.get("faces", ()))
        else:
            mesh = Mesh.load(self._file())
        factors = self._values.get("scale")
        return mesh if factors is None else scaled(mesh, factors)

    def _capsule(self) -> Shape:
        base, tip = self._numbers("base", 3), self._numbers("tip", 3)
        along = tip - base
        radius, height = self._length("radius"), float(np.linalg.norm(along))
        upright = _made("capsule", radius=radius, height=height, count=[SECTIONS, SECTIONS])
        # The origin is at the lower end in some releases of trimesh, and in the middle in others.
        middle = np.array([0.0, 0.0, sum(corner[2] for corner in upright.bounds) / 2])
        turn = IDENTITY[3:] if not along.any() else quaternion_between(np.array([0.0, 0.0, 1.0]), along)
        return Mesh(rotated(turn, upright.vertices - middle) + (base + tip) / 2, upright.faces)

    def _file(self) -> Path:
        named = self._values.get("file_path")
        if not isinstance(named, str):
            raise InvalidArgument.of("file_path", f"expected the name of a file, or vertices and faces, got {named!r}")
        found = nearby(self._path, [named])
        if found is None:
            raise InvalidArgument.of("file_path", f"expected {named!r} in its folder or in one above; it is not there")
        return found

    def _length(self, name: str) -> float:
        value = float(self._numbers(name, 1)[0])
        if not value > 0:
            raise InvalidArgument.of(name, f"expected a length > 0, metres, got {value}")
        return value

    def _numbers(self, name: str, count: int, default: Float64 | None = None) -> Float64:
        value = self._values.get(name, default)
        try:
            numbers = np.atleast_1d(np.array(value, np.float64))
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if numbers.shape != (count,) or not np.isfinite(numbers).all():
            expected = f"{count} finite numbers" if count > 1 else "a finite number"
            raise InvalidArgument.of(name, f"expected {expected}, got {str(value)[:_LONGEST_DESCRIPTION]}")
        return numbers


def _made(shape: str, **sizes: Any) -> Mesh:
    made = getattr(require("trimesh.creation", "mesh", "round obstacles"), shape)(**sizes)
    return Mesh(made.vertices, made.faces)


def _wrong(path: Path, expected: str, value: Any) -> InvalidArgument:
    return InvalidArgument.of("path", f"{fspath(path)}: expected {expected}, got {str(value)[:_LONGEST_DESCRIPTION]}")
