"""Reads AlpaSim's logs (.asl): the frames that a driving simulator requested."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from google.protobuf.message import DecodeError

from lumigrad.client.formats.source import malformed
from lumigrad.drive.v1 import frame_pb2, sensorsim_pb2

_LENGTH = struct.Struct(">L")
# Entries with pictures are a few megabytes.
_LONGEST = 1 << 30

Request = sensorsim_pb2.RGBRenderRequest


def read_drive_log(path: str | PathLike[str]) -> Iterator[list[Request]]:
    """Yields the picture requests of a log in order, one list for each call.

    Args:
        path: the log, a file of length-prefixed messages.

    Raises:
        InvalidArgument: the file is not a log of AlpaSim, or is truncated.

    Example:
        for requests in read_drive_log("rollout.asl"):
            pictures = client.drive_pictures(requests)
    """
    path = Path(path)
    with open(path, "rb") as file:
        at = 0
        while head := file.read(_LENGTH.size):
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _LONGEST + 1
            raw = file.read(length) if length <= _LONGEST else b""
            if at == 0 and len(raw) != length:
                raise malformed(
                    path, "expected a log of AlpaSim's requests, got a file that begins with no whole entry"
                )
            if len(raw) != length:
                raise malformed(path, f"expected an entry of {length:,} bytes at byte {at:,}, but it is cut off")
            try:
                entry = frame_pb2.LogEntry.FromString(raw)
            except DecodeError as error:
                raise malformed(path, f"expected entries of AlpaSim's logs, got others at byte {at:,}") from error
            at += _LENGTH.size + length
            requests = [
                *([entry.render_request] if entry.HasField("render_request") else []),
                *entry.aggregated_render_request.rgb_requests,
                *(item.request for item in entry.batch_render_request.items),
            ]
            if requests:
                yield requests
