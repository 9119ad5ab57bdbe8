"""Writers of the formats that the client only reads, by their specifications, one Gaussian after the other."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from support.gaussians.clouds import Cloud


def left_out(quat: Sequence[float]) -> tuple[int, list[float]]:
    """The number of a quaternion's largest component, and the three others with the sign that makes it positive."""
    largest = max(range(4), key=lambda k: abs(quat[k]))
    sign = -1 if quat[largest] < 0 else 1
    return largest, [sign * quat[k] for k in range(4) if k != largest]


def write_compressed_ply(path: Path, cloud: Cloud, *, color_bounds: bool = True) -> None:
    """PlayCanvas' compressed PLY; without bounds of colours, its first version."""
    names = [f"{end}_{axis}" for end in ("min", "max") for axis in "xyz"]
    names += [f"{end}_scale_{axis}" for end in ("min", "max") for axis in "xyz"]
    names += [f"{end}_{channel}" for end in ("min", "max") for channel in "rgb"] if color_bounds else []
    rest = cloud.sh.shape[1] - 1
    lines = ["ply", "format binary_little_endian 1.0", f"element chunk {math.ceil(len(cloud) / 256)}"]
    lines += [f"property float {name}" for name in names]
    lines += [f"element vertex {len(cloud)}"]
    lines += [f"property uint packed_{name}" for name in ("position", "rotation", "scale", "color")]
    if rest:
        lines += [f"element sh {len(cloud)}", *(f"property uchar f_rest_{k}" for k in range(3 * rest))]
    chunks, vertices = b"", b""
    for start in range(0, len(cloud), 256):
        part = slice(start, start + 256)
        boxes = [(v.min(axis=0), v.max(axis=0)) for v in (cloud.means[part], np.log(cloud.scales[part]))]
        boxes.append((cloud.base_colors[part].min(axis=0), cloud.base_colors[part].max(axis=0)))
        chunks += b"".join(struct.pack("<6f", *low, *high) for low, high in boxes[: 3 if color_bounds else 2])
        boxes[2] = boxes[2] if color_bounds else (np.zeros(3), np.ones(3))
        for k in range(*part.indices(len(cloud))):
            vertices += _packed_vertex(cloud, k, boxes)
    higher = b""
    for k in range(len(cloud)):
        for value in cloud.sh[k, 1:].T.ravel():
            higher += bytes([min(255, max(0, math.floor((value / 8 + 0.5) * 256)))])
    path.write_bytes("\n".join([*lines, "end_header", ""]).encode() + chunks + vertices + higher)


def _packed_vertex(cloud: Cloud, k: int, boxes: list[tuple[np.ndarray, np.ndarray]]) -> bytes:
    def packed(value: np.ndarray, box: tuple[np.ndarray, np.ndarray], bits: tuple[int, int, int]) -> int:
        word = 0
        for axis in range(3):
            largest = (1 << bits[axis]) - 1
            word = word << bits[axis] | round(float((value - box[0])[axis] / (box[1] - box[0])[axis]) * largest)
        return word

    largest, others = left_out(cloud.quats[k])
    rotation = largest
    for value in others:
        rotation = rotation << 10 | round((value / math.sqrt(2) + 0.5) * 1023)
    color = packed(cloud.base_colors[k], boxes[2], (8, 8, 8)) << 8 | round(float(cloud.opacities[k]) * 255)
    position = packed(cloud.means[k], boxes[0], (11, 10, 11))
    return struct.pack("<4I", position, rotation, packed(np.log(cloud.scales[k]), boxes[1], (11, 10, 11)), color)


def write_ksplat(
    path: Path, clouds: Sequence[Cloud], level: int, *, capacity: int = 64, block_size: float = 64.0
) -> None:
    """GaussianSplats3D's format: one section for each cloud, full buckets before partly filled ones."""
    header = bytearray(4096)
    total = sum(len(cloud) for cloud in clouds)
    struct.pack_into("<BB2xIIIIH", header, 0, 0, 1, len(clouds), len(clouds), total, total, level)
    struct.pack_into("<ff", header, 36, -2.0, 2.0)
    headers, bodies = b"", b""
    for cloud in clouds:
        degree = math.isqrt(cloud.sh.shape[1]) - 1
        full = (len(cloud) // capacity) if len(cloud) % capacity == 0 else max(len(cloud) // capacity - 1, 0)
        sizes = []
        if full * capacity < len(cloud):
            left = len(cloud) - full * capacity
            sizes = [left // 3, left - left // 3]
        buckets = full + len(sizes)
        ends = np.cumsum([capacity] * full + sizes)
        starts = np.concatenate([[0], ends[:-1]])
        centers = [cloud.means[a:b].mean(axis=0) for a, b in zip(starts, ends, strict=True)]
        section = bytearray(1024)
        values = (len(cloud), len(cloud), capacity, buckets, block_size, 12, 32767, 0, full, len(sizes), degree)
        struct.pack_into("<4IfH2xI4sIIH", section, 0, *values[:7], b"", *values[8:])
        headers += bytes(section)
        bodies += struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(struct.pack("<3f", *center) for center in centers)
        for a, b, center in zip(starts, ends, centers, strict=True):
            for k in range(a, b):
                bodies += _ksplat_record(cloud, k, center, level, block_size / 2 / 32767)
    path.write_bytes(bytes(header) + headers + bodies)


def _ksplat_record(cloud: Cloud, k: int, center: np.ndarray, level: int, step: float) -> bytes:
    number = "f" if level == 0 else "e"
    if level == 0:
        mean = struct.pack("<3f", *cloud.means[k])
    else:
        mean = struct.pack("<3H", *(round(value) for value in (cloud.means[k] - center) / step + 32767))
    record = mean + struct.pack(f"<7{number}", *cloud.scales[k], *cloud.quats[k])
    record += bytes(round(float(np.clip(value, 0, 1)) * 255) for value in (*cloud.base_colors[k], cloud.opacities[k]))
    for first, last in ((1, 4), (4, 9), (9, 16)):
        for value in cloud.sh[k, first:last].T.ravel():
            record += bytes([round((value + 2) / 4 * 255)]) if level == 2 else struct.pack(f"<{number}", value)
    return record


def sog_files(cloud: Cloud, version: int = 2) -> dict[str, bytes]:
    """The files of PlayCanvas' SOG by name."""
    bent = np.sign(cloud.means) * np.log1p(np.abs(cloud.means))
    low, high = bent.min(axis=0), bent.max(axis=0)
    words = np.rint((bent - low) / (high - low) * 65535).astype(int)
    meta: dict[str, object] = {"means": {"mins": [*low], "maxs": [*high], "files": ["means_l.webp", "means_u.webp"]}}
    pictures = {"means_l.webp": words & 255, "means_u.webp": words >> 8}
    rotations = np.empty((len(cloud), 4), int)
    for k in range(len(cloud)):
        largest, others = left_out(cloud.quats[k])
        rotations[k] = [*(round((value * math.sqrt(2) * 0.5 + 0.5) * 255) for value in others), 252 + largest]
    pictures["quats.webp"] = rotations
    meta["quats"] = {"files": ["quats.webp"]}
    meta["scales"], pictures["scales.webp"] = _levels(np.log(cloud.scales), "scales.webp", version)
    opacity = cloud.opacities[:, None]
    base = cloud.sh[:, 0]
    meta["sh0"], pictures["sh0.webp"] = _levels(base, "sh0.webp", version)
    if version == 1:
        logits = np.log(opacity / (1 - opacity))
        entry, alpha = _levels(logits, "sh0.webp", version)
        meta["sh0"] = {end: meta["sh0"][end] + entry[end] for end in ("mins", "maxs")} | {"files": ["sh0.webp"]}
        meta["means"]["shape"] = [len(cloud), 3]
    else:
        alpha = np.rint(opacity * 255).astype(int)
        meta |= {"version": 2, "count": len(cloud), "model": "antialiased"}
    pictures["sh0.webp"] = np.concatenate([pictures["sh0.webp"], alpha], axis=1)
    files = {}
    if cloud.sh.shape[1] > 1:
        # A palette with one entry for every two Gaussians.
        coefficients, entries = cloud.sh.shape[1] - 1, (len(cloud) + 1) // 2
        cloud.sh[1::2, 1:] = cloud.sh[0::2, 1:][: len(cloud) // 2]
        meta["shN"], levels = _levels(cloud.sh[0::2, 1:].reshape(-1, 1), "", version)
        palette = np.zeros((math.ceil(entries / 64) * 64, coefficients, 3), int)
        palette[:entries] = levels.reshape(entries, coefficients, 3)
        meta["shN"] |= {"files": ["shN_centroids.webp", "shN_labels.webp"]}
        if version == 1:
            meta["shN"] |= {end: meta["shN"][end][0] for end in ("mins", "maxs")}
        else:
            meta["shN"] |= {"count": entries, "bands": math.isqrt(coefficients + 1) - 1}
        files["shN_centroids.webp"] = webp(palette.reshape(-1, 64 * coefficients, 3))
        labels = np.arange(len(cloud)) // 2
        pictures["shN_labels.webp"] = np.stack([labels & 255, labels >> 8, 0 * labels], axis=1)
    files |= {name: webp(_square(pixels)) for name, pixels in pictures.items()}
    return files | {"meta.json": json.dumps(meta).encode()}


def _levels(values: np.ndarray, name: str, version: int) -> tuple[dict[str, list[object]], np.ndarray]:
    """The meta.json entry and levels of values [N, D]: bounds for each column, or a code book for all."""
    if version == 1:
        low, high = values.min(axis=0), values.max(axis=0)
        levels = np.rint((values - low) / (high - low) * 255).astype(int)
        return {"mins": [*low], "maxs": [*high], "files": [name]}, levels
    # A nonlinear code book, so that a reader that ignores it fails.
    book = np.sort(np.quantile(values, np.linspace(0, 1, 256)))
    levels = np.abs(values[..., None] - book).argmin(axis=-1)
    return {"codebook": [*book], "files": [name]}, levels


def _square(pixels: np.ndarray) -> np.ndarray:
    """Arranges [N, D] as an image with some unused pixels."""
    width = math.ceil(math.sqrt(len(pixels)) / 4) * 4
    height = math.ceil(len(pixels) / width)
    picture = np.zeros((height * width, pixels.shape[1]), int)
    picture[: len(pixels)] = pixels
    return picture.reshape(height, width, -1)


def webp(levels: np.ndarray) -> bytes:
    """A lossless WebP picture, transparent pixels included."""
    buffer = BytesIO()
    Image.fromarray(levels.astype(np.uint8)).save(buffer, "WEBP", lossless=True, exact=True)
    return buffer.getvalue()


def write_sog(path: Path, cloud: Cloud, version: int = 2) -> None:
    """A bundled .sog file."""
    with zipfile.ZipFile(path, "w") as bundle:
        for name, content in sog_files(cloud, version).items():
            bundle.writestr(name, content)


def spz_content(cloud: Cloud, version: int) -> bytes:
    """Versions 1 to 3 of Niantic's format before compression; axes are converted to right, up, back."""
    degree = math.isqrt(cloud.sh.shape[1]) - 1
    content = struct.pack("<4sIIBBBB", b"NGSP", version, len(cloud), degree, 12, 0, 0)
    turned = cloud.means * (1, -1, -1)
    for value in turned.ravel():
        content += struct.pack("<e", value) if version == 1 else struct.pack("<i", round(value * 4096))[:3]
    content += bytes(round(value * 255) for value in cloud.opacities)
    content += bytes(round((0.15 * value + 0.5) * 255) for value in cloud.sh[:, 0].ravel())
    content += bytes(round((math.log(value) + 10) * 16) for value in cloud.scales.ravel())
    for w, x, y, z in cloud.quats * (1, 1, -1, -1):
        if version < 3:
            content += bytes(round((math.copysign(1, w) * value + 1) * 127.5) for value in (x, y, z))
            continue
        largest, others = left_out((x, y, z, w))
        word = largest
        for value in others:
            word = word << 10 | (value < 0) << 9 | round(abs(value) * math.sqrt(2) * 511)
        content += struct.pack("<I", word)
    # 1 for harmonics that, as polynomials in x, y, z, change their sign with y and z.
    odd = [1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0][: cloud.sh.shape[1] - 1]
    signs = np.where(np.array(odd, bool), -1, 1)[:, None]
    content += bytes(min(255, max(0, round(value * 128 + 128))) for value in (cloud.sh[:, 1:] * signs).ravel())
    return content
