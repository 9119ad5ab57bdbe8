"""A robot among obstacles: for each pose the worker is asked how far its spheres are, and they take the colours."""

from __future__ import annotations

from html import escape

import numpy as np
import viser

from lumigrad.client.arrays import Float64
from lumigrad.client.client import Client
from lumigrad.client.distances import Distances
from lumigrad.client.errors import LumigradError, Unavailable
from lumigrad.client.robots import Robot
from lumigrad.client.scene import SceneHandle
from lumigrad.client.viewer.color_scale import DISTANCES
from lumigrad.client.viewer.joint_panel import JointPanel
from lumigrad.client.viewer.latest import Latest
from lumigrad.client.viewer.sphere_view import SphereView
from lumigrad.client.world import World

_OUTPUTS = ("distance", "obstacle", "closest", "normal")
_SPAN_M, _SPANS_M = 0.1, (0.02, 1.0)
_PAUSE_S = 0.5


class Collisions:
    """Shared by all browsers: one robot, one pose.

    Attributes:
        clearances: [S] of the last pose that was answered, metres; None: none was yet.
    """

    def __init__(
        self, server: viser.ViserServer, client: Client, world: World, robot: Robot, trajectory: Float64
    ) -> None:
        """Shows the robot.

        Args:
            server: whose browsers show it.
            client: of the worker that is asked.
            world: the obstacles; stored at the worker.
            robot: with spheres.
            trajectory: [T, dof] joint values; the robot begins at the first.
        """
        self._client, self._world, self._robot = client, world, robot
        self._stored: SceneHandle = client.put(world)
        first = robot.spheres(trajectory[0])
        # Spheres of a radius below 0 are switched off.
        self._are_on = first[:, 3] > 0
        self._links = [link for link, is_on in zip(robot.sphere_links, self._are_on, strict=True) if is_on]
        self._spheres = SphereView(server, first[self._are_on])
        self.clearances: Float64 | None = None
        self._latest = Latest[Float64](self._ask)
        self._legend = server.gui.add_html("")
        self._answer = server.gui.add_html("")
        self._span = server.gui.add_slider("colours up to, m", *_SPANS_M, 0.01, _SPAN_M)
        joints = JointPanel(server, robot, trajectory, self._latest.put)
        self._span.on_update(lambda event: self._latest.put(joints.values))
        self._latest.put(trajectory[0])

    def close(self) -> None:
        """No more questions."""
        self._latest.close()

    def _ask(self, q: Float64) -> None:
        spheres = self._robot.spheres(q)[self._are_on]
        try:
            found = self._client.query(self._stored, spheres, outputs=_OUTPUTS)
        except LumigradError as error:
            self._answer.content = _line(f"no distances: {error}", is_bad=True)
            if isinstance(error, Unavailable) and not error.is_lasting:
                self._latest.again(q)
                self._latest.pause(_PAUSE_S)
            return
        clearances = found.distance.astype(np.float64) - spheres[:, 3]
        self._spheres.move(spheres)
        self._spheres.paint(clearances, self._span.value)
        self._say(found, clearances, spheres)
        self.clearances = clearances

    def _say(self, found: Distances, clearances: Float64, spheres: Float64) -> None:
        span = self._span.value
        marks = [f"{share * span:+.3g} m" if share else "0" for share in (-1.0, -0.5, 0.0, 0.5, 1.0)]
        legend = DISTANCES.legend("distance of a sphere's surface to the closest obstacle", marks)
        if legend != self._legend.content:
            self._legend.content = legend
        closest = int(np.argmin(clearances))
        number = int(found.obstacle[closest])
        if number < 0:
            self._answer.content = _line("no obstacles", is_bad=False)
            return
        clearance = float(clearances[closest])
        pair = f"{self._links[closest]} and {self._world.names[number]}"
        touching = int(np.count_nonzero(clearances < 0))
        text = f"closest: {pair}, {1000 * clearance:.1f} mm"
        if touching:
            text = f"{touching} of {len(clearances)} spheres collide; deepest: {pair}, {-1000 * clearance:.1f} mm"
        kernel_ms, round_trip_ms = found.timings.kernel_ms, found.timings.round_trip_ms
        cost = f"asked in {round_trip_ms:.1f} ms, kernels {kernel_ms:.2f} ms"
        self._answer.content = _line(text, is_bad=touching > 0) + _line(cost, is_bad=False)
        surface = spheres[closest, :3] - spheres[closest, 3] * found.normal[closest]
        self._spheres.mark(surface, found.closest[closest])


def _line(text: str, *, is_bad: bool) -> str:
    color = "color:#ff6b6b;" if is_bad else "opacity:0.8;"
    return f'<div style="{color}padding:0 0.75em 0.3em;font-size:0.8em">{escape(text)}</div>'
