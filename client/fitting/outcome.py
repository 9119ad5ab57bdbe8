"""Measures how well a fitted scene shows the held-out photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lumigrad.client.base.arrays import Array
from lumigrad.client.client import Client
from lumigrad.client.fitting.background import Color
from lumigrad.client.fitting.evaluation import (
    PhotographScore,
    Scores,
    exposures_nearby,
    pictures,
    samples,
    side_by_side,
)
from lumigrad.client.fitting.report import Page
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.pictures import levels_of
from lumigrad.client.values.handle import Scene

# The number of photographs in the comparison.
_COMPARED = 3


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
    def of(client: Client, scene: Scene, held_out: Sequence[Shot], fitted: Sequence[Shot], color: Color) -> Outcome:
        """Renders the held-out shots over a background colour and compares each with its photograph, one at a time."""
        nearby = exposures_nearby(client, scene, held_out, fitted, color)
        exposures = [None] * len(held_out) if nearby is None else list(nearby)
        compared, shown, taken = samples(held_out, _COMPARED), list[Array](), list[Array]()
        page, scores = Page(), []
        for index, rendered in enumerate(pictures(client, scene, held_out, color)):
            shot, photograph = held_out[index], held_out[index].read()
            scores.append(PhotographScore.of(shot.name, rendered, photograph, exposures[index]))
            page.add(scores[-1], rendered, photograph)
            if index in compared:
                shown.append(levels_of(rendered))
                taken.append(photograph.pixels)
        return Outcome(Scores.of(scores), scores, page, side_by_side([shown, taken]))
