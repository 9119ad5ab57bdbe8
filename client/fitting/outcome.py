"""Measures how well a fitted scene shows the held-out photographs, and writes the report of it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import write_text
from lumigrad.client.client import Client
from lumigrad.client.fitting.evaluation import (
    PhotographScore,
    Scores,
    exposures_nearby,
    pictures,
    samples,
    side_by_side,
)
from lumigrad.client.fitting.photograph import Photograph
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.pictures import levels_of, ramp_colors
from lumigrad.client.values.handle import Scene

# The number of photographs in the comparison.
_COMPARED = 3
# Pictures are reduced to at most this width and height, pixels.
_SIZE = 480
# The error that is shown in the lightest colour, as a fraction of the whole range.
_LARGEST_ERROR = 0.25

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1500px; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: .2rem 1rem .2rem 0; text-align: left; }
section { margin: 2rem 0; }
figure { display: inline-block; margin: 0 .5rem .5rem 0; width: 32%; }
img { width: 100%; }
figcaption { opacity: .7; }
"""


class Page:
    """The report as one HTML page, which contains only small pictures of each held-out photograph."""

    def __init__(self) -> None:
        self._sections: list[str] = []

    def add(self, score: PhotographScore, rendered: Array, photograph: Photograph) -> None:
        """Adds a held-out photograph and its rendering [H, W, 3], from 0 to 1."""
        error = _reduced(np.abs(rendered - photograph.colors).max(axis=-1) / _LARGEST_ERROR)
        pictures = {
            "rendered": _reduced(rendered),
            "photograph": _reduced(photograph.pixels),
            "largest error of a channel": levels_of(ramp_colors(error / 255)),
        }
        figures = "".join(
            f'<figure><img alt="{caption}" src="{_embedded(picture)}"><figcaption>{caption}</figcaption></figure>'
            for caption, picture in pictures.items()
        )
        said = f"{html.escape(score.name)}: {score.psnr:.2f} dB, SSIM {score.ssim:.3f}"
        self._sections.append(f"<section><h2>{said}</h2>{figures}</section>")

    def write(self, path: Path, title: str, facts: Mapping[str, str]) -> None:
        """Writes the .html file with embedded pictures; `facts` are the values of the table at its top, by name."""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(fact)}</td></tr>" for name, fact in facts.items()
        )
        write_text(
            path,
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
            f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><table>{rows}</table>"
            f"{''.join(self._sections)}</html>\n",
        )


def _reduced(picture: Array) -> Array:
    """Returns the levels of an image [H, W] or [H, W, 3], reduced to the size of pictures on the page."""
    image: Any = require("PIL.Image", "fit", "writing the report")
    shown = image.fromarray(levels_of(picture))
    shown.thumbnail((_SIZE, _SIZE))
    return np.asarray(shown, np.uint8)


def _embedded(picture: Array) -> str:
    """Returns levels of an image [H, W, 3] as the URL of a JPEG."""
    image: Any = require("PIL.Image", "fit", "writing the report")
    file = io.BytesIO()
    image.fromarray(picture).save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """The scores and pictures of held-out photographs.

    Attributes:
        scores: the mean scores.
        photographs: the scores of each photograph.
        page: the report, with a section for each photograph.
        comparison: [H, W, 3] uint8, some renderings next to their photographs.
    """

    scores: Scores
    photographs: Sequence[PhotographScore]
    page: Page
    comparison: Array

    @staticmethod
    def of(
        client: Client, scene: Scene, held_out: Sequence[Shot], fitted: Sequence[Shot], looks: Mapping[str, Any]
    ) -> Outcome:
        """Renders the held-out shots with the settings `looks` and compares each with its photograph, one at a time."""
        nearby = exposures_nearby(client, scene, held_out, fitted, looks)
        exposures = [None] * len(held_out) if nearby is None else list(nearby)
        compared, shown, taken = samples(held_out, _COMPARED), list[Array](), list[Array]()
        page, scores = Page(), []
        for index, rendered in enumerate(pictures(client, scene, held_out, looks)):
            shot, photograph = held_out[index], held_out[index].read()
            scores.append(PhotographScore.of(shot.name, rendered, photograph, exposures[index]))
            page.add(scores[-1], rendered, photograph)
            if index in compared:
                shown.append(levels_of(rendered))
                taken.append(photograph.pixels)
        return Outcome(Scores.of(scores), scores, page, side_by_side([shown, taken]))
