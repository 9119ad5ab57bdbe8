"""A robot among obstacles, with sliders for its joints and spheres coloured by distance."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np
import trimesh
import viser

from lumigrad.client.base.arrays import Float64
from lumigrad.client.client import Client
from lumigrad.client.distances.answer import Distances
from lumigrad.client.errors import LumigradError, Unavailable, shortened
from lumigrad.client.robots import Robot
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.world import World
from lumigrad.client.viewer.modes import DISTANCES, Levels
from lumigrad.client.viewer.stream import Latest

# The slider range of joints without limits, radians or metres.
_WIDEST = math.pi
_STEPS = 200


class JointPanel:
    """Sliders for the joints; calls `changed` with their values whenever one is moved."""

    def __init__(
        self, server: viser.ViserServer, robot: Robot, trajectory: Float64, changed: Callable[[Float64], None]
    ) -> None:
        """Creates the sliders.

        Args:
            server: the server whose browsers show them.
            robot: the robot of the joints.
            trajectory: [T, dof] joint values; the sliders start at the first.
            changed: called with [dof] joint values.
        """
        self._changed, self._trajectory = changed, trajectory
        # Suppresses a call per slider while the sliders follow the trajectory.
        self._is_following = False
        gui = server.gui
        if len(trajectory) > 1:
            self._step = gui.add_slider("time step", 0, len(trajectory) - 1, 1, 0)
            self._step.on_update(self._on_step)
        with gui.add_folder("joints", expand_by_default=robot.dof <= 8):
            self._sliders = [
                _slider(gui, name, limits, float(value))
                for name, limits, value in zip(robot.joint_names, robot.limits, trajectory[0], strict=True)
            ]
        for slider in self._sliders:
            slider.on_update(self._on_joint)

    @property
    def values(self) -> Float64:
        """[dof] joint values."""
        return np.array([slider.value for slider in self._sliders], np.float64)

    def _on_joint(self, event: Any) -> None:
        if not self._is_following:
            self._changed(self.values)

    def _on_step(self, event: Any) -> None:
        values = self._trajectory[int(self._step.value)]
        self._is_following = True
        try:
            for slider, value in zip(self._sliders, values, strict=True):
                slider.value = min(max(float(value), slider.min), slider.max)  # type: ignore[misc]
        finally:
            self._is_following = False
        self._changed(values)


def _slider(gui: viser.GuiApi, name: str, limits: Float64, value: float) -> viser.GuiSliderHandle[float]:
    low, high = map(float, np.where(np.isfinite(limits), limits, (-_WIDEST, _WIDEST)))
    # Trajectories may leave the limits.
    low, high = min(low, value), max(high, value, low + 1e-3)
    return gui.add_slider(name, low, high, (high - low) / _STEPS, value)


_SUBDIVISIONS = 3
_UNKNOWN = (168, 174, 184)
_LINE = (255, 255, 255)


class SphereView:
    """S spheres with changing positions and colours."""

    def __init__(self, server: viser.ViserServer, spheres: Float64) -> None:
        """Draws the spheres.

        Args:
            server: the server whose browsers draw them.
            spheres: [S, 4] initial centres and radii, metres.
        """
        self._scene = server.scene
        ball = trimesh.creation.icosphere(subdivisions=_SUBDIVISIONS)
        turns = np.zeros((len(spheres), 4))
        turns[:, 0] = 1.0
        self._balls = server.scene.add_batched_meshes_simple(
            "/robot", ball.vertices, ball.faces, turns, spheres[:, :3], batched_scales=spheres[:, 3],
            batched_colors=np.tile(np.array(_UNKNOWN, np.uint8), (len(spheres), 1)), cast_shadow=False,
        )  # fmt: skip
        self._line: viser.LineSegmentsHandle | None = None

    def move(self, spheres: Float64) -> None:
        """Moves the spheres to the centres in [S, 4]; their radii do not change."""
        self._balls.batched_positions = spheres[:, :3].astype(np.float32)

    def paint(self, clearances: Float64, span: float) -> None:
        """Colours the spheres by [S] distances of surfaces, metres, from -`span` to `span`."""
        self._balls.batched_colors = colors_of(clearances, span)

    def mark(self, start: Float64, end: Float64) -> None:
        """Draws the line between two points [3], replacing the previous one."""
        points = np.stack([start, end])[None].astype(np.float32)
        if self._line is None:
            self._line = self._scene.add_line_segments(
                "/closest", points, _LINE, thickness=3.0, thickness_units="screen"
            )
        else:
            self._line.points = points


def colors_of(clearances: Float64, span: float) -> Levels:
    """Returns [S, 3], the legend's colours for distances [S], metres."""
    return DISTANCES.levels(np.clip(clearances / span, -1.0, 1.0) / 2 + 0.5)


def legend_of(what: str, span: float) -> str:
    """Returns HTML of the colours from -`span` to `span`, metres; `what` says what the distances are."""
    marks = [f"{share * span:+.3g} m" if share else "0" for share in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    return DISTANCES.legend(what, marks)


_log = logging.getLogger("lumigrad")
_OUTPUTS = ("distance", "obstacle", "closest", "normal")
_SPAN_M, _SPANS_M = 0.1, (0.02, 1.0)
_PAUSE_S = 0.5


class Collisions:
    """The robot and its pose, shared by all browsers.

    Attributes:
        clearances: [S] distances at the last measured pose, metres; None before the first measurement.
    """

    def __init__(
        self, server: viser.ViserServer, client: Client, world: World, robot: Robot, trajectory: Float64
    ) -> None:
        """Shows the robot.

        Args:
            server: the server whose browsers show it.
            client: a client of the worker that measures.
            world: the obstacles, stored on the worker.
            robot: a robot with spheres.
            trajectory: [T, dof] joint values; the robot starts at the first.
        """
        self._client, self._world, self._robot = client, world, robot
        self._stored: SceneHandle = client.put(world)
        first = robot.spheres(trajectory[0])
        # Spheres with a negative radius are disabled.
        self._are_on = first[:, 3] > 0
        self._links = [link for link, is_on in zip(robot.sphere_links, self._are_on, strict=True) if is_on]
        self._spheres = SphereView(server, first[self._are_on])
        self.clearances: Float64 | None = None
        self._latest = Latest[Float64](self._measure, self._fail)
        self._legend = server.gui.add_html("")
        self._answer = server.gui.add_html("")
        self._span = server.gui.add_slider("colours up to, m", *_SPANS_M, 0.01, _SPAN_M)
        joints = JointPanel(server, robot, trajectory, self._latest.put)
        self._span.on_update(lambda event: self._latest.put(joints.values))
        self._latest.put(trajectory[0])

    def close(self) -> None:
        """Stops measuring."""
        self._latest.close()

    def _measure(self, q: Float64) -> None:
        spheres = self._robot.spheres(q)[self._are_on]
        try:
            found = self._client.query(self._stored, spheres, outputs=_OUTPUTS)
        except Unavailable as error:
            self._fail(error)
            if not error.is_lasting:
                self._latest.again(q)
                self._latest.pause(_PAUSE_S)
            return
        clearances = found.distance.astype(np.float64) - spheres[:, 3]
        self._spheres.move(spheres)
        self._spheres.paint(clearances, self._span.value)
        self._show_answer(found, clearances, spheres)
        self.clearances = clearances

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, LumigradError):
            _log.warning("an error in the viewer", exc_info=error)
        self._answer.content = _line(f"no distances: {shortened(str(error))}", is_bad=True)

    def _show_answer(self, found: Distances, clearances: Float64, spheres: Float64) -> None:
        legend = legend_of("distance of a sphere's surface to the closest obstacle", self._span.value)
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
            collide = "collides" if touching == 1 else "collide"
            text = f"{touching} of {len(clearances)} spheres {collide}; deepest: {pair}, {-1000 * clearance:.1f} mm"
        kernel_ms, round_trip_ms = found.timings.kernel_ms, found.timings.round_trip_ms
        cost = f"answered in {round_trip_ms:.1f} ms, kernels {kernel_ms:.2f} ms"
        self._answer.content = _line(text, is_bad=touching > 0) + _line(cost, is_bad=False)
        surface = spheres[closest, :3] - spheres[closest, 3] * found.normal[closest]
        self._spheres.mark(surface, found.closest[closest])


def _line(text: str, *, is_bad: bool) -> str:
    color = "color:#ff6b6b;" if is_bad else "opacity:0.8;"
    return f'<div style="{color}padding:0 0.75em 0.3em;font-size:0.8em">{escape(text)}</div>'
