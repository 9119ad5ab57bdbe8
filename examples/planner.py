"""Pushes a robot's trajectory out of collision by gradient descent through the worker.

An arm is to swing from one side of some obstacles to the other. The straight line between its joint angles goes
through them; each step asks the worker what the way costs, the way between the time steps included, and moves the
joints against the gradient.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

import obstacles
from arm import arm
from local_worker import worker
from lumigrad.client import Client, SceneHandle
from lumigrad.client.robots import Robot
from lumigrad.client.torch import mesh_distance
from portrait import portrait

START = (-1.1, 0.75, 0.2, 1.1, 0.0, 0.6, 0.0)
GOAL = (1.75, 0.75, -0.2, 1.1, 0.0, 0.6, 0.0)
TIME_STEPS, STEP_S = 32, 0.1
ITERATIONS, RATE = 200, 0.02
# Costs begin this far from a sphere's surface, metres.
MARGIN = 0.03
# Weights of squared joint velocities and accelerations, rad/s and rad/s^2.
LENGTH, SMOOTHNESS = 1e-3, 2e-4


def plan(client: Client, output: Path, steps: int = ITERATIONS) -> None:
    """Optimises the trajectory, and leaves plan.png (distances along the way) and plan_scene.png (the way itself)."""
    robot, world = arm(output), obstacles.world()
    handle = client.put(world)
    straight = torch.lerp(torch.tensor(START), torch.tensor(GOAL), torch.linspace(0, 1, TIME_STEPS)[:, None])
    began = time.perf_counter()
    found = optimise(client, robot, handle, straight, steps)
    seconds = time.perf_counter() - began
    ways = {"straight line": straight, "after descent": found}
    clearances = {name: clearance(client, robot, handle, way) for name, way in ways.items()}
    before, after = (1000 * float(values.min()) for values in clearances.values())
    print(
        f"{steps} steps for {TIME_STEPS} time steps of {len(robot)} spheres in {seconds:.1f} s; the smallest "
        f"distance to an obstacle went from {before:.0f} to {after:.0f} mm\nsee {output}/: plan.png, plan_scene.png"
    )
    plot(clearances, output / "plan.png")
    portrait(client, robot, world, list(ways.values()), output / "plan_scene.png")


def optimise(client: Client, robot: Robot, world: SceneHandle, straight: torch.Tensor, steps: int) -> torch.Tensor:
    """Returns the trajectory [H, dof] after gradient descent; its ends stay fixed."""
    inner = straight[1:-1].clone().requires_grad_()
    optimizer = torch.optim.Adam([inner], lr=RATE)
    low, high = torch.from_numpy(robot.limits).float().T
    for step in range(steps):
        way = torch.cat([straight[:1], inner, straight[-1:]])
        collisions = mesh_distance(
            robot.spheres(way)[None],
            world,
            activation_distance=MARGIN,
            sweep=True,
            speed_metric=True,
            time_step_s=STEP_S,
            client=client,
        ).cost.sum()
        velocity = way.diff(dim=0) / STEP_S
        acceleration = velocity.diff(dim=0) / STEP_S
        loss = collisions + LENGTH * velocity.square().sum() + SMOOTHNESS * acceleration.square().sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        with torch.no_grad():
            inner.clamp_(low, high)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: collision cost {collisions.item():.4f}, loss {loss.item():.4f}")
    return torch.cat([straight[:1], inner.detach(), straight[-1:]])


def clearance(client: Client, robot: Robot, world: SceneHandle, way: torch.Tensor) -> Any:
    """Returns [8 (H - 1) + 1], the smallest distance of the robot's surface to an obstacle along the way, metres."""
    dense = _resampled(way)
    spheres = robot.spheres(dense).numpy()
    return (client.query(world, spheres[None]).distance[0] - spheres[..., 3]).min(axis=-1)


def _resampled(way: torch.Tensor, times: int = 8) -> torch.Tensor:
    """Returns a trajectory with intermediate steps."""
    places = torch.linspace(0, len(way) - 1, times * (len(way) - 1) + 1)
    first = places.long().clamp(max=len(way) - 2)
    return torch.lerp(way[first], way[first + 1], (places - first)[:, None])


def plot(clearances: dict[str, Any], path: Path) -> None:
    """Plots the smallest distance along each way."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    seconds = np.linspace(0, STEP_S * (TIME_STEPS - 1), len(next(iter(clearances.values()))))
    lowest = min(1000 * float(values.min()) for values in clearances.values())
    axes.axhspan(1.15 * lowest, 0, color="#c0392b", alpha=0.12, linewidth=0, label="in collision")
    axes.axhline(1000 * MARGIN, color="#888888", linewidth=0.8, linestyle=":", label="costs begin")
    for (name, values), color in zip(clearances.items(), ("#c0392b", "#1f5fbf"), strict=True):
        axes.plot(seconds, 1000 * values, color=color, label=name)
    axes.set(
        xlabel="time, s",
        ylabel="smallest distance, mm",
        title="A trajectory pushed out of collision",
        ylim=(1.15 * lowest, None),
        xlim=(0, seconds[-1]),
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> int:
    """Runs the planner alone; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=ITERATIONS, help="of gradient descent (default: %(default)s)")
    arguments = parser.parse_args()
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with worker(output / "worker.log") as target, Client(target) as client:
        plan(client, output, arguments.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
