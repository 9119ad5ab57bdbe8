"""Draws a chart of the least clearance along a trajectory, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.clearance.clearances import Clearances, nearest_spheres
from lumigrad.client.errors import InvalidArgument

CHART_SUFFIXES = (".png", ".svg", ".pdf")
_SIZE_INCHES, _DOTS_PER_INCH = (9.0, 4.8), 130
_RED, _GREY = "#c62828", "#888888"
# Colours of spheres; red is for collisions.
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf")


def check_chart(found: Clearances) -> None:
    """Raises InvalidArgument for clearances that cannot be drawn: of a single time step, or without enabled spheres."""
    if len(found.clearance) < 2:
        raise InvalidArgument.of("plot", "expected a trajectory of two or more time steps, got one; leave it out")
    if found.closest is None:
        raise InvalidArgument.of("plot", "expected an enabled sphere, got none; radii below 0 disable spheres")


def require_charts() -> None:
    """Raises MissingPackage if matplotlib is not installed; call this before computing anything."""
    require("matplotlib", "plot", "drawing charts")


def write_chart(path: Path, found: Clearances, title: str) -> None:
    """Writes a chart of the least clearance at each time step, and of the nearest spheres, as .png, .svg or .pdf.

    Collisions are red.
    """
    check_chart(found)
    require_charts()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # pyplot is avoided because it looks for a window system and keeps global state.
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = np.arange(len(found.clearance))
    for sphere, color in zip(nearest_spheres(found, len(_COLORS)), _COLORS, strict=False):
        link = found.name(sphere)
        label = f"sphere {sphere}" + (f" ({link})" if link else "")
        axes.plot(steps, _finite(found.clearance[:, sphere]), linewidth=1.2, color=color, label=label)
    _draw_least(axes, found)
    _draw_steps(axes, found)
    axes.set(xlabel="time step", ylabel="clearance, m", title=title)
    axes.set_xlim(-0.5, len(found.clearance) - 0.5)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    with replaced(path) as new:
        figure.savefig(new, dpi=_DOTS_PER_INCH)


def _draw_least(axes: Any, found: Clearances) -> None:
    """Draws the least clearance, the thresholds, and a mark at the minimum."""
    steps, least, question = np.arange(len(found.clearance)), _finite(found.least), found.question
    axes.plot(steps, least, color="black", linewidth=2.2, label="least of all spheres")
    deep = {"where": least < question.margin, "interpolate": True}
    axes.fill_between(steps, least, question.margin, **deep, color=_RED, alpha=0.35, linewidth=0)
    axes.axhline(question.margin, color=_RED, linewidth=1.2, label=f"collides below {question.margin:g} m")
    if question.costs and question.activation_distance > 0:
        label = f"costs begin at {question.activation_distance:g} m"
        axes.axhline(question.activation_distance, color=_GREY, linewidth=1.0, linestyle="--", label=label)
    place = found.closest
    assert place is not None
    low, high = float(np.nanmin(least)), float(np.nanmax(least))
    low, high = min(low, question.margin), max(high, question.margin, question.activation_distance)
    room = 0.12 * max(high - low, 1e-6)
    axes.set_ylim(low - 1.5 * room, high + room)
    value = found.clearance[place]
    if np.isfinite(value):
        axes.plot(place[0], value, marker="o", color="black", markersize=5)
        # Put the label on the side with more room.
        aside = -6 if place[0] > 0.6 * len(least) else 6
        axes.annotate(
            f"{value:.4g} m, {found.obstacle(*place) or 'nothing near'}",
            (place[0], value),
            xytext=(aside, -12),
            textcoords="offset points",
            horizontalalignment="right" if aside < 0 else "left",
            fontsize="small",
        )


def _draw_steps(axes: Any, found: Clearances) -> None:
    """Draws bands over time steps that collide or are uncertain."""
    for marked, color, label in (
        (found.collides.any(axis=1), _RED, "time steps that collide"),
        (found.uncertain.any(axis=1) & ~found.collides.any(axis=1), _GREY, "ways not proven free"),
    ):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
        for index, (begin, end) in enumerate(edges.reshape(-1, 2)):
            axes.axvspan(
                begin - 0.5, end - 0.5, color=color, alpha=0.1, label=label if index == 0 else None, linewidth=0
            )


def _finite(values: Float64) -> Float64:
    """Replaces infinities with NaN, which the chart shows as gaps."""
    return np.where(np.isfinite(values), values, np.nan)
