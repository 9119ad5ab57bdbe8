"""`gsplat.strategy.base`."""

from lumigrad.client.compat.gsplat.strategy.strategies import Strategy

__all__ = ["Strategy"]
