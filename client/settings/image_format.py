"""Wire formats of images, as arguments and as protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from lumigrad.client.base.arguments import one_of, values_of, whole_number
from lumigrad.client.errors import InvalidArgument
from lumigrad.v1 import image_pb2

ImageFormat = Literal["float32", "float16", "bfloat16", "uint8", "jpeg", "png"]
ImageFormats = Mapping[str, ImageFormat]

_WIRE = values_of(ImageFormat, image_pb2.ImageFormat)


def image_formats(value: Any, outputs: Sequence[str]) -> ImageFormats:
    """Returns the formats of `outputs` by name, without float32, from one format for all or formats by name."""
    asked = tuple(outputs) or ("color",)
    if isinstance(value, str) and value in _WIRE:
        return {} if value == "float32" else dict.fromkeys(asked, cast(ImageFormat, value))
    formats = value if isinstance(value, Mapping) else dict.fromkeys(asked, value)
    for name, entry in formats.items():
        if name not in asked:
            raise InvalidArgument.of(
                "image_format", f"expected names of the outputs, {', '.join(asked)}, got {name!r}; add it to outputs"
            )
        one_of("image_format", entry, _WIRE)
    return {name: entry for name, entry in formats.items() if entry != "float32"}


def jpeg_quality_of(value: Any, formats: ImageFormats) -> int:
    """Returns the checked quality of JPEG files."""
    if "jpeg" not in formats.values():
        raise InvalidArgument.of("jpeg_quality", 'belongs to image_format="jpeg"; leave it out')
    return whole_number("jpeg_quality", value, 1, 100)


def format_messages(formats: ImageFormats, jpeg_quality: int) -> list[image_pb2.OutputFormat]:
    """Returns the protobuf messages that request output formats."""
    messages: list[image_pb2.OutputFormat] = []
    for name, entry in formats.items():
        quality = jpeg_quality if entry == "jpeg" else 0
        messages.append(image_pb2.OutputFormat(name=name, format=_WIRE[entry], quality=quality))
    return messages
