"""Gaussians in USD, as text, binary or zipped: the schema UsdVol of OpenUSD 26.03 and later."""

from lumigrad.client.formats.usd.layers import looks_like_usd
from lumigrad.client.formats.usd.read import read_usd
from lumigrad.client.formats.usd.write import write_usd

__all__ = ["looks_like_usd", "read_usd", "write_usd"]
