"""How well a scene shows photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.client.client import Client
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.fitting.similarity import color_map, exposed, matched, psnr, ssim
from lumigrad.client.named_arrays import Array
from lumigrad.client.scene import Scene, SceneHandle


@dataclass(frozen=True)
class Scores:
    """Means over photographs.

    Attributes:
        psnr: decibels.
        ssim: at most 1.
        exposed_psnr: decibels, with renderings exposed as the neighbouring photographs are, if these are known.
        matched_psnr: decibels, after the affine map of the rendering's colours that suits each photograph best.
    """

    psnr: float
    ssim: float
    exposed_psnr: float
    matched_psnr: float

    @staticmethod
    def of(rendered: Sequence[Array], shots: Sequence[Shot], exposures: Array | None = None) -> Scores:
        """Of renderings [H, W, 3] of the shots; `exposures` [N, 3, 4] are theirs, None: not known."""
        maps = [None] * len(shots) if exposures is None else list(exposures)
        rows = [_row(*each) for each in zip(rendered, shots, maps, strict=True)]
        return Scores(*(float(value) for value in np.mean(rows, axis=0)))

    def __str__(self) -> str:
        return f"{self.psnr:.2f} dB, SSIM {self.ssim:.3f}"


def _row(picture: Array, shot: Shot, exposure: Array | None) -> tuple[float, ...]:
    photograph, mask = shot.photograph, shot.mask
    found = picture if exposure is None else exposed(exposure, picture).clip(0, 1)
    return (
        psnr(picture, photograph, mask),
        ssim(picture, photograph, mask),
        psnr(found, photograph, mask),
        psnr(matched(picture, photograph, mask), photograph, mask),
    )


def pictures(client: Client, scene: Scene | SceneHandle, shots: Sequence[Shot]) -> list[Array]:
    """[H, W, 3] from 0 to 1 for each shot; a scene that is not stored yet travels once."""
    handle = scene if isinstance(scene, SceneHandle) else client.put(scene)
    try:
        return [client.render(handle, shot.camera).color.clip(0, 1) for shot in shots]
    finally:
        if handle is not scene:
            client.delete(handle)


def exposures_nearby(client: Client, scene: Scene, shots: Sequence[Shot], fitted: Sequence[Shot]) -> Array | None:
    """How renderings of shots that were not fitted should be exposed, as far as the neighbouring photographs tell.

    Photographs of a walk around something are numbered as they were taken, and a camera's exposure changes slowly. Each
    fitted photograph has the affine map of its rendering's colours that comes closest to it; a shot gets what lies
    between those of the two neighbours by name. Its own photograph is not looked at.

    Returns:
        [N, 3, 4] of the shots; None: nothing was fitted.
    """
    order = sorted({shot.name for shot in [*shots, *fitted]})
    places = {name: place for place, name in enumerate(order)}
    known, wanted = np.array(sorted(places[shot.name] for shot in fitted)), [places[shot.name] for shot in shots]
    if not len(known):
        return None
    after = np.searchsorted(known, wanted)
    needed = {int(known[min(max(index, 0), len(known) - 1)]) for index in [*after, *(after - 1)]}
    near = sorted((shot for shot in fitted if places[shot.name] in needed), key=lambda shot: shot.name)
    rendered = pictures(client, scene, near)
    maps = [color_map(picture, shot.photograph, shot.mask) for picture, shot in zip(rendered, near, strict=True)]
    columns = np.stack(maps).reshape(len(near), -1).T
    between = [np.interp(wanted, [places[shot.name] for shot in near], column) for column in columns]
    return np.stack(between, axis=1).reshape(len(shots), *maps[0].shape)


def side_by_side(columns: Sequence[Sequence[Array]]) -> Array:
    """[H, W, 3] of all pictures: columns next to each other, rows below each other, black where a row is shorter."""
    rows = [np.concatenate(row, axis=1) for row in zip(*columns, strict=True)]
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows])


def samples(shots: Sequence[Shot], count: int) -> list[int]:
    """Indices of some shots, spread over all."""
    spread = np.linspace(0, len(shots) - 1, count + 2)[1:-1].round().astype(int)
    return list(dict.fromkeys(int(index) for index in spread))
