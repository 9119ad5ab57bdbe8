"""The steps of which gsplat's strategies are made, as functions for strategies of one's own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lumigrad.client.compat import gsplat
from lumigrad.client.compat.gsplat.relocation import compute_relocation
from lumigrad.client.compat.gsplat.strategy import ops
from lumigrad.client.compat.gsplat.strategy.rows import relocated

COUNT = 6


class Trained(SimpleNamespace):
    """Parameters whose optimizers have made a step, statistics, and a scene that notes its calls."""

    @staticmethod
    def make() -> Trained:
        generator = torch.Generator().manual_seed(0)
        shapes = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": ()}
        start = {name: torch.randn(COUNT, *shape, generator=generator) for name, shape in shapes.items()}
        params = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in start.items()})
        optimizers = {name: torch.optim.Adam([value], lr=1e-3) for name, value in params.items()}
        params["fixed"] = torch.nn.Parameter(torch.arange(float(COUNT)), requires_grad=False)
        sum(value.square().sum() for value in params.values()).backward()
        for optimizer in optimizers.values():
            optimizer.step()
        calls: list[tuple[str, list[Any]]] = []
        names = ("on_duplicate", "on_split", "on_remove", "on_relocate", "on_sample_add")
        note = {name: lambda *rows, name=name: calls.append((name, [row.tolist() for row in rows])) for name in names}
        state = {"grad2d": torch.arange(float(COUNT)), "scene_scale": 1.0}
        return Trained(given=(params, optimizers, state), calls=calls, scene=SimpleNamespace(**note))

    def rows(self, name: str) -> torch.Tensor:
        return self.given[0][name].detach().clone()

    def moments(self, name: str) -> torch.Tensor:
        params, optimizers, _ = self.given
        assert optimizers[name].param_groups[0]["params"] == [params[name]]
        return optimizers[name].state[params[name]]["exp_avg"].clone()


MASK = torch.tensor([False, True, False, False, True, False])


def test_rows_are_copied_split_and_removed_with_all_that_belongs_to_them() -> None:
    made = Trained.make()
    before, moments = made.rows("means"), made.moments("means")
    ops.duplicate(*made.given, MASK, scene=made.scene)
    assert torch.equal(made.rows("means"), torch.cat([before, before[[1, 4]]]))
    assert torch.equal(made.moments("means"), torch.cat([moments, torch.zeros(2, 3)]))
    assert torch.equal(made.rows("fixed"), made.given[2]["grad2d"]) and not made.given[0]["fixed"].requires_grad
    ops.remove(*made.given, mask=torch.arange(COUNT + 2) < COUNT, scene=made.scene)
    assert torch.equal(made.rows("means"), before[[1, 4]]) and made.given[2]["grad2d"].tolist() == [1.0, 4.0]
    scales, opacities = made.rows("scales"), made.rows("opacities").sigmoid()
    ops.split(*made.given, torch.tensor([True, False]), revised_opacity=True, scene=made.scene)
    torch.testing.assert_close(made.rows("scales"), torch.stack([scales[1], *[scales[0] - math.log(1.6)] * 2]))
    torch.testing.assert_close(1 - (1 - made.rows("opacities")[1:].sigmoid()) ** 2, opacities[[0, 0]])
    assert made.given[2].keys() == {"grad2d", "scene_scale"} and made.given[2]["scene_scale"] == 1.0
    assert made.given[2]["grad2d"].tolist() == [4.0, 1.0, 1.0]
    removed = [[True] * COUNT + [False] * 2]
    assert made.calls == [("on_duplicate", [[1, 4]]), ("on_remove", removed), ("on_split", [[0], [1]])]


def test_opacities_are_reset() -> None:
    made = Trained.make()
    before = made.rows("opacities")
    ops.reset_opa(*made.given, value=0.5)
    torch.testing.assert_close(made.rows("opacities"), before.clamp(max=0.0))
    assert (before > 0).any() and not made.moments("opacities").any() and made.moments("means").any()


def test_rows_are_moved_and_added_where_it_is_opaque() -> None:
    torch.manual_seed(0)
    made, binoms = Trained.make(), torch.ones(51, 51)
    with torch.no_grad():
        made.given[0]["opacities"][:] = torch.tensor([2.0, -9, -40, -40, -9, -40])
    before = made.rows("means")
    ops.relocate(*made.given, MASK, binoms, 0.005, made.scene)
    # All of them move onto the only one that can be seen, whose share each of the three has.
    assert torch.equal(made.rows("means")[[1, 4]], before[[0, 0]])
    torch.testing.assert_close(
        made.rows("opacities")[[0, 1, 4]].sigmoid(), (1 - (1 - torch.tensor(2.0).sigmoid()) ** (1 / 3)).expand(3)
    )
    assert not made.moments("means")[0].any() and made.moments("means")[2].any()
    ops.sample_add(*made.given, n=4, binoms=binoms, scene=made.scene)
    assert len(made.rows("quats")) == COUNT + 4 and torch.equal(made.rows("means")[COUNT:], before[[0] * 4])
    assert [name for name, _ in made.calls] == ["on_relocate", "on_sample_add"]
    assert made.calls[0][1] == [[1, 4], [0, 0]]


def test_noise_is_scaled_by_either_name() -> None:
    moved = []
    for factor in ({"noise_scale": 2.0}, {"scaler": 2.0}):
        torch.manual_seed(0)
        made = Trained.make()
        before = made.rows("means")
        ops.inject_noise_to_position(*made.given, **factor)
        moved.append(made.rows("means") - before)
    assert torch.equal(*moved) and moved[0].any()
    with pytest.raises(TypeError, match=r"^noise_scale: expected a factor"):
        ops.inject_noise_to_position(*made.given)


def test_relocation_is_that_of_the_strategies_with_as_many_copies_as_binoms_has() -> None:
    opacities, scales = torch.tensor([0.3, 0.8, 0.8]), torch.full((3, 3), 2.0)
    found, sizes = compute_relocation(opacities, scales, torch.tensor([1, 2, 99]), torch.ones(3, 3), 0.0)
    after, factors = relocated(opacities, torch.tensor([1, 2, 3]), 0.0)
    assert torch.equal(found, after) and torch.equal(sizes, scales * factors[:, None])
    with pytest.raises(gsplat.GsplatArgumentError, match=r"^ratios: expected shape \[3\], got \[2\]"):
        compute_relocation(opacities, scales, torch.ones(2), torch.ones(3, 3))


def test_functions_of_names_replace_parameters_and_moments() -> None:
    made, seen = Trained.make(), []
    before, moments = made.rows("scales"), made.moments("means")

    def moment(key: str, value: torch.Tensor) -> torch.Tensor:
        seen.append(key)
        return value * 0

    ops._update_param_with_optimizer(
        lambda name, old: torch.nn.Parameter(old + len(name)), moment, *made.given[:2], names=["scales"]
    )
    assert torch.equal(made.rows("scales"), before + 6) and seen == ["exp_avg", "exp_avg_sq"]
    assert not made.moments("scales").any() and torch.equal(made.moments("means"), moments)
    weights = torch.tensor([0.0, 1, 0, 3])
    assert set(ops._multinomial_sample(weights, 50).tolist()) == {1, 3}
    assert sorted(ops._multinomial_sample(weights, 2, replacement=False).tolist()) == [1, 3]
