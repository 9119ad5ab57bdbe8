"""Writes the report of a fit as one HTML page: scores and pictures of each held-out photograph."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import write_text
from lumigrad.client.fitting.evaluation import PhotographScore
from lumigrad.client.fitting.photograph import Photograph
from lumigrad.client.pictures import levels_of, ramp_colors

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
    """The page, which contains only small pictures."""

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
