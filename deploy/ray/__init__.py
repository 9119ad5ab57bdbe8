"""Lumigrad in a Ray cluster: Ray places workers and starts them again, and clients call them directly."""

from lumigrad.ray.cluster import start, status, stop
from lumigrad.ray.finding import client, targets, token
from lumigrad.ray.options import Options

__all__ = ["Options", "client", "start", "status", "stop", "targets", "token"]
