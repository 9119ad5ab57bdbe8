"""Benchmark of density control: `python -m tests.benchmarks.density_kernels [COUNT ...]` from the root.

Each operation takes turns with an equivalent sequence of torch operations, on Gaussians with spherical harmonics of
degree 3 and Adam's moments. Both use one thread, and its processor time is measured: times of several threads that wait
for each other are random on a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from lumigrad.kernels import _native, density
from lumigrad.kernels.density import Draw, Parameters, Statistics, Thresholds
from lumigrad.kernels.device import describe, resolve
from tests.benchmarks import density_torch
from tests.benchmarks.density_torch import Cloud
from tests.benchmarks.measure import Measured, write

COUNTS = (100_000, 500_000)
RUNS = 9
RESULTS = Path("build/bench/density.json")
WIDTH, HEIGHT, EXTENT = 1920, 1080, 3.0
DRAW = Draw(seed=0, step=1)
Prepare = Callable[[], Any]
Operation = Callable[[Any], object]


class Benchmark:
    """Gaussians, one in ten of which is dead, and about one in seven grows."""

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        random = torch.Generator().manual_seed(0)
        self.count = count
        tensors = {
            "means": torch.randn(count, 3, generator=random),
            "quats": torch.randn(count, 4, generator=random),
            "scales": torch.randn(count, 3, generator=random) - 4.5,
            "opacities": 2.0 * torch.randn(count, generator=random),
            "sh": torch.randn(count, 16, 3, generator=random),
        }
        tensors["opacities"][torch.rand(count, generator=random) < 0.1] = -8.0
        moments = {
            name: (torch.randn_like(tensor).to(device), torch.rand_like(tensor).to(device))
            for name, tensor in tensors.items()
        }
        self.parameters = Parameters({name: tensor.to(device) for name, tensor in tensors.items()}, moments)
        self.statistics = Statistics.zeros(self.parameters)
        self.statistics.views.fill_(10)
        self.statistics.gradient.copy_(torch.rand(count, generator=random) * 2.3e-3)
        self.sums = Statistics.zeros(self.parameters)
        self.gradient = (torch.randn(1, count, 2, generator=random) * 1e-7).to(device)
        self.radii = torch.randint(-10, 40, (1, count, 2), generator=random, dtype=torch.int32).to(device)

    def same(self) -> Parameters:
        """The parameters, for operations that do not really change them."""
        return self.parameters

    def copy(self) -> Parameters:
        """A copy, for operations that change the parameters."""
        moments = {name: tuple(map(torch.clone, several)) for name, several in self.parameters.moments.items()}
        return Parameters({name: tensor.clone() for name, tensor in self.parameters.tensors.items()}, moments)

    def operations(self) -> dict[str, tuple[Prepare, Operation, Operation]]:
        """The input of each operation, and the kernels' and torch's implementation."""
        to, cap, strength = Thresholds(), 2 * self.count, 80.0

        def grown(parameters: Parameters) -> object:
            plan = density.plan(parameters, self.statistics, to, extent=EXTENT, after_reset=True)
            return density.apply(plan, parameters, DRAW)

        def observed(_: Parameters) -> object:
            return density.accumulate(self.sums, self.gradient, self.radii, width=WIDTH, height=HEIGHT)

        def torch_observed(_: Parameters) -> object:
            return density_torch.accumulate(self.sums, self.gradient, self.radii, WIDTH, HEIGHT)

        return {
            "accumulate": (self.same, observed, torch_observed),
            "plan and apply": (
                self.same,
                grown,
                lambda p: density_torch.grow_and_prune(Cloud.of(p), self.statistics, to, EXTENT),
            ),
            "relocate": (
                self.copy,
                lambda p: density.relocate(p, DRAW),
                lambda p: density_torch.relocate(Cloud.of(p)),
            ),
            "add": (
                self.copy,
                lambda p: density.add_gaussians(p, DRAW, cap=cap),
                lambda p: density_torch.add(Cloud.of(p), cap),
            ),
            "noise": (
                self.copy,
                lambda p: density.add_noise(p, DRAW, learning_rate=strength, noise_rate=1.0),
                lambda p: density_torch.add_noise(Cloud.of(p), strength),
            ),
        }


def in_turns(prepare: Prepare, ours: Operation, theirs: Operation) -> tuple[list[float], list[float]]:
    """Milliseconds of processor time of both, run after run; a first run of each warms up."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(RUNS + 1):
        for spent, operation in zip(times, (ours, theirs), strict=True):
            argument = prepare()
            start = time.process_time()
            result = operation(argument)
            if run > 0:
                spent.append((time.process_time() - start) * 1e3)
            del result, argument
    return times


def race(races: Iterable[tuple[str, str, Prepare, Operation, Operation]], results: Path) -> None:
    """Runs the operations of each case, prints the table and writes the results."""
    _native.set_thread_count(1)
    torch.set_num_threads(1)
    machine = describe(resolve("cpu"))
    print(f"{machine.device_name}, {machine.instruction_set}, one thread; processor time, ms: median (least)\n")
    print(f"{'case':>12}  {'operation':<28}{'kernels':>18}{'torch':>20}{'faster':>8}")
    rows: list[Measured] = []
    for case, name, prepare, ours, theirs in races:
        medians = []
        for who, times in zip(("kernels", "torch"), in_turns(prepare, ours, theirs), strict=True):
            medians.append((statistics.median(times), min(times)))
            rows.append(Measured(case, name, who, *medians[-1], 0.0, len(times)))
        (our, our_least), (their, their_least) = medians
        cells = f"{our:.1f} ({our_least:.1f})".rjust(18) + f"{their:.1f} ({their_least:.1f})".rjust(20)
        print(f"{case:>12}  {name:<28}{cells}{their_least / our_least:>7.1f}x", flush=True)
    write(rows, results)
    print(f"\nwrote {results}")


def main() -> None:
    """Measures all operations at all counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, metavar="COUNT", default=COUNTS, help="of Gaussians")
    operations = ((f"{count}", Benchmark(count).operations()) for count in parser.parse_args().counts)
    race(((count, name, *three) for count, several in operations for name, three in several.items()), RESULTS)


if __name__ == "__main__":
    main()
