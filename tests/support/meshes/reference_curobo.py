"""Costs as cuRobo 0.7 computes them (spec sections 3 to 8), in float64, with its own gradients; weight included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from support.meshes.case import CuboidShape, Doubles, MeshCase
from support.meshes.obstacles import Obstacle
from support.meshes.reference import LEAST_SPEED
from support.meshes.rows import Rows, cost_of
from support.meshes.sweep import MARGIN


@dataclass
class _Seen:
    """Penetration of the inflated sphere, its gradient by the centre, and whether the surface is near enough."""

    depth: Tensor
    gradient: Tensor
    found: Tensor


class CuroboScene:
    """The inputs of a case, and one result per row: `cost` [B, H, S] and `gradient` [B, H, S, 4] of their plain sum.

    `sure` [B, H, S]: values do not depend on rounding; `smooth`: neither do gradients.
    """

    def __init__(self, case: MeshCase) -> None:
        self.case, self.options, self.rows = case, case.options, Rows.of(case)
        spheres = torch.from_numpy(np.asarray(case.spheres, np.float64)).reshape(-1, 4)
        self._centres, self._radii = spheres[:, :3], spheres[:, 3]
        activation = 0.0 if self.field else self.options.activation_distance
        self._inflated = self._radii + activation
        reach = torch.tensor(case.options.max_distance, dtype=torch.float64)
        self._cap = torch.where(self._inflated > reach, reach + self._inflated, reach)
        self._cost = torch.zeros(len(spheres), dtype=torch.float64)
        self._gradient = torch.zeros(len(spheres), 3, dtype=torch.float64)
        self._sure = torch.ones(len(spheres), dtype=torch.bool)
        self._smooth = torch.ones(len(spheres), dtype=torch.bool)
        if self.field:
            self._cost = torch.where(self.rows.on, self._floor(), 0.0)
        for placed in case.placed:
            if placed.enabled:
                self._meet(Obstacle(placed))
        if self.options.speed_metric and not self.field:
            self._scale_by_speed()
        self.cost: Doubles = (self.options.weight * self._cost).reshape(case.shape).numpy()
        gradient = torch.nn.functional.pad(self.options.weight * self._gradient, (0, 1))
        self.gradient: Doubles = gradient.reshape(*case.shape, 4).numpy()
        self.sure = self._sure.reshape(case.shape).numpy()
        self.smooth = (self._sure & self._smooth).reshape(case.shape).numpy()

    @property
    def field(self) -> bool:
        """Whether the outputs are distances, not costs."""
        return self.options.semantics == "curobo_field"

    def _floor(self) -> Tensor:
        """The value where nothing is found; lower if there are only cuboids."""
        only = []
        for environment in range(self.case.environments):
            there = [one.shape for one in self.case.placed if one.enabled and one.environment == environment]
            only.append(bool(there) and all(isinstance(shape, CuboidShape) for shape in there))
        lower = torch.tensor(only)[self.rows.environment]
        return torch.where(lower, -(2 * self.options.max_distance + self._radii), -self._cap)

    def _look(self, obstacle: Obstacle, rows: Tensor, points: Tensor) -> _Seen:
        seen = obstacle.look(points)
        away = seen.gap.norm(dim=-1)
        found = away < self._cap[rows]
        vague = (away - self._cap[rows]).abs() < MARGIN
        if isinstance(obstacle.placed.shape, CuboidShape):
            within = seen.distance < self._radii[rows] + self.options.max_distance
            found = within if self.field else torch.ones_like(found)
        depth = self._inflated[rows] - seen.distance
        self._sure[rows[vague | ~seen.sure]] = False
        self._smooth[rows[~seen.single & (depth > -MARGIN)]] = False
        if self.options.sweep or self.options.activation_distance <= 0:
            # A march takes other steps in contact than before it.
            self._smooth[rows[depth.abs() < MARGIN]] = False
            self._sure[rows[(depth.abs() < MARGIN) & self.options.sweep]] = False
        side = torch.where(seen.distance < 0, -1.0, 1.0) / torch.where(away > 0, away, 1.0)
        return _Seen(depth, side[:, None] * seen.gap, found)

    def _meet(self, obstacle: Obstacle) -> None:
        rows = self.rows.meeting(obstacle.placed.environment)
        seen = self._look(obstacle, rows, self._centres[rows])
        if self.field:
            value = seen.depth - self._inflated[rows]
            self._smooth[rows[(value - self._cost[rows]).abs() < MARGIN]] = False
            better = seen.found & (value > self._cost[rows])
            self._cost[rows[better]] = value[better]
            self._gradient[rows[better]] = seen.gradient[better]
            return
        self._add(rows, seen)
        if self.options.sweep and self.options.samples > 0:
            cuboid = isinstance(obstacle.placed.shape, CuboidShape)
            for neighbours, forward in ((self.rows.before[rows], False), (self.rows.after[rows], True)):
                there = neighbours >= 0
                start = _Seen(seen.depth[there], seen.gradient[there], seen.found[there])
                march = self._march_past_cuboid if cuboid else self._march_past_mesh
                march(obstacle, rows[there], neighbours[there], start, forward)

    def _add(self, rows: Tensor, seen: _Seen) -> None:
        activation = self.options.activation_distance
        cost = torch.where(seen.found, cost_of(seen.depth, activation), 0.0)
        slope = (seen.depth / activation).clamp(0, 1) if activation > 0 else (seen.depth > 0).double()
        self._cost.index_add_(0, rows, cost)
        self._gradient.index_add_(0, rows, torch.where(seen.found, slope, 0.0)[:, None] * seen.gradient)

    def _march_past_mesh(
        self, obstacle: Obstacle, rows: Tensor, neighbours: Tensor, start: _Seen, forward: bool
    ) -> None:
        """Spec section 6.1."""
        way = self._centres[neighbours] - self._centres[rows]
        half = way.norm(dim=-1) / 2
        travelled = torch.where(start.found, start.depth.abs(), self._cap[rows])
        for _ in range(self.options.samples):
            left = travelled < half
            self._sure[rows[(travelled - half).abs() < MARGIN]] = False
            rows, way, half, travelled = rows[left], way[left], half[left], travelled[left]
            if not len(rows):
                return
            share = travelled / (2 * half)
            seen = self._look(obstacle, rows, self._centres[rows] + share[:, None] * way)
            self._add(rows, seen)
            radius = self._inflated[rows]
            contact = torch.maximum(seen.depth - radius, radius) if forward else seen.depth
            free = torch.maximum(-seen.depth - radius, radius)
            jump = torch.where(seen.depth > 0, contact, free)
            travelled = travelled + torch.where(seen.found, jump, self._cap[rows])

    def _march_past_cuboid(
        self, obstacle: Obstacle, rows: Tensor, neighbours: Tensor, start: _Seen, forward: bool
    ) -> None:
        """Spec section 8, "Cuboids"."""
        way = self._centres[neighbours] - self._centres[rows]
        length, radius = way.norm(dim=-1), self._inflated[rows]
        away = (radius - start.depth).abs()
        travelled = torch.maximum(away - radius, radius)
        near = away < (length if forward else length - 2 * radius)
        rows, way, length, travelled = rows[near], way[near], length[near], travelled[near]
        for _ in range(self.options.samples):
            left = travelled < length / 2
            self._sure[rows[(travelled - length / 2).abs() < MARGIN]] = False
            rows, way, length, travelled = rows[left], way[left], length[left], travelled[left]
            if not len(rows):
                return
            seen = self._look(obstacle, rows, self._centres[rows] + (travelled / length)[:, None] * way)
            self._add(rows, seen)
            radius = self._inflated[rows]
            travelled = travelled + torch.maximum((radius - seen.depth).abs(), radius)

    def _scale_by_speed(self) -> None:
        """Spec section 6.3."""
        dt = self.options.time_step_s
        before, after = self.rows.before, self.rows.after
        there = (before >= 0) & (after >= 0) & (self._cost > 0)
        way = self._centres[after] - self._centres[before]
        speed = way.norm(dim=-1) / (2 * dt)
        rows = torch.nonzero(there & (speed > LEAST_SPEED)).flatten()
        way, speed = way[rows], speed[rows]
        bend = (self._centres[before[rows]] + self._centres[after[rows]] - 2 * self._centres[rows]) / dt**2
        direction = way / (2 * dt * speed)[:, None]
        whole = self._gradient[rows] - (self._cost[rows] / speed**2)[:, None] * bend
        across = whole - (whole * direction).sum(-1, keepdim=True) * direction
        self._gradient[rows] = speed[:, None] * across
        self._cost[rows] = speed * self._cost[rows]
