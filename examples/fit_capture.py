"""Fits Gaussians to posed photographs on a worker.

Takes a data set of nerfstudio's, COLMAP's or Inria's layout with initial points, one Gaussian for each. Photographs
travel to the worker once; it renders, compares, differentiates and steps, and tells what came of each step. Every
eighth photograph is kept aside; on those the fit is measured. Masks of photographs are not used.
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
from lumigrad.client import Client, Gaussians, Loss, Mcmc
from lumigrad.client.datasets import Capture, Points
from lumigrad.client.formats.activation import sh_from_colors
from lumigrad.client.pictures import write_image
from shot import Shot
from similarity import psnr, ssim

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
    parser.add_argument("--cap", type=int, default=0, help="let MCMC add Gaussians up to so many (default: none)")
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
        run(client, capture.points, shots, arguments)
    return 0


def beginning(points: Points, sh_degree: int) -> Gaussians:
    """Round, faint Gaussians at the points, as large as their surroundings are empty.

    Args:
        points: N of them, with colours.
        sh_degree: largest degree of the spherical harmonics.
    """
    means = torch.tensor(points.positions)
    count = len(means)
    sh = np.zeros((count, (sh_degree + 1) ** 2, 3), np.float32)
    sh[:, :1] = sh_from_colors(points.colors)
    return Gaussians(
        means,
        np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)),
        spacing(means)[:, None].repeat(1, 3),
        np.full(count, INITIAL_OPACITY),
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


def run(client: Client, points: Points, shots: Sequence[Shot], arguments: argparse.Namespace) -> None:
    """Fits, measures, and leaves pictures and the scene."""
    held_out = shots[::HELD_OUT_EVERY]
    fitted = [shot for index, shot in enumerate(shots) if index % HELD_OUT_EVERY]
    begin = beginning(points, arguments.sh_degree)
    print(f"{len(points):,} Gaussians, {len(fitted)} photographs to fit and {len(held_out)} to measure by")
    initial = pictures(client, begin, held_out)
    steps, output = arguments.steps, arguments.output
    began = time.perf_counter()
    trainer = client.trainer(
        begin,
        [shot.camera for shot in fitted],
        [shot.pixels for shot in fitted],
        loss=Loss(opacity=0.01, scale=0.01) if arguments.cap else Loss(),
        density=Mcmc(cap=arguments.cap, start=steps // 14, stop=steps * 6 // 7) if arguments.cap else None,
        total_steps=max(steps, 1),
        # Colours that depend on the direction come one degree after the other, the last by half-time.
        sh_degree_every=max(steps // 8, 1),
    )
    with trainer, tqdm(total=steps, desc="fitting", unit="step") as bar:
        losses, decibels = [], []
        for step in trainer.steps(steps):
            losses.append(step.loss)
            decibels.append(step.psnr)
            bar.update()
            if step.number % 10 == 0:
                latest = slice(-len(fitted), None)
                quality = f"{np.mean(decibels[latest]):.1f} dB"
                bar.set_postfix(loss=f"{np.mean(losses[latest]):.4f}", PSNR=quality, Gaussians=step.count)
        found = trainer.scene()
    seconds = time.perf_counter() - began

    assert isinstance(found, Gaussians)
    final = pictures(client, found, held_out)
    found.save(output / "fit.ply")
    write_image(output / "comparison.png", side_by_side(initial, final, held_out).numpy())
    before, after = scores(initial, held_out), scores(final, held_out)
    print(
        f"{steps} steps in {seconds:.0f} s, {1e3 * seconds / max(steps, 1):.0f} ms each, to {len(found):,} Gaussians; "
        f"photographs that were not fitted: PSNR from {before[0]:.2f} to {after[0]:.2f} dB, SSIM from {before[1]:.3f} "
        f"to {after[1]:.3f}\nsee {output}/: comparison.png (points, fit, photograph), fit.ply"
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
