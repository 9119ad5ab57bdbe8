"""gsplat's strategies in plain torch: their changes to parameters, optimizers and statistics, and a training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lumigrad.client.compat.gsplat import DefaultStrategy, MCMCStrategy, Strategy, rasterization
from lumigrad.client.compat.gsplat.scene import GaussianScene
from lumigrad.client.compat.gsplat.strategy.rows import Splats, relocated
from support.workers.worker import WorkerProcess

Parameters = dict[str, torch.nn.Parameter]


def parameters(count: int = 40, scale: float | None = None) -> Parameters:
    generator = torch.Generator().manual_seed(3)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    tensors = {
        "means": 2 * uniform(count, 3) - 1,
        "quats": uniform(count, 4) - 0.5,
        "scales": (0.02 + 0.3 * uniform(count, 3) if scale is None else torch.full((count, 3), scale)).log(),
        "opacities": torch.logit(0.05 + 0.9 * uniform(count)),
        "colors": uniform(count, 3),
    }
    return {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}


def trained(params: Parameters) -> dict[str, torch.optim.Optimizer]:
    """Optimizers that have made a step."""
    optimizers = {name: torch.optim.Adam([value], lr=1e-3) for name, value in params.items()}
    sum(value.square().sum() for value in params.values()).backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
    return optimizers


def moments(params: Parameters, optimizers: dict[str, Any], name: str) -> torch.Tensor:
    state = optimizers[name].state
    assert list(state) == [params[name]] and optimizers[name].param_groups[0]["params"] == [params[name]]
    assert state[params[name]]["step"] == 1
    return state[params[name]]["exp_avg"]


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD, torch.optim.RAdam, torch.optim.Adadelta])
def test_states_of_optimizers_without_rows_are_kept(kind: Any) -> None:
    params = parameters()
    optimizers = {name: kind([value], lr=0.01) for name, value in params.items()}
    for name, value in params.items():
        value.grad = torch.ones_like(value)
        optimizers[name].step()
    before = dict(optimizers["means"].state[params["means"]])
    Splats(params, optimizers, {}).duplicate(torch.ones(40, dtype=torch.bool))
    found = optimizers["means"].state[params["means"]]
    for name, old in before.items():
        assert len(found[name]) == 80 if old.ndim else torch.equal(found[name], old), name
    optimizers["means"].step()


def test_split_gaussians_are_sampled_from_their_parents() -> None:
    torch.manual_seed(1)
    params = parameters(4000)
    with torch.no_grad():
        # All Gaussians are alike: long in the direction of one diagonal.
        params["means"][:] = torch.tensor([1.0, 2.0, 3.0])
        params["scales"][:] = torch.tensor([0.5, 0.1, 0.01]).log()
        params["quats"][:] = torch.tensor([math.cos(math.pi / 8), 0.0, 0.0, math.sin(math.pi / 8)]) * 2
        params["opacities"][:] = torch.logit(torch.tensor(0.75))
    optimizers = trained(params)
    with torch.no_grad():
        params["scales"][:] = torch.tensor([0.5, 0.1, 0.01]).log()
    middle = params["means"].detach().mean(0)
    Splats(params, optimizers, {}).split(torch.ones(4000, dtype=torch.bool), revised_opacity=True)
    assert len(params["means"]) == 8000 and not moments(params, optimizers, "quats").any()
    torch.testing.assert_close(params["scales"].exp()[0], torch.tensor([0.5, 0.1, 0.01]) / 1.6)
    torch.testing.assert_close(
        1 - (1 - params["opacities"].sigmoid()) ** 2, torch.full((8000,), 0.75), atol=2e-3, rtol=0
    )
    offsets = params["means"].detach() - middle
    diagonal = torch.tensor([[1.0, 1, 0], [-1, 1, 0], [0, 0, math.sqrt(2)]]) / math.sqrt(2)
    spread = (offsets @ diagonal.T).std(0)
    torch.testing.assert_close(spread, torch.tensor([0.5, 0.1, 0.01]), rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("copies", [1, 2, 3, 10, 51])
def test_relocated_gaussians_look_like_the_one_before(copies: int) -> None:
    opacities = torch.tensor([0.05, 0.4, 0.9], dtype=torch.float64)
    after, factors = relocated(opacities, torch.full((3,), copies), min_opacity=0.0)
    torch.testing.assert_close(1 - (1 - after) ** copies, opacities)
    # Along a line through them, the coinciding copies absorb as much as the one Gaussian before.
    x = torch.linspace(-40, 40, 200_001, dtype=torch.float64)
    step = float(x[1] - x[0])
    for old, new, factor in zip(opacities, after, factors, strict=True):
        absorbed = 1 - (1 - new * torch.exp(-0.5 * (x / factor) ** 2)) ** copies
        assert float(absorbed.sum()) * step == pytest.approx(float(old) * math.sqrt(2 * math.pi), rel=1e-6)


def test_relocation_limits_copies_and_opacities() -> None:
    after, _ = relocated(torch.tensor([0.006]), torch.tensor([1000]))
    assert float(after) == pytest.approx(0.005)
    capped = relocated(torch.tensor([0.9]), torch.tensor([1000]))
    assert torch.equal(torch.stack(capped), torch.stack(relocated(torch.tensor([0.9]), torch.tensor([51]))))


def test_dead_gaussians_move_onto_living_ones() -> None:
    torch.manual_seed(2)
    params = parameters()
    optimizers = trained(params)
    with torch.no_grad():
        params["opacities"][:10] = -9.0
    means, scales = params["means"].detach().clone(), params["scales"].detach().clone()
    strategy = MCMCStrategy(cap_max=40, noise_lr=0.0)
    strategy.check_sanity(params, optimizers)
    state = strategy.initialize_state()
    assert state["binoms"].shape == (51, 51) and state["binoms"][5, 2] == 10
    strategy.step_post_backward(params, optimizers, state, 600, {}, lr=1e-3)
    assert len(params["means"]) == 40
    moved = params["means"][:10]
    sources = (moved[:, None] == means[None]).all(-1).nonzero()[:, 1]
    assert len(sources) == 10 and (sources >= 10).all()
    assert torch.equal(params["opacities"][:10], params["opacities"][sources])
    assert (params["scales"][sources] <= scales[sources] + 1e-6).all()
    assert not moments(params, optimizers, "means")[sources].any() and moments(params, optimizers, "means").any()
    # A step that is due adds 5 %.
    growing = MCMCStrategy(cap_max=50, noise_lr=0.0)
    for step, count in ((601, 40), (700, 42)):
        growing.step_post_backward(params, optimizers, state, step, {}, lr=1e-3)
        assert {len(value) for value in params.values()} == {count}
    assert not moments(params, optimizers, "quats")[40:].any()


def test_noise_has_the_shape_of_gaussians_and_spares_opaque_ones() -> None:
    torch.manual_seed(3)
    params = parameters(20_000)
    with torch.no_grad():
        params["scales"][:] = torch.tensor([0.5, 0.1, 0.01]).log()
        params["quats"][:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        params["opacities"][:10_000], params["opacities"][10_000:] = -20.0, 5.0
    before = params["means"].detach().clone()
    MCMCStrategy(noise_lr=2.0).step_post_backward(params, {}, {}, 1, {}, lr=0.5)
    moved = params["means"].detach() - before
    gate = 1 / (1 + math.exp(-100 * 0.005))
    expected = gate * torch.tensor([0.5, 0.1, 0.01]) ** 2
    torch.testing.assert_close(moved[:10_000].std(0), expected, rtol=0.03, atol=1e-6)
    assert moved[10_000:].abs().max() < 1e-6
    MCMCStrategy(noise_injection_stop_iter=1).step_post_backward(params, {}, {}, 1, {}, lr=0.5)
    assert torch.equal(params["means"].detach() - before, moved)


def grown(params: Parameters, optimizers: dict[str, Any], step: int, **options: Any) -> tuple[DefaultStrategy, dict]:
    """The default strategy after one step, in which Gaussians 0 to 3 have steep gradients."""
    strategy = DefaultStrategy(grow_scale3d=0.1, **options)
    state = strategy.initialize_state()
    means2d = torch.zeros(1, len(params["means"]), 2, requires_grad=True) * 1.0
    info = {"means2d": means2d, "width": 100, "height": 50, "n_cameras": 1, "gaussian_ids": None}
    info["radii"] = torch.ones(1, len(params["means"]), 2, dtype=torch.int32)
    info["radii"][0, 5] = 0
    info["radii"][0, 6] = 60
    strategy.step_pre_backward(params, optimizers, state, step, info)
    (means2d[0, :4, 0].sum() * 1e-5).backward()
    strategy.step_post_backward(params, optimizers, state, step, info)
    return strategy, state


def test_the_default_strategy_grows_where_gradients_are_steep_and_prunes_what_is_transparent() -> None:
    params = parameters(scale=0.05)
    with torch.no_grad():
        params["scales"][2:4] = math.log(0.3)
        params["opacities"][9] = -9.0
    optimizers, means = trained(params), params["means"].detach()
    _, state = grown(params, optimizers, 600)
    # 2 copies, 2 replaced by 2 each, 1 removed.
    assert len(params["means"]) == 40 + 2 + 2 - 1 == len(state["grad2d"]) and not state["count"].any()
    rest = [row for row in range(40) if row not in (2, 3, 9)]
    assert torch.equal(params["means"][: len(rest)], means[rest])
    assert torch.equal(params["means"][len(rest) : len(rest) + 2], means[:2])
    # Refinement is not due yet: statistics add up.
    params = parameters()
    _, state = grown(params, trained(params), 601)
    assert len(params["means"]) == 40 and state["count"].sum() == 39
    assert float(state["grad2d"][0]) == pytest.approx(1e-5 * 50)
    _, state = grown(params, trained(params), 15_000)
    assert state["grad2d"] is None


def test_the_default_strategy_resets_opacities_and_minds_sizes_in_pictures() -> None:
    params = parameters(scale=0.05)
    grown(params, trained(params), 3000)
    assert params["opacities"].sigmoid().max() <= 0.0101
    params = parameters(scale=0.05)
    options = {"refine_scale2d_stop_iter": 5000, "grow_grad2d": 1.0, "reset_every": 500}
    _, state = grown(params, trained(params), 600, **options)
    # The Gaussian of 60 of 100 pixels was split, and its parts were removed as too large.
    assert len(params["means"]) == 39 == len(state["radii"])


def test_wrong_parameters_and_optimizers_are_named() -> None:
    params = parameters()
    optimizers = {name: torch.optim.Adam([value]) for name, value in params.items()}
    for strategy in (Strategy(), DefaultStrategy(), MCMCStrategy()):
        strategy.check_sanity(params, optimizers)
        with pytest.raises(AssertionError, match=r"^expected an optimizer for each of .*'quats'"):
            strategy.check_sanity(params, {name: value for name, value in optimizers.items() if name != "quats"})
    both = {**optimizers, "quats": torch.optim.Adam([{"params": params["quats"]}, {"params": params["means"]}])}
    with pytest.raises(AssertionError, match=r"^expected one parameter group in the optimizer of quats, got 2"):
        Strategy().check_sanity(params, both)
    for names in (params, optimizers):
        names.pop("scales")
    with pytest.raises(AssertionError, match=r"^expected the parameters means, scales, .* none named scales"):
        DefaultStrategy().check_sanity(params, optimizers)


@pytest.mark.parametrize(("kind", "packed"), [("default", False), ("absgrad", True), ("mcmc", True)])
def test_a_training_with_a_strategy_learns_a_picture(kind: str, packed: bool, worker_process: WorkerProcess) -> None:
    torch.manual_seed(0)
    size = 32
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    picture = torch.stack([rows < 16, columns < 16, rows > columns], dim=-1).float()[None]
    params = torch.nn.ParameterDict(parameters(60))
    rates = {"means": 0.01, "quats": 0.01, "scales": 0.03, "opacities": 0.05, "colors": 0.03}
    optimizers = {name: torch.optim.Adam([value], lr=rates[name]) for name, value in params.items()}
    views, intrinsics = torch.eye(4)[None], torch.tensor([[[30.0, 0, 16], [0, 30, 16], [0, 0, 1]]])
    views[0, 2, 3] = 2.5
    due: dict[str, Any] = {"refine_start_iter": 10, "refine_every": 20}
    strategy = MCMCStrategy(cap_max=75, noise_lr=1.0, min_opacity=0.05, **due)
    if kind != "mcmc":
        strategy = DefaultStrategy(absgrad=kind == "absgrad", reset_every=70, grow_grad2d=1e-3, prune_opa=0.05, **due)
    strategy.check_sanity(params, optimizers)
    state, followed = strategy.initialize_state(), GaussianScene.from_splats(params, "it", {"row": torch.arange(60)})
    options: dict[str, Any] = {"scene": followed, **({"lr": 0.01} if kind == "mcmc" else {"packed": packed})}
    losses, counts = [], set()
    for step in range(100):
        image, _, meta = rasterization(
            params["means"], params["quats"], params["scales"].exp(), params["opacities"].sigmoid(), params["colors"],
            views, intrinsics, size, size, packed=packed, absgrad=kind == "absgrad", target=worker_process.target,
        )  # fmt: skip
        strategy.step_pre_backward(params, optimizers, state, step, meta)
        loss = (image - picture).abs().mean()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        strategy.step_post_backward(params, optimizers, state, step, meta, **options)
        losses.append(loss.item())
        counts.add(len(params["means"]))
    assert min(losses[-25:]) < 0.5 * losses[0]
    rows = followed.signal["row"]
    assert (
        len(counts) > 2 and {len(value) for value in params.values()} == {len(rows)} and len(rows.unique()) < len(rows)
    )
