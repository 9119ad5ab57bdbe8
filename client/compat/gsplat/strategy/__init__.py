"""gsplat's strategies of densification (`gsplat.strategy`) in plain torch: no worker is called."""

from lumigrad.client.compat.gsplat.strategy.strategies import DefaultStrategy, MCMCStrategy, Strategy

__all__ = ["DefaultStrategy", "MCMCStrategy", "Strategy"]
