"""`gsplat.strategy.mcmc`."""

from lumigrad.client.compat.gsplat.strategy.strategies import MCMCStrategy

__all__ = ["MCMCStrategy"]
