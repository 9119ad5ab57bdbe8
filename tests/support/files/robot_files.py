"""Generated robots: a URDF with every type of joint, and a UR10e with its published dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr


@dataclass(frozen=True)
class JointLine:
    """A <joint> element; `inner` is inserted verbatim."""

    name: str
    kind: str
    parent: str
    child: str
    xyz: str = "0 0 0"
    rpy: str = "0 0 0"
    axis: str = "0 0 1"
    limits: tuple[float, float] | None = (-2.0, 2.0)
    inner: str = ""

    def __str__(self) -> str:
        limit = "" if self.limits is None else f'<limit lower="{self.limits[0]}" upper="{self.limits[1]}"/>'
        return (
            f"<joint name={quoteattr(self.name)} type={quoteattr(self.kind)}>"
            f'<parent link="{self.parent}"/><child link="{self.child}"/><axis xyz="{self.axis}"/>'
            f'<origin xyz="{self.xyz}" rpy="{self.rpy}"/>{limit}{self.inner}</joint>'
        )


MIMIC = '<mimic joint="left" multiplier="-1" offset="0.005"/>'
FLIPPED = "1.570796327 3.141592654 3.141592654"
# A prismatic mast, an arm with a continuous joint, a gripper whose second finger mimics the first, and a fixed flag.
ZOO = (
    JointLine("mount", "fixed", "world", "base", "0.1 0 0.2", "0 0 0.3"),
    JointLine("rise", "prismatic", "base", "mast", "0 0 0.1", "0.1 0 0", "0 0 2", (0.0, 0.5)),
    JointLine("turn", "continuous", "mast", "arm", "0.3 0.1 0", "0 0.5 0", "1 1 0", None),
    JointLine("wrist", "revolute", "arm", "hand", "0 0.4 0", "1.2 0.1 -0.7", "0 -1 0", (-1.5, 0.5)),
    JointLine("left", "prismatic", "hand", "left_finger", "0 0.02 0.1", axis="0 1 0", limits=(0.0, 0.04)),
    JointLine(
        "right", "prismatic", "hand", "right_finger", "0 -0.02 0.1", axis="0 1 0", limits=(-0.04, 0.0), inner=MIMIC
    ),
    JointLine("pole", "fixed", "mast", "flag", "0 0 0.5", "0 0 1"),
)
ZOO_SPHERES = {
    "flag": [[0.0, 0.0, 0.1, 0.05]],
    "base": [[0.0, 0.0, 0.0, 0.2], [0.1, 0.0, 0.0, 0.1]],
    "hand": [{"center": [0.0, 0.0, 0.05], "radius": 0.06}, {"center": [0.0, 0.01, 0.0], "radius": -1.0}],
    "right_finger": [[0.0, -0.01, 0.02, 0.01]],
    "arm": [[0.0, 0.2, 0.0, 0.08]],
}
# The manufacturer's dimensions, metres and radians, in the axes of cuRobo's spheres.
UR10E = (
    JointLine("shoulder_pan_joint", "revolute", "base_link", "shoulder_link", "0 0 0.1807"),
    JointLine("shoulder_lift_joint", "revolute", "shoulder_link", "upper_arm_link", "0 0 0", "1.570796327 0 0"),
    JointLine("elbow_joint", "revolute", "upper_arm_link", "forearm_link", "-0.6127 0 0"),
    JointLine("wrist_1_joint", "revolute", "forearm_link", "wrist_1_link", "-0.57155 0 0.17415"),
    JointLine("wrist_2_joint", "revolute", "wrist_1_link", "wrist_2_link", "0 -0.11985 0", "1.570796327 0 0"),
    JointLine("wrist_3_joint", "revolute", "wrist_2_link", "wrist_3_link", "0 0.11655 0", FLIPPED),
    JointLine("flange", "fixed", "wrist_3_link", "tool0"),
)


def write_urdf(path: Path, joints: Sequence[JointLine], collisions: dict[str, str] | None = None) -> Path:
    """A URDF of these joints and their links; `collisions` are the inner parts of links."""
    links: dict[str, str] = {}
    for joint in joints:
        for link in (joint.parent, joint.child):
            links[link] = (collisions or {}).get(link, "")
    lines = [f"<link name={quoteattr(name)}>{inner}</link>" for name, inner in links.items()]
    path.write_text("\n".join(['<?xml version="1.0"?><robot name="made">', *lines, *map(str, joints), "</robot>"]))
    return path
