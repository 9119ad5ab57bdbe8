"""Image formats of replies: float, uint8, PNG and JPEG."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from isal import isal_zlib
from simplejpeg import encode_jpeg

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.levels import write_levels
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.server.core.call import Call, NoLane
from lumigrad.server.core.limits import Limits, require, require_reply
from lumigrad.server.core.streams import named_tensor
from lumigrad.server.device.gpu_jpegs import GpuJpegs
from lumigrad.server.engines.content import Tensors
from lumigrad.server.engines.requests import Plan
from lumigrad.v1 import image_pb2, tensor_pb2

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# PNG colour types by number of channels: grey, RGB, RGBA.
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}
CHANNELS = tuple(_COLOR_TYPES)
# Filter "up" for every row: choosing filters per row takes longer and gains little for renders.
_FILTER_UP = 2


def png_of(levels: Array) -> bytes:
    """Encode an image, uint8 [H, W, 1 | 3 | 4], as PNG; mostly without the GIL."""
    height, width, channels = levels.shape
    rows = levels.reshape(height, width * channels)
    filtered = np.empty((height, width * channels + 1), np.uint8)
    filtered[:, 0] = _FILTER_UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    # ISA-L's level 2 gains nothing for renders, and zlib takes four to six times as long.
    data = isal_zlib.compress(filtered.data, 1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    return b"".join((_SIGNATURE, *_chunk(b"IHDR", header), *_chunk(b"IDAT", data), *_chunk(b"IEND", b"")))


def jpeg_of(levels: Array, quality: int, jpegs: GpuJpegs | None = None, call: Call | None = None) -> bytes:
    """Encode an image, uint8 [H, W, 3], as JPEG, without the GIL, on the device if it can; `quality` is 1 to 100.

    A wait for the device ends with the call.
    """
    are_halved = quality < _FINE_QUALITY
    file = None if jpegs is None else jpegs.encode(levels, quality, call, are_colors_halved=are_halved)
    if file is not None:
        return file
    return bytes(encode_jpeg(np.ascontiguousarray(levels), quality, colorsubsampling="420" if are_halved else "444"))


def _chunk(kind: bytes, data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    return struct.pack(">I", len(data)), kind, data, struct.pack(">I", isal_zlib.crc32(data, isal_zlib.crc32(kind)))


_FLOAT16, _BFLOAT16 = image_pb2.IMAGE_FORMAT_FLOAT16, image_pb2.IMAGE_FORMAT_BFLOAT16
_UINT8, _JPEG, _PNG = image_pb2.IMAGE_FORMAT_UINT8, image_pb2.IMAGE_FORMAT_JPEG, image_pb2.IMAGE_FORMAT_PNG
_TORCH: Mapping[int, torch.dtype] = {_FLOAT16: torch.float16, _BFLOAT16: torch.bfloat16}
_FILES = (_JPEG, _PNG)
_OF_LEVELS = (_UINT8, *_FILES)

# Outputs with values from 0 to 1; then all outputs that are float images.
_LEVELS = ("color", "alpha", "transmittance")
_FLOATS = (*_LEVELS, "depth", "expected_depth", "inverse_depth", "weights")
_TAKES: Mapping[int, tuple[str, ...]] = {
    _FLOAT16: _FLOATS,
    _BFLOAT16: _FLOATS,
    _UINT8: _LEVELS,
    _PNG: _LEVELS,
    _JPEG: ("color",),
}
_JPEG_CHANNELS = (3,)
_DEFAULT_QUALITY = 90
# JPEG colours keep the full resolution from this quality on.
_FINE_QUALITY = 90


@dataclass(frozen=True)
class ImageFormats:
    """The checked formats of a request's outputs; outputs without a format are sent unchanged."""

    by_name: Mapping[str, image_pb2.OutputFormat] = field(default_factory=dict)

    @staticmethod
    def of(entries: Sequence[image_pb2.OutputFormat], plan: Plan, path: str) -> ImageFormats:
        """Check formats; `path` is their path in the request."""
        formats: dict[str, image_pb2.OutputFormat] = {}
        for index, entry in enumerate(entries):
            where = f"{path}[{index}]"
            known = entry.name in plan.outputs and entry.name not in formats
            require(known, f"{where}.name", f"one of the outputs, {', '.join(plan.outputs)}, each once", entry.name)
            _check(entry, plan.output_shapes[entry.name], where)
            formats[entry.name] = entry
        return ImageFormats(formats)

    def value_bytes(self, plan: Plan, name: str) -> int:
        """Return the bytes of one value of an output as sent; approximate for files, which may be a little larger."""
        kind = self._kind(name)
        if kind in _TORCH:
            return _TORCH[kind].itemsize
        return 1 if kind in _OF_LEVELS else plan.value_bytes(name)

    def reply_bytes(self, plan: Plan, limits: Limits, field: str) -> int:
        """Check and return the size of a reply with the outputs of a plan; `field` is the path of the spec."""
        size = sum(self.value_bytes(plan, name) * prod(plan.output_shapes[name]) for name in plan.outputs)
        require_reply(size, limits, f"{field}.outputs")
        return size

    def unchanged(self, names: Sequence[str]) -> list[str]:
        """Return the outputs that are float images and are sent unchanged."""
        return [name for name in names if name in _FLOATS and self._kind(name) == image_pb2.IMAGE_FORMAT_FLOAT32]

    def lanes(self, names: Sequence[str], call: Call) -> list[NoLane]:
        """Return the lane for each output; files have none, because they are encoded first."""
        return [NoLane() if self.are_files(name) else call.lane for name in names]

    def converted(self, outputs: Tensors) -> list[torch.Tensor]:
        """Convert outputs to the values to send, or to levels for files; on the device's thread."""
        return [self._converted(name, output) for name, output in outputs.items()]

    def named(
        self, arrays: Mapping[str, Array], payload: PayloadWriter, call: Call, jpegs: GpuJpegs | None
    ) -> list[tensor_pb2.NamedTensor]:
        """Append converted outputs to a payload, encoding files first; not on the device's thread."""
        return [self._named(name, array, payload, call, jpegs) for name, array in arrays.items()]

    @property
    def key(self) -> Hashable:
        """A key that is equal for formats that encode in the same way."""
        return frozenset((name, entry.format, entry.quality) for name, entry in self.by_name.items())

    def are_levels(self, name: str) -> bool:
        """Return whether an output is sent as levels, or as files that encode levels."""
        return self._kind(name) in _OF_LEVELS

    def are_files(self, name: str) -> bool:
        """Return whether the images of an output are sent as files."""
        return self._kind(name) in _FILES

    def files(
        self, name: str, levels: Array, call: Call, jpegs: GpuJpegs | None
    ) -> tuple[Array, image_pb2.EncodedImages]:
        """Encode the images of an output, concatenated as bytes; not on the device's thread."""
        entry, files = self.by_name[name], []
        with call.times.stage("compress"):
            for view in levels:
                call.check()
                files.append(_file(view, entry, jpegs, call))
        encoded = image_pb2.EncodedImages(format=entry.format, lengths=map(len, files))
        return np.frombuffer(b"".join(files), np.uint8), encoded

    def _kind(self, name: str) -> int:
        entry = self.by_name.get(name)
        return image_pb2.IMAGE_FORMAT_FLOAT32 if entry is None else entry.format

    def _converted(self, name: str, output: torch.Tensor) -> torch.Tensor:
        kind = self._kind(name)
        if kind in _TORCH:
            return output.to(_TORCH[kind])
        return _levels(output) if kind in _OF_LEVELS else output

    def _named(
        self, name: str, array: Array, payload: PayloadWriter, call: Call, jpegs: GpuJpegs | None
    ) -> tensor_pb2.NamedTensor:
        if not self.are_files(name):
            return named_tensor(name, array, payload)
        content, encoded = self.files(name, array, call, jpegs)
        return tensor_pb2.NamedTensor(name=name, tensor=payload.add(content), encoded=encoded)


def _check(entry: image_pb2.OutputFormat, shape: Sequence[int], where: str) -> None:
    kind = image_pb2.ImageFormat.DESCRIPTOR.values_by_number.get(entry.format)
    require(kind is not None, f"{where}.format", "a known format", entry.format)
    takes = _TAKES.get(entry.format)
    if takes is not None and kind is not None:
        short = kind.name.removeprefix("IMAGE_FORMAT_")
        require(entry.name in takes, f"{where}.format", f"{short} only for {_either(takes)}", entry.name)
        if entry.name == "color" and entry.format in _FILES:
            fit = _JPEG_CHANNELS if entry.format == _JPEG else CHANNELS
            limit = f"{short} for a scene of {_either(fit)} channels"
            require(shape[-1] in fit, f"{where}.format", limit, f"{shape[-1]} channels")
    highest = 100 if entry.format == _JPEG else 0
    limit = f"0 to {highest}" if highest else "0 for formats other than JPEG"
    require(entry.quality <= highest, f"{where}.quality", limit, entry.quality)


def _either(values: Sequence[object]) -> str:
    return " or ".join(", ".join(map(str, values)).rsplit(", ", 1))


def _levels(values: torch.Tensor) -> torch.Tensor:
    """Return the levels of an image; an image that kernels have written as levels is returned unchanged."""
    if values.dtype == torch.uint8:
        return values
    levels = empty(values.shape, torch.uint8, values.device)
    write_levels(values, levels)
    return levels


def _file(levels: Array, entry: image_pb2.OutputFormat, jpegs: GpuJpegs | None, call: Call) -> bytes:
    """Encode one view, [H, W] or [H, W, K], as a file."""
    if entry.format == _PNG:
        return png_of(levels.reshape(*levels.shape[:2], -1))
    return jpeg_of(levels, entry.quality or _DEFAULT_QUALITY, jpegs, call)
