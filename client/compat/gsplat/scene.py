"""gsplat's `GaussianScene` (`gsplat.scene`): parameters, and values that follow them as strategies change rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

_NEEDED = ("means", "scales", "quats", "opacities")


class GaussianScene:
    """Parameters of Gaussians, and further values of each of them.

    Attributes:
        id: the name of the scene on a `Stage`.
        splats: parameters by name, a row for each Gaussian.
        signal: further values by name, a row for each Gaussian, which follow the changes of strategies.
    """

    def __init__(self, id: str) -> None:
        """Makes a scene without Gaussians; raises ValueError for an empty name."""
        if not isinstance(id, str) or not id:
            raise ValueError(f"id: expected a name, got {id!r}")
        self.id = id
        self.splats = torch.nn.ParameterDict()
        self.signal: dict[str, torch.Tensor] = {}

    @classmethod
    def from_splats(
        cls, splats: torch.nn.ParameterDict, id: str, signal: Mapping[str, torch.Tensor] | None = None
    ) -> GaussianScene:
        """Makes a scene of parameters; raises ValueError unless all have a row for each Gaussian."""
        missing = [name for name in _NEEDED if name not in splats]
        if missing:
            raise ValueError(f"splats: expected {', '.join(_NEEDED)}, got none named {missing[0]}")
        count, device = len(splats["means"]), splats["means"].device
        for name, value in (*splats.items(), *(signal or {}).items()):
            if len(value) != count:
                raise ValueError(f"{name}: expected a row for each of {count} Gaussians, got {len(value)}")
        scene = cls(id)
        scene.splats = splats
        scene.signal = {name: value.to(device) for name, value in (signal or {}).items()}
        return scene

    def num_gaussians(self) -> int:
        """Returns the number of Gaussians."""
        return len(self.splats["means"]) if "means" in self.splats else 0

    # Strategies call the following methods once they have changed the rows of the parameters.

    def on_duplicate(self, sel: torch.Tensor) -> None:
        """Appends copies of the rows `sel`."""
        self._change(lambda old: torch.cat([old, old[sel]]))

    def on_sample_add(self, sampled_indices: torch.Tensor) -> None:
        """Appends copies of the rows `sampled_indices`."""
        self.on_duplicate(sampled_indices)

    def on_split(self, sel: torch.Tensor, rest: torch.Tensor) -> None:
        """Keeps the rows `rest`, and appends the rows `sel` twice."""
        self._change(lambda old: torch.cat([old[rest], old[sel], old[sel]]))

    def on_remove(self, remove_mask: torch.Tensor) -> None:
        """Removes the rows of a mask."""
        self._change(lambda old: old[~remove_mask])

    def on_relocate(self, dead_indices: torch.Tensor, sampled_indices: torch.Tensor) -> None:
        """Replaces the rows `dead_indices` by the rows `sampled_indices`."""
        self._change(lambda old: old.index_copy(0, dead_indices, old[sampled_indices]))

    def _change(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.signal = {name: change(value) for name, value in self.signal.items()}
