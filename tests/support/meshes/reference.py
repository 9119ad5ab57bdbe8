"""Distances and costs of the exact semantics in float64 torch; autograd gives the gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from support.meshes.case import Doubles, MeshCase
from support.meshes.obstacles import TOLERANCE, Obstacle, Sight
from support.meshes.rows import Rows, cost_of
from support.meshes.sweep import MARGIN, samples_of

LEAST_SPEED = 1e-3


@dataclass
class _Samples:
    """The samples for one obstacle: row, neighbour (or the row itself) and fraction of the way there, all [M]."""

    rows: Tensor
    neighbours: Tensor
    fractions: Tensor


class ExactScene:
    """The inputs of a case in float64, ready to be evaluated and differentiated.

    `sure` [N] marks the rows whose values do not depend on a branch that is decided by less than `margin` metres,
    `smooth` [N] those whose gradients do not. Both are set when costs or distances are computed.
    """

    def __init__(self, case: MeshCase, margin: float = MARGIN) -> None:
        self.margin = margin
        self.case, self.options, self.rows = case, case.options, Rows.of(case)
        self.reach = math.inf if case.options.max_distance is None else case.options.max_distance
        self.spheres = torch.tensor(np.asarray(case.spheres, np.float64), requires_grad=True)
        poses = [placed.pose for placed in case.placed]
        self.poses = torch.tensor(np.asarray(poses, np.float64).reshape(len(poses), 7), requires_grad=True)
        self.weight = torch.tensor(case.options.weight, dtype=torch.float64, requires_grad=True)
        near = max(margin, TOLERANCE)
        self.obstacles = [Obstacle(placed, self.poses[index], near) for index, placed in enumerate(case.placed)]
        self.present = [index for index, placed in enumerate(case.placed) if placed.enabled]
        count = len(self.rows.on)
        self.sure, self.smooth = torch.ones(count, dtype=torch.bool), torch.ones(count, dtype=torch.bool)
        self.exhausted = torch.zeros(count, dtype=torch.bool)
        self._centres, self._radii = self.spheres[..., :3].reshape(-1, 3), self.spheres[..., 3].reshape(-1)

    def shaped(self, values: Tensor) -> Doubles:
        """Reshapes rows to [B, H, S, ..]."""
        return values.detach().reshape(*self.case.shape, *values.shape[1:]).numpy()

    @cached_property
    def nearest(self) -> dict[str, Tensor]:
        """The distance outputs per row, of the closest obstacle; "distance" can be differentiated."""
        each = self.per_instance
        if not each["distance"].shape[1]:
            return {name: values.new_zeros(0) for name, values in each.items()}
        first = each["distance"].detach().min(-1)
        lonely = each["distance"].detach().sort(-1).values
        if lonely.shape[1] > 1:
            apart = torch.nan_to_num(lonely[:, 1] - lonely[:, 0], nan=math.inf)
            self.smooth &= (apart > self.margin) | (first.values >= self.reach)
        best = first.indices
        chosen = {
            name: values[torch.arange(len(best)), best] for name, values in each.items() if name not in ("beyond",)
        }
        return {**chosen, "beyond": self.rows.on & (chosen["instance"] < 0) & math.isfinite(self.reach)}

    @cached_property
    def per_instance(self) -> dict[str, Tensor]:
        """The distance outputs per row and obstacle: [N, I] and [N, I, 3]."""
        count, listed = len(self.rows.on), len(self.obstacles)
        shape = (count, listed)
        distance = torch.full(shape, self.reach, dtype=torch.float64)
        normal = torch.zeros(*shape, 3, dtype=torch.float64)
        closest = self._centres.detach()[:, None].expand(*shape, 3).clone()
        face, instance = torch.full(shape, -1, dtype=torch.int32), torch.full(shape, -1, dtype=torch.int32)
        columns = list(distance.unbind(1))
        for index in self.present:
            obstacle = self.obstacles[index]
            rows = self.rows.meeting(obstacle.placed.environment)
            seen = obstacle.look(self._centres.detach()[rows])
            self._note(rows, seen, torch.ones(len(rows), dtype=torch.bool))
            inside = seen.distance <= self.reach
            self.sure[rows] &= (seen.distance - self.reach).abs() > self.margin
            rows, there = rows[inside], torch.nonzero(inside).flatten()
            columns[index] = columns[index].index_put((rows,), obstacle.distance(self._centres[rows]))
            normal[rows, index], closest[rows, index] = seen.gradient[there], seen.closest[there]
            face[rows, index], instance[rows, index] = seen.face[there], index
        values = torch.stack(columns, 1) if columns else distance
        beyond = self.rows.on[:, None] & (instance < 0) & math.isfinite(self.reach)
        return {
            "distance": values,
            "normal": normal,
            "closest": closest,
            "face": face,
            "instance": instance,
            "beyond": beyond,
        }

    @cached_property
    def cost(self) -> Tensor:
        """The cost of each row, weight included: [N]."""
        count = len(self.rows.on)
        values, owners = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.long)]
        for index in self.present:
            obstacle = self.obstacles[index]
            found = self._samples(obstacle)
            here, there = self._centres[found.rows], self._centres[found.neighbours]
            points = here + found.fractions[:, None] * (there - here)
            seen = obstacle.look(points.detach())
            distance = obstacle.distance(points)
            depth = self._radii[found.rows] + self.options.activation_distance - distance
            cost = torch.where(seen.distance <= self.reach, cost_of(depth, self.options.activation_distance), 0.0)
            self._note(found.rows, seen, depth.detach() > -self.margin)
            if self.options.activation_distance <= 0:
                self.smooth[found.rows[depth.detach().abs() < self.margin]] = False
            values.append(cost)
            owners.append(found.rows)
        value, owner = torch.cat(values), torch.cat(owners)
        if self.options.reduction == "max":
            total = torch.zeros(count, dtype=torch.float64).scatter_reduce(0, owner, value, "amax")
            self._note_rivals(value.detach(), owner, total.detach())
        else:
            total = torch.zeros(count, dtype=torch.float64).index_add(0, owner, value)
        return self.weight * self._with_speed(total)

    def _note(self, rows: Tensor, seen: Sight, matters: Tensor) -> None:
        self.sure[rows[matters & ~seen.sure]] = False
        self.smooth[rows[matters & ~seen.single]] = False

    def _note_rivals(self, value: Tensor, owner: Tensor, best: Tensor) -> None:
        """Marks rows whose maximum cost is shared by several samples."""
        rival = (value >= best[owner] - self.margin) & (value > 0)
        self.smooth &= torch.bincount(owner[rival], minlength=len(best)) < 2

    @torch.no_grad()
    def _samples(self, obstacle: Obstacle) -> _Samples:
        rows = self.rows.meeting(obstacle.placed.environment)
        parts = [_Samples(rows, rows, torch.zeros(len(rows), dtype=torch.float64))]
        if not self.options.sweep:
            return parts[0]
        inflated = self._radii[rows] + self.options.activation_distance
        clearance = obstacle.look(self._centres[rows]).distance.clamp_max(self.reach) - inflated
        for neighbours in (self.rows.before[rows], self.rows.after[rows]):
            there = (neighbours >= 0) & self.rows.on[neighbours]
            own, other, margin = rows[there], neighbours[there], inflated[there]
            way = self._centres[other] - self._centres[own]

            def clearance_at(
                segment: Tensor, fraction: Tensor, own: Tensor = own, way: Tensor = way, margin: Tensor = margin
            ) -> Tensor:
                points = self._centres[own[segment]] + fraction[:, None] * way[segment]
                return obstacle.look(points).distance.clamp_max(self.reach) - margin[segment]

            half = way.norm(dim=-1) / 2
            segment, fraction, exhausted, clear = samples_of(
                half, clearance[there], margin, self.options.samples, clearance_at, self.margin
            )
            self.exhausted[own[exhausted]] = True
            self.sure[own[~clear]] = False
            parts.append(_Samples(own[segment], other[segment], fraction))
        return _Samples(*(torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])))

    def _with_speed(self, cost: Tensor) -> Tensor:
        if not self.options.speed_metric:
            return cost
        before, after = self.rows.before, self.rows.after
        both = (before >= 0) & (after >= 0)
        both &= self.rows.on[before] & self.rows.on[after]
        way = self._centres[after] - self._centres[before]
        still = (way.detach() == 0).all(-1)
        length = torch.where(still[:, None], 1.0, way).norm(dim=-1)
        speed = torch.where(still, 0.0, length) / (2 * self.options.time_step_s)
        self.sure &= ~both | ((speed.detach() - LEAST_SPEED).abs() > 1e-6)
        return torch.where(both & (speed.detach() > LEAST_SPEED), speed, 1.0) * cost

    def gradients(self, upstream: Mapping[str, ArrayLike], *, per_instance: bool = False) -> dict[str, Doubles]:
        """Gradients of "spheres", "poses" and "weight" for those of "cost" [B, H, S] and "distance" (or [.., I])."""
        loss = torch.zeros((), dtype=torch.float64)
        for name, given in upstream.items():
            distances = self.per_instance if per_instance else self.nearest
            values = self.cost if name == "cost" else distances["distance"]
            weights = torch.from_numpy(np.asarray(given, np.float64)).reshape(values.shape)
            # The distance is a constant for rows where nothing is found.
            loss = loss + (torch.where(weights != 0, values, 0.0).nan_to_num(posinf=0.0) * weights).sum()
        inputs = {"spheres": self.spheres, "poses": self.poses, "weight": self.weight}
        if not loss.requires_grad:
            return {name: np.zeros(value.shape) for name, value in inputs.items()}
        found = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True, retain_graph=True)
        pairs = zip(inputs.items(), found, strict=True)
        return {name: np.zeros(value.shape) if slope is None else slope.numpy() for (name, value), slope in pairs}
