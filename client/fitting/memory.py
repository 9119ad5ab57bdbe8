"""Computes and checks the memory that photographs take on the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# The memory of a stored scene, relative to its tensors.
_SCENE_SHARE = 2
# The smallest side of photographs that are worth a fit, pixels.
_LEAST_SIDE = 64


def memory_of(shots: Sequence[Shot]) -> int:
    """Returns the size of the shots' target images, bytes."""
    return sum(shot.target_bytes for shot in shots)


def _scaled_bytes(shots: Sequence[Shot], sides: Mapping[str, int], side: int) -> float:
    """Returns `memory_of` the shots if the larger sides of photographs, `sides` by name, shrink to `side` pixels."""
    return sum(shot.target_bytes * min(side / sides[shot.name], 1.0) ** 2 for shot in shots)


def size_text(size: int) -> str:
    """Formats a number of bytes for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def check_memory(shots: Sequence[Shot], scene: Gaussians | Spheres, most: int) -> None:
    """Raises InvalidArgument, with advice, if a worker cannot hold the shots in addition to the initial scene.

    `most` is the worker's limit in bytes; 0: unknown.
    """
    # A stored scene also takes memory for its renderings.
    taken = _SCENE_SHARE * sum(tensor.nbytes for tensor in scene.tensors.values())
    needed, limit = memory_of(shots), max(most - taken, 1)
    if not most or needed <= limit:
        return
    # The larger side of each photograph; shots at half size have the names of those at full size.
    sides: dict[str, int] = {}
    for shot in shots:
        sides[shot.name] = max(sides.get(shot.name, 0), shot.camera.width, shot.camera.height)
    largest = max(sides.values())
    fitting = largest - 1
    while fitting >= _LEAST_SIDE and _scaled_bytes(shots, sides, fitting) > limit:
        fitting -= 1
    advice = f"--max-size {fitting} fits, or " if fitting >= _LEAST_SIDE else "the scene leaves no room for any; "
    text = f"expected photographs of at most {size_text(limit)} together, the worker's room for them"
    raise InvalidArgument.of(
        "max_size",
        f"{text}, got {size_text(needed)} at {largest} pixels, with those of half the size that a fit may begin "
        f"with; {advice}start the worker with a larger --training-mib and --scene-mib",
    )
