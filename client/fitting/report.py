"""The report of a fit as one HTML page: scores and pictures of each photograph that was held out."""

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
from lumigrad.client.fitting.beginning import Shot
from lumigrad.client.fitting.evaluation import psnr, ssim
from lumigrad.client.pictures import levels_of, ramp_colors

# Pictures are reduced to this width or height, pixels.
_SIZE = 480
# The error, as a part of the whole range, that is shown lightest.
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


@dataclass(frozen=True)
class PhotographScore:
    """The score of one held-out photograph.

    Attributes:
        name: of the photograph.
        psnr: decibels.
        ssim: at most 1.
    """

    name: str
    psnr: float
    ssim: float

    @staticmethod
    def of(rendered: Array, shot: Shot) -> PhotographScore:
        """Scores a rendering [H, W, 3] of a shot."""
        pair = rendered, shot.photograph, shot.mask
        return PhotographScore(shot.name, psnr(*pair), ssim(*pair))


def write_report(
    path: Path,
    title: str,
    facts: Mapping[str, str],
    scores: Sequence[PhotographScore],
    rendered: Sequence[Array],
    shots: Sequence[Shot],
) -> None:
    """Writes the page, with its pictures inside.

    Args:
        path: the .html file.
        title: title of the page.
        facts: values of the table at its top, by name.
        scores: of the held-out photographs.
        rendered: their renderings, [H, W, 3] from 0 to 1.
        shots: the photographs.
    """
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(fact)}</td></tr>" for name, fact in facts.items())
    parts = [_section(*each) for each in zip(scores, rendered, shots, strict=True)]
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><table>{rows}</table>{''.join(parts)}</html>\n",
        encoding="utf-8",
    )


def _section(score: PhotographScore, rendered: Array, shot: Shot) -> str:
    error = np.abs(rendered - shot.photograph).max(axis=-1) / _LARGEST_ERROR
    pictures = {"rendered": rendered, "photograph": shot.pixels, "largest error of a channel": ramp_colors(error)}
    figures = "".join(
        f'<figure><img alt="{caption}" src="{_embedded(picture)}"><figcaption>{caption}</figcaption></figure>'
        for caption, picture in pictures.items()
    )
    said = f"{html.escape(score.name)}: {score.psnr:.2f} dB, SSIM {score.ssim:.3f}"
    return f"<section><h2>{said}</h2>{figures}</section>"


def _embedded(picture: Array) -> str:
    """Returns an image [H, W, 3] as the URL of a JPEG."""
    image: Any = require("PIL.Image", "fit", "writing the report")
    shown = image.fromarray(levels_of(picture))
    shown.thumbnail((_SIZE, _SIZE))
    file = io.BytesIO()
    shown.save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
