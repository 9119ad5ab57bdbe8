"""The tables of the benchmark of lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.lanes.formats import FormatRow


@dataclass(frozen=True)
class Row:
    """A row of the results; milliseconds.

    Attributes:
        lane: "stream" or "shared".
        case: the payload.
        direction: "down", "up" or "unary".
        payload_bytes: the size of the payload.
        median_ms: the call, without its kernels.
        p99_ms: its 99th percentile.
        reference_ms: median of the bare copy, or of the bare call.
        reference_p99_ms: its 99th percentile.
        stream_ms: median of the bare gRPC stream; 0 for a small call.
        ratio: the reference's median over the call's.
        runs: of each.
    """

    lane: str
    case: str
    direction: str
    payload_bytes: int
    median_ms: float
    p99_ms: float
    reference_ms: float
    reference_p99_ms: float
    stream_ms: float
    ratio: float
    runs: int


def tables(rows: Sequence[Row], formats: Sequence[FormatRow]) -> str:
    """All tables as Markdown."""
    large, small = ([row for row in rows if (row.direction == "unary") == is_small] for is_small in (False, True))
    lines = [
        "| lane | payload | MB | ms | of a bare socket's rate | of a bare gRPC stream's |",
        "|---|---|---|---|---|---|",
        *map(_large, large),
        "",
        "| small call | ms, p50 / p99 | bare gRPC call | times as long |",
        "|---|---|---|---|",
        *map(_small, small),
        "",
        "| image format | MB | ms | of which compressing |",
        "|---|---|---|---|",
        *(f"| {row.format} | {row.payload_bytes / 1e6:.1f} | {row.median_ms:.1f} | {_zero(row)} |" for row in formats),
    ]
    return "\n".join(lines)


def _large(row: Row) -> str:
    return (
        f"| {row.lane} | {row.case}, {row.direction} | {row.payload_bytes / 1e6:.1f} | {row.median_ms:.1f} | "
        f"{row.ratio:.2f} | {row.stream_ms / row.median_ms:.2f} |"
    )


def _small(row: Row) -> str:
    return (
        f"| {row.case} | {row.median_ms:.2f} / {row.p99_ms:.2f} | "
        f"{row.reference_ms:.2f} / {row.reference_p99_ms:.2f} | {1 / row.ratio:.2f} |"
    )


def _zero(row: FormatRow) -> str:
    return f"{row.compress_ms:.1f}" if row.compress_ms else "-"
