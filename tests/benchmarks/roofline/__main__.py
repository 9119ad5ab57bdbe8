"""Lower bounds for the times of the CUDA kernels: `python -m tests.benchmarks.roofline` from the root.

Work is counted on the CPU, and times follow from the peak rates at which a GPU moves data and issues instructions.
Nothing is measured here.
"""

from __future__ import annotations

from tests.benchmarks.gaussian_scene import scene
from tests.benchmarks.roofline import gaussians, meshes, serving, spheres, training
from tests.benchmarks.roofline.device import DEVICES, Need, print_needs, seconds


def main() -> None:
    """Count and print the tables."""
    work = gaussians.count(scene(gaussians.COUNT, gaussians.WIDTH, gaussians.HEIGHT))
    print(f"{gaussians.COUNT} Gaussians at {gaussians.WIDTH}x{gaussians.HEIGHT}, of which {work.visible} are seen")
    print(f"{work.pairs / 1e6:.1f} M pairs with tiles, {work.fetched / 1e6:.1f} M with halves of tiles are fetched")
    print(f"{work.visits / 1e6:.1f} M of them reach pixels, {work.blocks / 1e6:.1f} M blocks of them")
    drawn = gaussians.needs(work)
    print_needs("A million Gaussians, one view", drawn)
    _print_sums(drawn, {"forward": serving.FORWARD, "backward": ("blend_backward", "project_backward")})
    print_needs("A million spheres, one view", spheres.needs())
    print_needs("A million points, a mesh of a million triangles", meshes.needs())
    steps = training.needs(drawn)
    print_needs("The kernels of a training", steps)
    _print_sums({**drawn, **steps}, {"step of a training": tuple({**drawn, **steps})})
    serving.print_batches(gaussians.needs(gaussians.count(scene(gaussians.COUNT, *serving.BATCH_SIZE))))


def _print_sums(needs: dict[str, Need], sums: dict[str, tuple[str, ...]]) -> None:
    for name, stages in sums.items():
        print(f"{name}: " + ", ".join(f"{1e3 * seconds(needs, stages, d):.2f} ms on an {d.name}" for d in DEVICES))


if __name__ == "__main__":
    main()
