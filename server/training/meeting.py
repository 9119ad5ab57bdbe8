"""What workers that train one model tell each other in each step."""

from __future__ import annotations

import dataclasses

import torch

from lumigrad.server.training.images import Gradients, Losses
from lumigrad.server.training.peers import Peers
from lumigrad.server.training.state import TrainingState


def averaged(
    state: TrainingState, gradients: Gradients, loss: Losses | None, peers: Peers
) -> tuple[Gradients, Losses | None]:
    """Gradients and losses of all workers' views, as if one had rendered them all. PeerLostError if one is missing."""
    count, device = len(state.views), gradients.touched.device
    numbers = torch.tensor(list(gradients.views), dtype=torch.int64, device=device)
    wanted = state.parameters.wanted
    shared = {name: gradients.by_name[name] for name in wanted}
    shared["(touched)"] = gradients.touched
    shared["(views)"] = _by_view(torch.ones(len(numbers), device=device), numbers, count)
    for name, rows in (("(exposures)", gradients.exposures), ("(poses)", gradients.poses)):
        if rows is not None:
            shared[name] = _by_view(rows, numbers, count)
    if loss is not None:
        shared["(loss)"] = torch.tensor([loss.total, *loss.terms.values()], device=device)
    means = peers.mean({name: tensor.float() for name, tensor in shared.items()}, float(len(numbers)), state.step)
    views = means["(views)"].nonzero().flatten()
    merged = dataclasses.replace(
        gradients,
        by_name={**gradients.by_name, **{name: means[name] for name in wanted}},
        touched=means["(touched)"],
        views=views.tolist(),
        exposures=None if gradients.exposures is None else means["(exposures)"][views],
        poses=None if gradients.poses is None else means["(poses)"][views],
    )
    if loss is None:
        return merged, None
    total, *terms = means["(loss)"].tolist()
    return merged, Losses(total, dict(zip(loss.terms, terms, strict=True)), loss.upstream)


def _by_view(rows: torch.Tensor, numbers: torch.Tensor, count: int) -> torch.Tensor:
    table = torch.zeros(count, *rows.shape[1:], device=rows.device)
    return table.index_copy_(0, numbers, rows.float())
