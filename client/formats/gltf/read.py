"""Reads Gaussians from glTF: primitives with KHR_gaussian_splatting, where the scene's nodes place them.

The extension's own text: https://github.com/KhronosGroup/glTF, KHR_gaussian_splatting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.formats.gltf.accessors import (
    BYTE,
    FLOAT,
    POSITIONS,
    SHORT,
    UBYTE,
    USHORT,
    accessor_count,
    has_data,
    read_accessor,
)
from lumigrad.client.formats.gltf.document import Document, Json
from lumigrad.client.formats.gltf.nodes import QUANTIZATION, check_required, placed_meshes, refuse_instances
from lumigrad.client.formats.placement import half_turned, placed
from lumigrad.client.formats.scene import BY_DISTANCE, LINEAR, SRGB, StoredScene, joined
from lumigrad.client.formats.spz import read_spz

EXTENSION = "KHR_gaussian_splatting"
PREFIX = f"{EXTENSION}:"
_SPZ = "KHR_gaussian_splatting_compression_spz_2"
_OLD_SPZ = "KHR_spz_gaussian_splats_compression"
_READABLE = {EXTENSION, _SPZ, QUANTIZATION}
_POINTS = 0
_LARGEST_DEGREE = 3
_PLAIN = ((FLOAT, False),)
_KINDS = {
    "ROTATION": ("VEC4", (*_PLAIN, (BYTE, True), (SHORT, True))),
    "SCALE": ("VEC3", (*_PLAIN, (UBYTE, False), (UBYTE, True), (USHORT, False), (USHORT, True))),
    "OPACITY": ("SCALAR", (*_PLAIN, (UBYTE, True), (USHORT, True))),
}
# The values that the base extension defines; others need extensions that are not supported.
_VALUES = {
    "kernel": ("ellipse",),
    "colorSpace": (SRGB, LINEAR),
    "projection": ("perspective",),
    "sortingMethod": (BY_DISTANCE,),
}
_REQUIRED = ("kernel", "colorSpace")
_Key = tuple[int, int]


def read_gltf(path: Path) -> StoredScene:
    """Reads all Gaussians of a .gltf or .glb file, primitive by primitive, in the axes right, down, forward."""
    document = Document(path)
    _check_extensions(document)
    uses = list(_uses(document))
    if not uses:
        raise document.fail(
            f"expected a mesh primitive with {EXTENSION} in its scene, got none; Mesh.load and `lumigrad query` read "
            "triangles"
        )
    primitives = {key: primitive for key, primitive, _ in uses}
    _check_sizes(document, [primitive for _, primitive, _ in uses])
    # Meshes that several nodes show are decoded once.
    decoded = {key: _read_primitive(document, primitive, _name(key)) for key, primitive in primitives.items()}
    spaces = {scene.color_space for scene in decoded.values()}
    if len(spaces) > 1:
        raise document.fail(f"expected one colorSpace for all primitives, got {', '.join(sorted(spaces))}")
    scene = joined([placed(decoded[key], matrix, document.fail) for key, _, matrix in uses])
    methods = {_extension(document, primitive).get("sortingMethod", BY_DISTANCE) for _, primitive, _ in uses}
    details = {"format": "glTF, KHR_gaussian_splatting", "sorting": ", ".join(sorted(methods))}
    return replace(half_turned(scene, back=True), details=details)


def _check_extensions(document: Document) -> None:
    check_required(document, _READABLE)
    used = document.list(document.json, "extensionsUsed", "")
    if _OLD_SPZ in used:
        raise document.fail(f"expected {EXTENSION}, but the file uses {_OLD_SPZ}, a withdrawn draft; export it again")


def _uses(document: Document) -> Iterator[tuple[_Key, Json, Float64]]:
    """Yields the primitives with Gaussians with their global matrices, in the order of the scene's nodes."""
    for placed_mesh in placed_meshes(document):
        primitives = list(_with_gaussians(document, placed_mesh.mesh))
        if primitives:
            refuse_instances(document, placed_mesh, "for Gaussians")
        yield from ((key, primitive, placed_mesh.matrix) for key, primitive in primitives)


def _with_gaussians(document: Document, mesh: Any) -> Iterator[tuple[_Key, Json]]:
    primitives = document.list(document.item("meshes", mesh), "primitives", f"meshes[{mesh}].")
    for index, primitive in enumerate(primitives):
        where = _name((mesh, index))
        extensions = document.extensions(document.object(primitive, where), where)
        if _OLD_SPZ in extensions:
            raise document.fail(f"expected {EXTENSION} in {where}, got {_OLD_SPZ}, a withdrawn draft; export it again")
        if EXTENSION in extensions:
            yield (mesh, index), primitive


def _name(key: _Key) -> str:
    return f"meshes[{key[0]}].primitives[{key[1]}]"


def _extension(document: Document, primitive: Json) -> Json:
    return document.object(document.extensions(primitive, "a primitive")[EXTENSION], EXTENSION)


def _check_sizes(document: Document, primitives: list[Json]) -> None:
    """Raises InvalidArgument if the total size that the primitives declare is implausible."""
    total = 0
    for primitive in primitives:
        attributes = document.object(primitive.get("attributes"), "attributes of a primitive")
        if "POSITION" in attributes:
            count = accessor_count(document, attributes["POSITION"])
            total += 4 * 3 * (len(attributes) + 2) * count
    document.check_growth(total)


def _read_primitive(document: Document, primitive: Json, where: str) -> StoredScene:
    """Reads the Gaussians of a primitive in its own frame."""
    extension, attributes = _extension(document, primitive), _attributes(document, primitive, where)
    _check_values(document, extension, where)
    if primitive.get("mode", 4) != _POINTS or "indices" in primitive:
        raise document.fail(f"expected mode 0 (points) without indices in {where}")
    space = extension["colorSpace"]
    inner = document.extensions(extension, f"{where} {EXTENSION}")
    unknown = [name for name in inner if name != _SPZ]
    if unknown:
        raise document.fail(f"expected no extension of {EXTENSION} but {_SPZ} in {where}, got {unknown[0]}")
    if _SPZ in inner:
        return replace(_read_spz_view(document, inner[_SPZ], attributes, where), color_space=space)
    missing = [name for name in ("POSITION", *(PREFIX + name for name in _KINDS)) if name not in attributes]
    if missing:
        raise document.fail(f"expected the attributes {', '.join(missing)} in {where}")
    means = read_accessor(document, attributes["POSITION"], "VEC3", POSITIONS, "POSITION")

    def values(name: str, shape: str, kinds: Any) -> Float32:
        array = read_accessor(document, attributes[PREFIX + name], shape, kinds, name)
        if len(array) != len(means):
            raise document.fail(
                f"expected {len(means):,} elements of {name} in {where}, as POSITION has, got {len(array):,}"
            )
        return array

    rotations, scales, opacities = (values(name, *kind) for name, kind in _KINDS.items())
    if (scales < 0).any():
        raise document.fail(
            f"expected scales >= 0 in {where}, got {scales.min():.4g}; files of the draft of 2025 hold logarithms: "
            "export it again"
        )
    names = _coefficients(document, attributes, where)
    sh = np.stack([values(name, "VEC3", _PLAIN) for name in names], axis=1)
    return StoredScene(means, rotations[:, [3, 0, 1, 2]], scales, opacities[:, 0], sh, color_space=space)


def _attributes(document: Document, primitive: Json, where: str) -> Json:
    attributes = document.object(primitive.get("attributes"), f"{where}.attributes")
    draft = [name for name in attributes if name in ("_ROTATION", "_SCALE")]
    if draft:
        raise document.fail(
            f"expected the attribute {PREFIX}{draft[0][1:]} in {where}, got {draft[0]} of a draft; export it again"
        )
    return attributes


def _check_values(document: Document, extension: Json, where: str) -> None:
    for name in ("shape", "hints"):
        if name in extension and "kernel" not in extension:
            raise document.fail(f'expected "kernel" in {where} {EXTENSION}, got {name!r} of a draft; export it again')
    for name, allowed in _VALUES.items():
        value = extension.get(name, None if name in _REQUIRED else allowed[0])
        if value not in allowed:
            raise document.fail(f"expected {' or '.join(allowed)} as {name} in {where}, got {value!r}")


def _coefficients(document: Document, attributes: Json, where: str) -> list[str]:
    """Returns the names of the attributes of harmonics; raises InvalidArgument unless every degree is complete."""
    stored = {name.removeprefix(PREFIX) for name in attributes if name.startswith(PREFIX)} - set(_KINDS)
    bands = [[f"SH_DEGREE_{band}_COEF_{k}" for k in range(2 * band + 1)] for band in range(_LARGEST_DEGREE + 1)]
    names: list[str] = []
    for band in bands:
        if names and not stored - set(names):
            break
        names += band
    if stored != set(names):
        missing, unknown = sorted(set(names) - stored), sorted(stored - set(names))
        said = f"no {', '.join(missing)}" if missing else f"also {', '.join(unknown)}"
        raise document.fail(f"expected SH_DEGREE_l_COEF_n of whole degrees from 0 to at most 3 in {where}, got {said}")
    return names


def _read_spz_view(document: Document, extension: Any, attributes: Json, where: str) -> StoredScene:
    """Reads an .spz stream in a buffer view, whose numbers are in the axes of glTF."""
    owner = document.object(extension, f"{where} {_SPZ}")
    source, _ = document.view(owner.get("bufferView"))
    scene = read_spz(source, (1, 1, 1))
    for name, index in attributes.items():
        if accessor_count(document, index) != len(scene):
            raise document.fail(f"expected {len(scene):,} elements of {name} in {where}, as its .spz stream has")
        if has_data(document, index) and name.startswith(PREFIX):
            raise document.fail(f"expected {name} in {where} in its .spz stream only, but its accessor has data, too")
    return scene
