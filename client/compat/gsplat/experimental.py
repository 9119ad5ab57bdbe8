"""gsplat's `experimental`: its inference renderer needs CUDA of its own, and is not offered."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"gsplat.experimental.{name} is not offered; use rasterization, without --use_gaussian_render_inference_scene"
    )
