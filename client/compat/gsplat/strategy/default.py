"""`gsplat.strategy.default`."""

from lumigrad.client.compat.gsplat.strategy.strategies import DefaultStrategy

__all__ = ["DefaultStrategy"]
