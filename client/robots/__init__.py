"""Robots from URDF files as spheres, for `Client.query` and `mesh_distance`. Needs the extra `robot`."""

from lumigrad.client.robots.robot import Robot

__all__ = ["Robot"]
