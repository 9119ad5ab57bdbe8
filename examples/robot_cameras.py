"""Cameras of robots in 64 environments: MuJoCo moves and draws the robots, Lumigrad draws what surrounds them.

A table with flowers, which is a scene of Gaussians, stands before each robot; every fourth environment has the same
colours. The arms and balls are MuJoCo's, and a pixel shows what is nearer. All surroundings of a step come in one call:
colours in 8 bits, and depths in metres in 16. The same is timed with a call for each camera. Needs
`pip install "mujoco<4"`, and EGL or another OpenGL for MuJoCo's own pictures (MUJOCO_GL).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from local_worker import worker
from lumigrad.client import Camera, Client, Frame, Gaussians, SceneHandle
from lumigrad.client.pictures import write_image

os.environ.setdefault("MUJOCO_GL", "egl")
import mujoco

Array = npt.NDArray[np.float32]
Levels = npt.NDArray[np.uint8]

FOV_DEGREES, DISTANCE_M, TARGET = 45.0, 4.2, (0.0, 0.0, 0.75)
# Physics steps of 2 ms between two pictures.
SUBSTEPS = 10
OUTPUTS = ("color", "alpha", "expected_depth")
FORMATS = {"color": "uint8", "alpha": "uint8", "expected_depth": "float16"}
# Orders of the colours' channels.
TINTS = ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1))
# The table and the vase are there for contacts alone: the Gaussians show them.
MODEL = """
<mujoco>
  <option timestep="0.002"/>
  <visual><headlight ambient="0.4 0.4 0.4" diffuse="0.5 0.5 0.5"/><map znear="0.01" zfar="30"/></visual>
  <default><geom rgba="0.85 0.87 0.9 1"/><joint damping="4"/></default>
  <worldbody>
    <geom type="cylinder" size="1.15 0.04" pos="0 0 -0.04" rgba="0 0 0 0"/>
    <geom type="cylinder" size="0.35 0.5" pos="0 0 0.5" rgba="0 0 0 0"/>
    <body pos="0.8 -0.2 0">
      <geom type="cylinder" size="0.1 0.06" pos="0 0 0.06" rgba="0.2 0.22 0.25 1"/>
      <body pos="0 0 0.12">
        <joint name="turn" axis="0 0 1"/><geom type="capsule" size="0.06" fromto="0 0 0 0 0 0.35"/>
        <body pos="0 0 0.35">
          <joint name="lift" axis="0 1 0"/>
          <geom type="capsule" size="0.05" fromto="0 0 0 0 0 0.55" rgba="0.95 0.55 0.1 1"/>
          <body pos="0 0 0.55">
            <joint name="bend" axis="0 1 0"/><geom type="capsule" size="0.04" fromto="0 0 0 0 0 0.45"/>
            <geom type="sphere" size="0.07" pos="0 0 0.45" rgba="0.2 0.22 0.25 1"/>
          </body>
        </body>
      </body>
    </body>
    BALLS
  </worldbody>
  <actuator>
    <position joint="turn" kp="60"/><position joint="lift" kp="80"/><position joint="bend" kp="60"/>
  </actuator>
</mujoco>
"""
BALL = '<body pos="{x:.3f} {y:.3f} {z:.3f}"><freejoint/><geom type="sphere" size="0.09" rgba="{r} {g} {b} 1"/></body>'


class Physics:
    """MuJoCo's environments, all of one model, each with a camera of its own around the table."""

    def __init__(self, count: int, size: int) -> None:
        random = np.random.default_rng(0)
        colors = ((0.9, 0.2, 0.2), (0.2, 0.5, 0.9), (0.95, 0.85, 0.2))
        places = ((0.6, 0.7), (-0.7, 0.5), (-0.3, -0.8))
        balls = "".join(
            BALL.format(x=x, y=y, z=0.8 + 0.4 * number, r=r, g=g, b=b)
            for number, ((x, y), (r, g, b)) in enumerate(zip(places, colors, strict=True))
        )
        self._model = mujoco.MjModel.from_xml_string(MODEL.replace("BALLS", balls))
        self._states = [mujoco.MjData(self._model) for _ in range(count)]
        self._phases = random.uniform(0, 2 * np.pi, (count, 3))
        self._renderer = mujoco.Renderer(self._model, size, size)
        self._model.vis.global_.fovy = FOV_DEGREES
        self._azimuths = random.uniform(0, 360, count)
        self._elevations = random.uniform(-50, -15, count)
        self._size = size
        for state in self._states:
            # The balls fall from different heights.
            state.qpos[[5, 12, 19]] += random.uniform(0, 1, 3)

    def cameras(self) -> list[Camera]:
        """Return MuJoCo's free cameras, as Lumigrad's."""
        return [self._camera(*angles) for angles in np.radians([self._azimuths, self._elevations]).T]

    def step(self) -> None:
        """Move all arms by a picture's time, and let the balls fall."""
        for state, phase in zip(self._states, self._phases, strict=True):
            state.ctrl[:] = np.array([1.5, 0.5, 0.8]) * np.sin(1.5 * state.time + phase) + np.array([0.0, -0.5, -0.9])
            mujoco.mj_step(self._model, state, SUBSTEPS)

    def pictures(self) -> tuple[Levels, Array]:
        """Return colours [N, H, W, 3], and depths [N, H, W] along the cameras' axes, metres."""
        colors, depths = [], []
        view = mujoco.MjvCamera()
        view.lookat[:], view.distance = TARGET, DISTANCE_M
        for state, view.azimuth, view.elevation in zip(self._states, self._azimuths, self._elevations, strict=True):
            self._renderer.update_scene(state, view)
            colors.append(self._renderer.render())
            self._renderer.enable_depth_rendering()
            depths.append(self._renderer.render())
            self._renderer.disable_depth_rendering()
        return np.stack(colors), np.stack(depths)

    def close(self) -> None:
        """Free the OpenGL context."""
        self._renderer.close()

    def _camera(self, azimuth: float, elevation: float) -> Camera:
        around = np.cos(elevation)
        forward = np.array([around * np.cos(azimuth), around * np.sin(azimuth), np.sin(elevation)])
        eye = np.array(TARGET) - DISTANCE_M * forward
        size = {"width": self._size, "height": self._size}
        return Camera.look_at(eye, TARGET, (0, 0, 1), fov_degrees=FOV_DEGREES, **size)


def tinted(scene: Gaussians) -> list[Gaussians]:
    """Return the scene in several colours."""
    assert scene.sh is not None
    return [replace(scene, sh=scene.sh[..., list(order)]) for order in TINTS]


def composed(surroundings: Sequence[Frame], colors: Levels, depths: Array) -> Levels:
    """Return pictures [N, H, W, 3] of both: the nearer one at each pixel, with the other behind transparent parts."""
    color = np.stack([frame.color for frame in surroundings]).astype(np.float32)
    alpha = np.stack([frame.alpha for frame in surroundings])[..., None] / np.float32(255)
    depth = np.stack([frame.expected_depth for frame in surroundings])
    behind = color + (1 - alpha) * colors
    is_nearer = (depths < depth) | (alpha[..., 0] == 0)
    return np.where(is_nearer[..., None], colors, behind.clip(0, 255)).astype(np.uint8)


def sheet(pictures: Levels, columns: int) -> Levels:
    """Return the first pictures in a square."""
    shown = pictures[: columns * columns]
    rows = [np.concatenate(list(shown[begin : begin + columns]), axis=1) for begin in range(0, len(shown), columns)]
    return np.concatenate(rows)


def in_one_call(client: Client, items: Sequence[tuple[SceneHandle, Camera]]) -> list[Frame]:
    """Render the surroundings of all environments in one call."""
    frames = []
    for result in client.render_batch(items, outputs=OUTPUTS, image_format=FORMATS):
        if not isinstance(result, Frame):
            raise result
        frames.append(result)
    return frames


def in_a_loop(client: Client, items: Sequence[tuple[SceneHandle, Camera]]) -> list[Frame]:
    """Render the same with a call for each environment."""
    return [client.render(scene, camera, outputs=OUTPUTS, image_format=FORMATS) for scene, camera in items]


def run(client: Client, arguments: argparse.Namespace) -> None:
    """Take the steps, in turns with one call and with many; write a picture, and print the times."""
    physics = Physics(arguments.environments, arguments.size)
    scenes = [client.put(scene) for scene in tinted(Gaussians.load("sample:vase"))]
    items = [(scenes[number % len(scenes)], camera) for number, camera in enumerate(physics.cameras())]
    ways: dict[str, Callable[[Client, Sequence[tuple[SceneHandle, Camera]]], list[Frame]]] = {
        "one call": in_one_call,
        "a loop of calls": in_a_loop,
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(arguments.steps):
        for name, render in ways.items():
            began = time.perf_counter()
            physics.step()
            colors, depths = physics.pictures()
            asked = time.perf_counter()
            surroundings = render(client, items)
            answered = time.perf_counter()
            pictures = composed(surroundings, colors, depths)
            # The first calls make the worker's buffers.
            if number:
                seconds[name].append((time.perf_counter() - began, answered - asked))
    physics.close()
    columns = min(4, int(np.sqrt(len(pictures))))
    write_image(arguments.output / "robot_cameras.png", sheet(pictures, columns) / np.float32(255))
    print(f"{arguments.environments} environments, {arguments.size} x {arguments.size} pixels each")
    for name, times in seconds.items():
        whole, surroundings_s = np.median(times, axis=0)
        print(f"{name}: {1 / whole:.2f} steps/s, of which the surroundings take {1e3 * surroundings_s:.0f} ms")
    print(f"wrote {arguments.output / 'robot_cameras.png'}")


def main() -> int:
    """Parse the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--size", type=int, default=128, help="width and height of a picture in pixels")
    parser.add_argument("--steps", type=int, default=20, help="steps in each way")
    parser.add_argument("--output", type=Path, default=Path("robot_output"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with worker(arguments.output / "worker.log") as target, Client(target) as client:
        run(client, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
