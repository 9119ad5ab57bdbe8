"""A robot as a value: its joints, and the spheres that represent its links in collision queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import names as checked_names
from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.robots.chain import Body, Chain, Drives, Joint, floating, like, module_of, poses_of
from lumigrad.client.robots.sphere_file import SphereFile
from lumigrad.client.robots.urdf import Urdf, mesh_of
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.rotations import IDENTITY, matrix_of, pose_array


@dataclass(frozen=True, eq=False)
class Robot:
    """A tree of links, and S spheres fixed to them.

    Attributes:
        joint_names: names of the joints that q sets, in order.
        limits: [dof, 2] lowest and highest value of each; radians or metres, infinite without limit.
        rest: [dof] default joint values: the sphere file's, else the values within the limits closest to 0.
        base: [7] pose of the base link in the world: x y z in metres, then a quaternion w x y z.

    Example:
        robot = Robot.load(folder / "robot.urdf", folder / "robot.yml")
        client.query(world, robot.spheres(robot.rest)[None, None])
    """

    joint_names: tuple[str, ...]
    limits: Float64
    rest: Float64
    base: Float64
    _chain: Chain
    _body: Body
    _urdf: Urdf

    @staticmethod
    def load(
        urdf: str | PathLike[str],
        spheres: str | PathLike[str] | Mapping[str, Any],
        *,
        joints: Sequence[str] | None = None,
        locked: Mapping[str, float] | None = None,
        base_link: str | None = None,
        base: Any = IDENTITY,
    ) -> Robot:
        """Reads a robot. Needs the extra `robot`.

        Args:
            urdf: URDF file with fixed, revolute, continuous and prismatic joints, mimic joints included.
            spheres: cuRobo's YAML file of the robot (collision_spheres, collision_link_names, collision_sphere_buffer,
                extra_links, base_link, lock_joints, and of cspace joint_names and default_joint_position are read), a
                YAML file or a dict of spheres by link: {link: [{center: [x, y, z], radius: r}, ..]} or
                {link: [n, 4]}, metres in the link's frame. A sphere with a negative radius is disabled.
            joints: names of the joints that q sets, in order; None: the sphere file's, or all that are not mimic.
            locked: fixed joints and their values, radians or metres; added to the sphere file's.
            base_link: root of the robot, without the links above it; None: the sphere file's, or the URDF's root.
            base: pose of the base link in the world: [7] x y z in metres, then a quaternion w x y z; or [3] or [4, 4].

        Raises:
            InvalidArgument: an invalid file or unknown names; names the place.

        Example:
            robot = Robot.load("franka.urdf", "franka.yml")
        """
        model, given = Urdf.read(urdf), SphereFile.of(spheres)
        all_joints = (*model.joints, *given.links)
        still = {**given.locked, **(locked or {})}
        root = base_link or given.base_link or model.root
        if root not in model.links:
            raise InvalidArgument.of("base_link", f"expected a link of {model.path}, got {root!r}")
        moving = joints if joints is not None else given.joints
        if moving is None:
            moving = tuple(joint.name for joint in _free_below(root, model))
        columns = tuple(name for name in checked_names("joints", moving) if name not in still)
        drives = Drives(all_joints, columns, still)
        chain = Chain(root, all_joints, drives)
        body = Body(given.spheres, chain)
        limits = drives.limits()
        # The lower limit is above the upper one for joints that turn freely: these rest at 0.
        near = np.where(limits[:, 0] <= limits[:, 1], np.clip(0.0, *limits.T), 0.0)
        rest = np.array([given.rest.get(name, value) for name, value in zip(columns, near, strict=True)])
        return Robot(columns, limits, rest, pose_array("base", base), chain, body, model)

    def __repr__(self) -> str:
        return f"Robot({self._urdf.path.name}, {self.dof} joints, {len(self)} spheres)"

    def __len__(self) -> int:
        """S, the number of spheres."""
        return len(self._body.links)

    @property
    def dof(self) -> int:
        """The number of values in q."""
        return len(self.joint_names)

    @property
    def links(self) -> tuple[str, ...]:
        """All links, the base first."""
        return tuple(self._chain.frames)

    @property
    def sphere_links(self) -> tuple[str, ...]:
        """The link of each sphere, S names: links in the order of the sphere file, each with its spheres in order."""
        return self._body.links

    def at(self, base: Any) -> Robot:
        """Returns a copy with another base pose.

        Args:
            base: pose of the base link in the world: [7] x y z in metres, then a quaternion w x y z; or [3] or [4, 4].

        Raises:
            InvalidArgument: a pose of another shape.

        Example:
            raised = robot.at((0, 0, 0.5))
        """
        return replace(self, base=pose_array("base", base))

    def spheres(self, q: Any) -> Any:
        """Computes the spheres in the world; differentiable if q is a torch tensor.

        Args:
            q: [.., dof] joint values, radians and metres, NumPy or torch. They may lie outside the limits.

        Returns:
            [.., S, 4] centres in the world and radii, metres; of q's array type, floating type and device. For
            `Client.query` and `mesh_distance` q is [B, H, dof].

        Raises:
            InvalidArgument: q has another last axis than the joints.

        Example:
            spheres = robot.spheres(np.zeros((10, robot.dof)))  # [10, S, 4]
        """
        return self._body.at(self._chain.forward(self._checked(q), matrix_of("base", self.base)))

    def link_poses(self, q: Any, links: Sequence[str] | None = None) -> Any:
        """Computes the poses of links; differentiable if q is a torch tensor.

        Args:
            q: [.., dof] as in `spheres`.
            links: names of links; None: all, in the order of `links`.

        Returns:
            [.., L, 7] poses, link -> world: x y z in metres, then a unit quaternion w x y z; of q's array type.

        Raises:
            InvalidArgument: q has another last axis than the joints, or there is no such link.

        Example:
            poses = robot.link_poses(np.zeros(robot.dof))  # [L, 7]
        """
        wanted = self.links if links is None else checked_names("links", links)
        for link in wanted:
            if link not in self._chain.frames:
                raise InvalidArgument.of(
                    "links", f"expected links of the robot ({', '.join(self.links)}), got {link!r}"
                )
        q = self._checked(q)
        xp = module_of(q)
        frames = [self._chain.frames[link] for link in wanted]
        moved = self._chain.forward(q, matrix_of("base", self.base))
        rotations = xp.stack([moved[frame.joint][0] for frame in frames], -3)
        translations = xp.stack([moved[frame.joint][1] for frame in frames], -2)
        fixed = like(q, np.array([frame.matrix for frame in frames]).reshape(-1, 4, 4))
        return poses_of(rotations @ fixed[:, :3, :3], (rotations @ fixed[:, :3, 3:])[..., 0] + translations)

    @cached_property
    def collision_meshes(self) -> dict[str, Mesh]:
        """The URDF's collision meshes: one for each link, by name, in the link's frame, metres.

        With `link_poses` they serve as obstacles for other robots. Those of spheres and cylinders lie inside them by at
        most 0.2% of the radius, so distances may be that much too large. Read on first use.

        Raises:
            InvalidArgument: a mesh file is missing or invalid.
        """
        return {link: mesh_of(self._urdf, link) for link in self.links if link in self._urdf.shapes}

    def _checked(self, q: Any) -> Any:
        q = floating("q", q)
        if q.ndim < 1 or q.shape[-1] != self.dof:
            raise InvalidArgument.of(
                "q", f"expected shape [.., {self.dof}] ({', '.join(self.joint_names)}), got {list(q.shape)}"
            )
        return q


def _free_below(root: str, urdf: Urdf) -> list[Joint]:
    """Returns the movable joints below a link that mimic no other, in the order of the file."""
    below = {root}
    grown = True
    while grown:
        children = {joint.child for joint in urdf.joints if joint.parent in below} - below
        grown = bool(children)
        below |= children
    return [joint for joint in urdf.joints if joint.moves and joint.mimic is None and joint.parent in below]
