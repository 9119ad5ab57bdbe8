"""Fits Gaussians to posed photographs through remote gradients.

Takes a data set of nerfstudio's, COLMAP's or Inria's layout with initial points, one Gaussian for each. A step renders
one view on a worker, compares it with its photograph here, and moves the Gaussians along gradients that come back from
the worker. Every eighth photograph is kept aside; on those the fit is measured. Masks of photographs are not used.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from local_worker import worker
from lumigrad.client import Client, Gaussians
from lumigrad.client.datasets import Capture, Points
from lumigrad.client.formats.activation import sh_from_colors
from lumigrad.client.pictures import write_png
from lumigrad.client.torch import render_gaussians
from shot import Shot, extent_of
from similarity import psnr, ssim

# Of Adam, as trainers of Gaussians have settled on them; that of the means is for a scene of extent 1.
RATES = {"means": 1.6e-4, "quats": 1e-3, "log_scales": 5e-3, "logits": 5e-2, "sh_0": 2.5e-3, "sh_rest": 2.5e-3 / 20}
# The rate of the means falls to this share of itself.
LAST_SHARE = 0.01
SSIM_SHARE = 0.2
INITIAL_OPACITY = 0.1
# Their distances give a Gaussian its first size.
NEIGHBOURS = 3
# Among so many points all pairs are looked at.
CROWD = 4096
HELD_OUT_EVERY = 8
# Of the held-out views, in the side-by-side picture.
SHOWN = 3


def main() -> int:
    """Runs the fit; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capture", type=Path, help="the data set: its folder, or its .json file")
    parser.add_argument("--steps", type=int, default=2000, help="steps of the optimiser (default: 2000)")
    parser.add_argument("--sh-degree", type=int, choices=range(5), default=3, help="of the colours (default: 3)")
    parser.add_argument("--size", type=int, default=640, help="most pixels along a side of a picture (default: 640)")
    parser.add_argument("--output", type=Path, default=Path("fit_output"), help="(default: fit_output)")
    arguments = parser.parse_args()
    capture = Capture.load(arguments.capture)
    shots = [Shot.of(view, arguments.size) for view in sorted(capture.views, key=lambda view: view.name) if view.image]
    if len(shots) < 2 or capture.points is None or len(capture.points) < NEIGHBOURS + 1:
        parser.error(f"expected initial points and at least two photographs in {arguments.capture}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    # Threads that wait for each other in turns with the worker's are slow wherever cores are few or busy.
    torch.set_num_threads(1)
    with worker(arguments.output / "worker.log") as target, Client(target) as client:
        info = client.info()
        print(f"worker at {target}: {info.device_name}, {info.device}, {info.instruction_set}")
        fit = Fit(client, capture.points, extent_of(shots), arguments.sh_degree)
        run(fit, shots, arguments.steps, arguments.output)
    return 0


class Fit:
    """Gaussians and their optimiser."""

    def __init__(self, client: Client, points: Points, extent: float, sh_degree: int) -> None:
        """Starts with round, faint Gaussians at the points, as large as their surroundings are empty.

        Args:
            client: of the worker.
            points: N of them, with colours.
            extent: of the scene, scene units.
            sh_degree: largest degree of the spherical harmonics.
        """
        self.client, self.extent, self.sh_degree = client, extent, sh_degree
        means = torch.tensor(points.positions)
        values = {
            "means": means,
            "quats": torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(len(means), 1),
            "log_scales": spacing(means).log()[:, None].repeat(1, 3),
            "logits": torch.full((len(means),), INITIAL_OPACITY).logit(),
            "sh_0": torch.from_numpy(sh_from_colors(points.colors)),
            "sh_rest": torch.zeros(len(means), (sh_degree + 1) ** 2 - 1, 3),
        }
        self.parameters = {name: value.requires_grad_() for name, value in values.items()}
        groups = [{"params": [self.parameters[name]], "lr": rate} for name, rate in RATES.items()]
        self.optimizer = torch.optim.Adam(groups, eps=1e-15, fused=True)

    def step(self, shot: Shot, progress: float) -> tuple[float, float]:
        """One view: there, back, and a step of the optimiser; `progress` goes from 0 to 1. Returns loss and PSNR."""
        self.optimizer.param_groups[0]["lr"] = RATES["means"] * self.extent * LAST_SHARE**progress
        # Colours that depend on the direction come one degree after the other, the last by half-time.
        degree = min(int(8 * progress), self.sh_degree)
        values = self.parameters
        rendered = render_gaussians(
            values["means"],
            values["quats"],
            values["log_scales"].exp(),
            values["logits"].sigmoid(),
            torch.cat([values["sh_0"], values["sh_rest"][:, : (degree + 1) ** 2 - 1]], dim=1),
            shot.view_matrix,
            shot.intrinsics,
            width=shot.camera.width,
            height=shot.camera.height,
            sh_degree=degree,
            camera_model=shot.model.projection,
            distortion=shot.model.distortion or None,
            # What else could be had would travel, too.
            outputs=("color",),
            client=self.client,
        )
        picture, photograph = rendered.color[0], shot.photograph
        difference = (picture - photograph).abs().mean()
        loss = (1 - SSIM_SHARE) * difference + SSIM_SHARE * (1 - ssim(picture, photograph))
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item(), psnr(picture.detach(), photograph)

    @torch.no_grad()
    def gaussians(self) -> Gaussians:
        """As they are now."""
        values = self.parameters
        sh = torch.cat([values["sh_0"], values["sh_rest"]], dim=1)
        return Gaussians(
            values["means"].clone(),
            torch.nn.functional.normalize(values["quats"], dim=-1),
            values["log_scales"].exp(),
            values["logits"].sigmoid(),
            sh=sh,
        )


def spacing(points: torch.Tensor) -> torch.Tensor:
    """[N] root mean square distance of points [N, 3] to their nearest neighbours, more or less.

    A large cloud is cut in two and each half looked at alone, so points at a cut may miss neighbours behind it.
    """
    if len(points) > CROWD:
        axis = (points.amax(dim=0) - points.amin(dim=0)).argmax()
        halves = points[:, axis].argsort().tensor_split(2)
        found = torch.cat([spacing(points[half]) for half in halves])
        return torch.empty_like(found).index_copy_(0, torch.cat(halves), found)
    # A difference of squares would be too coarse far from the origin.
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    # The nearest of all is the point itself; and points that coincide need some size, too.
    nearest = distances.topk(NEIGHBOURS + 1, largest=False).values[:, 1:]
    return nearest.square().mean(dim=1).clamp_min(1e-7).sqrt()


def run(fit: Fit, shots: Sequence[Shot], steps: int, output: Path) -> None:
    """Fits, measures, and leaves pictures and the scene."""
    held_out = shots[::HELD_OUT_EVERY]
    fitted = [shot for index, shot in enumerate(shots) if index % HELD_OUT_EVERY]
    count = len(fit.parameters["means"])
    print(f"{count:,} Gaussians, {len(fitted)} photographs to fit and {len(held_out)} to measure by")
    initial = pictures(fit.client, fit.gaussians(), held_out)
    generator = np.random.default_rng(0)
    order: list[int] = []
    losses, decibels = [], []
    began = time.perf_counter()
    with tqdm(range(steps), desc="fitting", unit="step") as bar:
        for step in bar:
            order = order or generator.permutation(len(fitted)).tolist()
            loss, quality = fit.step(fitted[order.pop()], step / max(steps - 1, 1))
            losses.append(loss)
            decibels.append(quality)
            if step % 10 == 0:
                latest = slice(-len(fitted), None)
                bar.set_postfix(loss=f"{np.mean(losses[latest]):.4f}", PSNR=f"{np.mean(decibels[latest]):.1f} dB")
    seconds = time.perf_counter() - began

    final = pictures(fit.client, fit.gaussians(), held_out)
    fit.gaussians().save(output / "fit.ply")
    write_png(output / "comparison.png", side_by_side(initial, final, held_out).numpy())
    before, after = scores(initial, held_out), scores(final, held_out)
    print(
        f"{steps} steps in {seconds:.0f} s, {1e3 * seconds / max(steps, 1):.0f} ms each; photographs that were not "
        f"fitted: PSNR from {before[0]:.2f} to {after[0]:.2f} dB, SSIM from {before[1]:.3f} to {after[1]:.3f}\n"
        f"see {output}/: comparison.png (points, fit, photograph), fit.ply"
    )


def pictures(client: Client, gaussians: Gaussians, shots: Sequence[Shot]) -> list[torch.Tensor]:
    """[H, W, 3] from 0 to 1 for each shot; the Gaussians travel once."""
    scene = client.put(gaussians)
    try:
        frames = [client.render(scene, shot.camera) for shot in shots]
    finally:
        client.delete(scene)
    return [torch.from_numpy(frame.color).clamp(0, 1) for frame in frames]


def side_by_side(initial: Sequence[torch.Tensor], final: Sequence[torch.Tensor], shots: Sequence[Shot]) -> torch.Tensor:
    """Some shots, each a row: before the fit, after it, and the photograph."""
    shown = np.linspace(0, len(shots) - 1, SHOWN + 2)[1:-1].round().astype(int)
    rows = [torch.cat([initial[k], final[k], shots[k].photograph], dim=1) for k in dict.fromkeys(shown.tolist())]
    width = max(row.shape[1] for row in rows)
    return torch.cat([torch.nn.functional.pad(row, (0, 0, 0, width - row.shape[1])) for row in rows])


def scores(rendered: Sequence[torch.Tensor], shots: Sequence[Shot]) -> tuple[float, float]:
    """PSNR in decibels and SSIM, means over the shots."""
    pairs = [(picture, shot.photograph) for picture, shot in zip(rendered, shots, strict=True)]
    return float(np.mean([psnr(*pair) for pair in pairs])), float(np.mean([float(ssim(*pair)) for pair in pairs]))


if __name__ == "__main__":
    sys.exit(main())
