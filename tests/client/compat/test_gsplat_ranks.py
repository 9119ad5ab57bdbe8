"""Ranks of torch.distributed that each hold some of the Gaussians and gather them, as with gsplat's `distributed`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.workers.worker import worker

RANKS = 2
PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather
from lumigrad.client.compat.gsplat import rasterization

target, meeting_point, rank, ranks = *sys.argv[1:3], *map(int, sys.argv[3:])
dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=ranks)
seeded, count = torch.Generator().manual_seed(0), 40
everything = {
    "means": torch.randn(count, 3, generator=seeded),
    "quats": torch.randn(count, 4, generator=seeded),
    "scales": torch.rand(count, 3, generator=seeded) * 0.2 + 0.05,
    "opacities": torch.rand(count, generator=seeded),
    "colors": torch.rand(count, 3, generator=seeded),
}
views = torch.eye(4).repeat(ranks, 1, 1)
views[:, 2, 3], views[:, 0, 3] = 5.0, torch.arange(ranks) * 0.5
lens = torch.tensor([[50.0, 0.0, 32.0], [0.0, 50.0, 24.0], [0.0, 0.0, 1.0]]).repeat(ranks, 1, 1)
weights = torch.rand(ranks, 48, 64, 3, generator=seeded)

def image(tensors, cameras):
    return rasterization(**tensors, viewmats=views[cameras], Ks=lens[cameras], width=64, height=48, target=target)[0]

whole = {name: value.clone().requires_grad_() for name, value in everything.items()}
expected = image(whole, slice(None))
(expected * weights).sum().backward()
own, mine = slice(rank, rank + 1), slice(rank * count // ranks, (rank + 1) * count // ranks)
held = {name: value[mine].clone().requires_grad_() for name, value in everything.items()}
found = image({name: torch.cat(all_gather(value)) for name, value in held.items()}, own)
(found * weights[own]).sum().backward()
torch.testing.assert_close(found, expected[own], rtol=0, atol=1e-6)
for name, value in held.items():
    assert value.grad.abs().sum() > 0
    torch.testing.assert_close(value.grad, whole[name].grad[mine], rtol=1e-5, atol=1e-5)
dist.destroy_process_group()
"""


def test_ranks_that_gather_their_gaussians_get_the_images_and_gradients_of_all(tmp_path: Path) -> None:
    with worker("--device", "cpu") as process:
        command = [sys.executable, "-c", PROGRAM, process.target, str(tmp_path / "ranks")]
        ranks = [
            subprocess.Popen([*command, str(rank), str(RANKS)], stderr=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        try:
            complaints = [rank.communicate(timeout=120)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, complaints
