"""The spheres of a robot, each fixed to the frame of a joint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.robots.chain import Chain, like, module_of


class Body:
    """S spheres.

    Attributes:
        links: the link of each sphere, S names.
    """

    def __init__(self, spheres: Mapping[str, Float64], chain: Chain) -> None:
        """Moves centres from the links' frames to those of their joints.

        Args:
            spheres: [n, 4] centres and radii, metres, by link.
            chain: of the links.

        Raises:
            InvalidArgument: a link that the chain does not have, or no spheres.
        """
        links: list[str] = []
        rows = [np.zeros((0, 4))]
        for link, own in spheres.items():
            if link not in chain.frames:
                known = ", ".join(chain.frames)
                raise InvalidArgument.of("spheres", f"expected links that the base carries ({known}), got {link!r}")
            matrix = chain.frames[link].matrix
            links += [link] * len(own)
            rows.append(np.concatenate([own[:, :3] @ matrix[:3, :3].T + matrix[:3, 3], own[:, 3:]], axis=1))
        if not links:
            raise InvalidArgument.of("spheres", "expected at least one sphere, got none")
        self.links = tuple(links)
        stacked = np.concatenate(rows)
        self._radii = stacked[:, 3]
        joints = np.array([chain.frames[link].joint for link in links])
        # The spheres of a joint are transformed together.
        order = np.argsort(joints, kind="stable")
        self._groups = [(int(joint), stacked[joints == joint, :3]) for joint in np.unique(joints)]
        self._places = [int(place) for place in np.argsort(order)]

    def at(self, frames: Sequence[tuple[Any, Any]]) -> Any:
        """[.., S, 4] centres in the world and radii, for the frames of `Chain.forward`; of the frames' array type."""
        xp = module_of(frames[0][0])
        groups = []
        for joint, own in self._groups:
            rotation, translation = frames[joint]
            groups.append(like(rotation, own) @ rotation.swapaxes(-1, -2) + translation[..., None, :])
        centres = xp.concatenate(groups, -2)[..., self._places, :]
        radii = xp.broadcast_to(like(centres, self._radii)[:, None], (*centres.shape[:-1], 1))
        return xp.concatenate([centres, radii], -1)
