"""Content of RAD files, the format of Spark 2, for tests of its reader."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from support.gaussians.clouds import Cloud

# How columns are stored unless a test says otherwise, as Spark's own tool does by default.
USUAL = {"center": "f32_lebytes", "alpha": "f16", "rgb": "r8_delta"}
USUAL |= {"scales": "ln_0r8", "orientation": "oct88r8", "sh": "s8"}
_RANGES = {"alpha": (0.0, 2.0), "rgb": (-1.0, 2.0), "scales": (-12.0, 9.0), "sh": (-1.0, 1.0)}


def rad_content(made: Cloud, encodings: Mapping[str, str] = USUAL, *, chunk_rows: int = 128, **how: Any) -> bytes:
    """A file with all chunks; see `rad_chunks`."""
    chunks = rad_chunks(made, encodings, chunk_rows=chunk_rows, **how)
    starts = np.cumsum([0, *map(len, chunks)])
    ranges = [{"offset": int(start), "bytes": len(chunk)} for start, chunk in zip(starts, chunks, strict=False)]
    return rad_header(len(made), ranges, chunk_rows, has_tree=how.get("children") is not None) + b"".join(chunks)


def rad_header(count: int, ranges: Sequence[Mapping[str, object]], chunk_rows: int, *, has_tree: bool = False) -> bytes:
    """The header of a file whose chunks lie in these ranges, or in files beside it."""
    header = {"version": 1, "type": "gsplat", "count": count, "maxSh": 3, "chunkSize": chunk_rows, "chunks": ranges}
    whole = {**header, "allChunkBytes": sum(int(str(each["bytes"])) for each in ranges)}
    return _with_header(b"RAD0", whole | ({"lodTree": True} if has_tree else {}))


def rad_chunks(
    made: Cloud,
    encodings: Mapping[str, str] = USUAL,
    *,
    children: np.ndarray | None = None,
    chunk_rows: int = 128,
    codes: int = 0,
    is_compressed: bool = True,
) -> list[bytes]:
    """The chunks of a file.

    `children` [N] are numbers of children; with `codes`, harmonics are labels of so many.
    """
    degree = math.isqrt(made.sh.shape[1]) - 1
    columns: dict[str, np.ndarray] = {
        "center": made.means,
        "alpha": made.opacities[:, None],
        "rgb": made.base_colors,
        "scales": made.scales,
        "orientation": _rotations(made.quats, encodings["orientation"]),
    }
    bands = {band: made.sh[:, band**2 : (band + 1) ** 2].reshape(len(made), -1) for band in range(1, degree + 1)}
    if not codes:
        columns |= {f"sh{band}": values for band, values in bands.items()}
    chunks = []
    for start in range(0, len(made), chunk_rows):
        rows = slice(start, start + chunk_rows)
        parts = [(name, *_encoded(name, values[rows], encodings)) for name, values in columns.items()]
        if codes and not start:
            parts += [
                (f"sh{band}_code", *_encoded(f"sh{band}", values[:codes], encodings)) for band, values in bands.items()
            ]
        if codes:
            labels = (np.arange(len(made)) % codes).astype("<u2")
            parts.append(("sh_label", {"encoding": "u16"}, labels[rows].tobytes()))
        if children is not None:
            parts.append(("child_count", {"encoding": "u16"}, children[rows].astype("<u2").tobytes()))
            parts.append(("child_start", {"encoding": "u32"}, np.zeros_like(children[rows], "<u4").tobytes()))
        chunks.append(_chunk(start, len(made.means[rows]), parts, is_compressed=is_compressed, degree=degree))
    return chunks


def _chunk(
    base: int, count: int, parts: list[tuple[str, dict[str, object], bytes]], *, is_compressed: bool, degree: int
) -> bytes:
    properties, payload = [], b""
    for name, how, content in parts:
        if is_compressed:
            packer = zlib.compressobj(6, zlib.DEFLATED, -15)
            content, how = packer.compress(content) + packer.flush(), {**how, "compression": "gz"}
        properties.append({"property": name, "offset": len(payload), "bytes": len(content), **how})
        payload += _padded(content)
    header: dict[str, object] = {"version": 1, "base": base, "count": count, "payloadBytes": len(payload)}
    header |= {"maxSh": degree, "properties": properties}
    return _with_header(b"RADC", header) + len(payload).to_bytes(8, "little") + payload


def _with_header(magic: bytes, header: dict[str, object]) -> bytes:
    text = json.dumps(header).encode()
    return magic + len(text).to_bytes(4, "little") + _padded(text)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def _encoded(name: str, values: np.ndarray, encodings: Mapping[str, str]) -> tuple[dict[str, object], bytes]:
    """How a column is stored, and its bytes, one component after the other."""
    kind = "sh" if name.startswith("sh") else name
    encoding = encodings[kind]
    if encoding == "oct88r8":
        return {"encoding": encoding}, values.astype(np.uint8).tobytes()
    low, high = _RANGES.get(kind, (0.0, 0.0))
    planes = np.ascontiguousarray(values.T)
    if encoding in ("f32", "f16", "f32_lebytes", "f16_lebytes"):
        numbers = planes.astype("<f4" if encoding.startswith("f32") else "<f2")
        octets = numbers.reshape(-1, 1).view(np.uint8)
        return {"encoding": encoding}, (octets.T if encoding.endswith("bytes") else octets).tobytes()
    if encoding == "ln_f16":
        return {"encoding": encoding}, np.log(planes).astype("<f2").tobytes()
    if encoding == "ln_0r8":
        levels = np.where(planes <= 0, 0, 1 + np.rint((np.log(np.maximum(planes, 1e-30)) - low) / (high - low) * 254))
    elif encoding.startswith("s8"):
        levels = np.rint(planes / high * 127).astype(np.int8).view(np.uint8)
    else:
        levels = np.rint((planes - low) / (high - low) * 255)
    levels = levels.astype(np.uint8)
    if encoding.endswith("_delta"):
        levels = np.diff(levels, axis=1, prepend=np.uint8(0)).astype(np.uint8)
    return {"encoding": encoding, "min": low, "max": high}, levels.tobytes()


def _rotations(quats: np.ndarray, encoding: str) -> np.ndarray:
    """Vector parts of rotations [N, 3], or their axes on an octahedron and angles, as bytes."""
    upright = quats * np.where(quats[:, :1] < 0, -1.0, 1.0)
    if encoding != "oct88r8":
        return upright[:, 1:]
    angles = 2 * np.arccos(np.clip(upright[:, 0], 0, 1))
    axes = upright[:, 1:] / np.maximum(np.linalg.norm(upright[:, 1:], axis=1, keepdims=True), 1e-9)
    axes = axes / np.abs(axes).sum(axis=1, keepdims=True)
    x, y, z = axes.T
    signs = np.where(axes[:, :2] >= 0, 1.0, -1.0)
    outside = (1 - np.abs(np.stack([y, x], axis=1))) * signs
    unfolded = np.where(z[:, None] < 0, outside, axes[:, :2])
    return np.rint(np.concatenate([(unfolded + 1) / 2, angles[:, None] / math.pi], axis=1) * 255)
