"""The planner's robot: an arm of seven joints, written as a URDF with collision spheres along its links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lumigrad.client.robots import Robot


@dataclass(frozen=True)
class _Part:
    """A link that goes straight up from its joint; metres, radians."""

    name: str
    axis: str
    length: float
    radius: float
    limit: float


_PARTS = (
    _Part("turret", "0 0 1", 0.16, 0.09, 2.9),
    _Part("shoulder", "0 1 0", 0.20, 0.07, 1.9),
    _Part("upper_arm", "0 0 1", 0.22, 0.065, 2.9),
    _Part("elbow", "0 1 0", 0.20, 0.06, 2.6),
    _Part("forearm", "0 0 1", 0.22, 0.05, 2.9),
    _Part("wrist", "0 1 0", 0.10, 0.045, 2.2),
    _Part("hand", "0 0 1", 0.14, 0.035, 2.9),
)
# Height of the stand, metres.
FOOT = 0.28


def arm(folder: Path) -> Robot:
    """Writes arm.urdf into a folder, and loads it with its spheres."""
    path = folder / "arm.urdf"
    path.write_text(_urdf())
    return Robot.load(path, {part.name: _spheres(part) for part in _PARTS})


def _urdf() -> str:
    links = ["foot", *(part.name for part in _PARTS)]
    heights = [FOOT, *(part.length for part in _PARTS)]
    lines = [f'<link name="{name}"/>' for name in links]
    for part, parent, height in zip(_PARTS, links, heights, strict=False):
        lines.append(
            f'<joint name="{part.name}_joint" type="revolute"><parent link="{parent}"/><child link="{part.name}"/>'
            f'<origin xyz="0 0 {height}"/><axis xyz="{part.axis}"/>'
            f'<limit lower="{-part.limit}" upper="{part.limit}"/></joint>'
        )
    return '<robot name="arm">\n' + "\n".join(lines) + "\n</robot>\n"


def _spheres(part: _Part) -> list[list[float]]:
    """Returns spheres along the link, at most 0.75 radii apart."""
    count = 1 + int(np.ceil(part.length / (0.75 * part.radius)))
    return [[0.0, 0.0, height, part.radius] for height in np.linspace(0.0, part.length, count).tolist()]
