"""Formats clearances as text: a table of the closest spheres, and a summary."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from lumigrad.client.base.counts import counted
from lumigrad.client.clearance.clearances import Clearances, record, summary

# Escape sequences of terminals.
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


def print_table(found: Clearances, limit: int) -> None:
    """Prints the closest sphere at each time step, or all spheres of a single one; collisions are red in a terminal.

    Prints at most `limit` rows, those with the least clearances; 0: all.
    """
    rows = [record(found, *place) for place in _places(found, limit)]
    header = (
        *(("step",) if found.motion.is_trajectory else ()),
        "sphere",
        *(("link",) if found.motion.names else ()),
        *("clearance", "distance", "obstacle"),
        *("closest_x", "closest_y", "closest_z", "normal_x", "normal_y", "normal_z"),
        *(("cost", "cost_dx", "cost_dy", "cost_dz", "cost_dr") if found.question.costs else ()),
    )
    cells = [_cells(found, row) for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    red = [False, *(is_colored and row["collides"] for row in rows)]
    for line, is_red in zip((header, *cells), red, strict=True):
        text = "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(f"{_RED}{text}{_PLAIN}" if is_red else text)
    left = (len(found.clearance) if found.motion.is_trajectory else found.clearance.shape[1]) - len(rows)
    if left:
        what = "time steps" if found.motion.is_trajectory else "spheres"
        print(f"({counted(left, what)} more, farther away; --rows 0 shows all)")


def sentence(found: Clearances) -> str:
    """Returns the summary as a sentence."""
    facts = summary(found)
    count, steps = found.clearance.shape[1], facts["steps"]
    along = f" in {counted(steps, 'time steps')}" if steps else ""
    lines = [f"{counted(count, 'spheres')}{along}, {counted(len(found.obstacles), 'obstacles')}: {_verdict(facts)}"]
    if facts["closest"] is not None:
        lines.append(f"closest: {_place(facts['closest'], facts['margin'])}")
    return "\n".join([*lines, *found.notes])


def _verdict(facts: dict[str, Any]) -> str:
    closer = f" closer than {facts['margin']:g} m" if facts["margin"] else ""
    uncertain = len(facts["uncertain_steps"] or ())
    if facts["collides"]:
        when = f" in {counted(len(facts['colliding_steps']), 'time steps')}" if facts["steps"] else ""
        return f"COLLIDES, {counted(facts['colliding_spheres'], 'spheres')}{closer}{when}"
    if uncertain:
        return f"nothing collides, but next to {counted(uncertain, 'time steps')} the way could not be proven free"
    return f"free{', nothing' + closer if closer else ''}"


def _place(values: dict[str, Any], margin: float) -> str:
    link = f" ({values['link']})" if values.get("link") else ""
    step = f"step {values['step']}, " if "step" in values else ""
    where = f"{step}sphere {values['sphere']}{link}"
    clearance = values["clearance"]
    if values["obstacle"] is None:
        return f"{where}, with nothing near" if clearance is None else f"{where}, with nothing within {clearance:.5g} m"
    if clearance < 0:
        return f"{where}, {-clearance:.5g} m inside {values['obstacle']}"
    return f"{where}, {clearance:.5g} m from {values['obstacle']}"


def _places(found: Clearances, limit: int) -> list[tuple[int, int]]:
    """Returns the rows of the table: time steps in order with their closest spheres, or spheres, the closest first."""
    filled = np.where(np.isnan(found.clearance), np.inf, found.clearance)
    if found.motion.is_trajectory:
        winners = filled.argmin(axis=1)
        chosen = np.argsort(filled.min(axis=1), kind="stable")[: limit or None]
        return [(int(step), int(winners[step])) for step in np.sort(chosen)]
    order = np.argsort(filled[0], kind="stable")[: limit or None]
    return [(0, int(sphere)) for sphere in order]


def _cells(found: Clearances, row: dict[str, Any]) -> tuple[str, ...]:
    more = ">" if row["beyond"] else ""
    return (
        *((str(row["step"]),) if "step" in row else ()),
        str(row["sphere"]),
        *((str(row["link"]),) if "link" in row else ()),
        *(more + _metres(row["clearance"]), more + _metres(row["distance"]), row["obstacle"] or "-"),
        *(_metres(value) for name in ("closest", "normal") for value in row[name] or (None, None, None)),
        *((_metres(value) for value in (row["cost"], *row["gradient"])) if found.question.costs else ()),
    )


def _metres(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"
