"""Peak memory of one forward and one backward pass, in a process of its own: what the system counts, not the engine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians import Settings, forward
from tests.benchmarks.gaussians.kernels import KernelBenchmark
from tests.benchmarks.gaussians.scene import Scene
from tests.benchmarks.gaussians.scene import scene as standard_scene

TILE = 16
# Beyond twice the inputs and the images, bytes per pair of a Gaussian and a tile that its box touches.
BYTES_PER_PAIR = 64


@dataclass(frozen=True)
class Memory:
    """Bytes of the scene, of the picture and its transmittance, and at the peak; pairs: see `BYTES_PER_PAIR`."""

    inputs: int
    images: int
    peak: int
    pairs: int

    @property
    def limit(self) -> int:
        """What it may need."""
        return 2 * self.inputs + self.images + BYTES_PER_PAIR * self.pairs


def measure_memory(scene: Scene, threads: int) -> Memory:
    """Runs this file as a program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scene.npz")
        np.savez(path, **{field.name: np.asarray(getattr(scene, field.name)) for field in fields(scene)})
        command = [sys.executable, "-m", __spec__.name, str(path), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Memory(**json.loads(done.stdout))


def _kilobytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


def _pairs(benchmark: KernelBenchmark, scene: Scene) -> int:
    """Of Gaussians and tiles that their boxes touch."""
    outputs = forward(benchmark.gaussians, benchmark.cameras, Settings(), outputs=("radii", "means2d")).outputs
    radii, means2d = outputs["radii"][0].numpy(), outputs["means2d"][0].numpy().astype(np.float64)
    tiles = -(-np.array([scene.width, scene.height]) // TILE)
    first = np.clip(np.floor((means2d - radii) / TILE), 0, tiles)
    last = np.clip(np.ceil((means2d + radii) / TILE), 0, tiles)
    return int(np.where((radii > 0).all(-1), (last - first).clip(0).prod(-1), 0).sum())


def main(path: str, threads: str) -> None:
    """Prints what was measured as JSON."""
    _native.set_thread_count(int(threads))
    torch.set_num_threads(int(threads))
    with np.load(path) as archive:
        values = {name: archive[name] for name in archive.files}
    for name in ("width", "height"):
        values[name] = int(values[name])
    scene = Scene(**{**values, "intrinsics": tuple(values["intrinsics"].tolist())})  # type: ignore[arg-type]
    # Code is loaded when it first runs, and is not what is asked for here.
    first = KernelBenchmark("code", standard_scene(100, 32, 32))
    first.backward(first.state())
    benchmark = KernelBenchmark("memory", scene)
    inputs = sum(value.nbytes for value in scene.tensors.values())
    # From here on the system records the peak anew.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS")
    benchmark.backward(benchmark.state())
    peak = inputs + (_kilobytes("VmHWM") - before) * 1024
    # The picture, and how much of the background passes.
    images = scene.width * scene.height * (3 + 1) * 4
    print(json.dumps(asdict(Memory(inputs, images, peak, _pairs(benchmark, scene)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
