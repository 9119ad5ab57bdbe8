"""Gaussians in PlayCanvas' SOG: images with a meta.json, zipped or in a folder, or streamed in levels of detail."""

from lumigrad.client.formats.sog.files import META_NAME, ZIP_MAGIC
from lumigrad.client.formats.sog.read import read_sog
from lumigrad.client.formats.sog.streamed import STREAM_NAME, read_streamed_sog
from lumigrad.client.formats.sog.write import write_sog

__all__ = ["META_NAME", "STREAM_NAME", "ZIP_MAGIC", "read_sog", "read_streamed_sog", "write_sog"]
