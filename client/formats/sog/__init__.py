"""Gaussians in PlayCanvas' SOG: images with a meta.json, zipped or in a folder, or streamed in levels of detail."""

from lumigrad.client.formats.sog.files import META_NAME, ZIP_MAGIC
from lumigrad.client.formats.sog.read import read_sog
from lumigrad.client.formats.sog.streamed import STREAM_NAME, StreamIndex, read_streamed_sog
from lumigrad.client.formats.sog.write import sog_files, write_sog

__all__ = [
    "META_NAME",
    "STREAM_NAME",
    "ZIP_MAGIC",
    "StreamIndex",
    "read_sog",
    "read_streamed_sog",
    "sog_files",
    "write_sog",
]
