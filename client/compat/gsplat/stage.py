"""gsplat's `Stage` (`gsplat.stage`): scenes by name, and the functions that draw them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lumigrad.client.compat.gsplat.scene import GaussianScene


class Stage:
    """Scenes and their functions."""

    def __init__(self) -> None:
        self._scenes: dict[str, tuple[GaussianScene, Callable[..., Any]]] = {}

    def add_scene(self, scene: GaussianScene, render_fn: Callable[..., Any]) -> None:
        """Adds a scene; raises ValueError if there is one of its name."""
        if scene.id in self._scenes:
            raise ValueError(f"scene: expected a name that the stage does not have, got {scene.id!r}")
        self._scenes[scene.id] = (scene, render_fn)

    def get_scene(self, scene_id: str) -> GaussianScene:
        """Returns the scene of a name; raises KeyError without one."""
        return self._of(scene_id)[0]

    def render(self, scene_id: str, **kwargs: Any) -> Any:
        """Calls a scene's function with its `splats` and the arguments; raises KeyError if there is no such scene."""
        scene, render = self._of(scene_id)
        return render(splats=scene.splats, **kwargs)

    def _of(self, scene_id: str) -> tuple[GaussianScene, Callable[..., Any]]:
        if scene_id not in self._scenes:
            raise KeyError(f"expected one of {list(self._scenes)}, got {scene_id!r}")
        return self._scenes[scene_id]
