"""The tables at the end of a soak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from support.histogram import Histogram
from tests.soak.tally import Tally
from tests.soak.trend import Trend

QUANTILES = {"p50": 0.5, "p99": 0.99, "most": 1.0}


def report(
    trends: Sequence[Trend], tally: Tally, faults: Mapping[str, int], probes: Histogram, *, is_good: bool
) -> str:
    """All tables as Markdown; `probes` are the times of small renders."""
    times = ", ".join(f"{name} {1e3 * probes.quantile(share):.0f} ms" for name, share in QUANTILES.items())
    lines = [
        "",
        "| held | at first | at last | trend | limit | windows |",
        "|---|---|---|---|---|---|",
        *map(_row, trends),
        "",
        "| what went wrong | times |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(faults.items())),
        "",
        "| call | as expected |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(tally.good.items())),
        "",
        "| error | to be expected |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(tally.excused.items())),
        "",
        f"{sum(tally.good.values())} calls as expected, {sum(tally.excused.values())} ended as they had to, "
        f"{sum(tally.failed.values())} failed.",
        f"{probes.count} small renders beside them: {times}.",
        *(f"failed: {name}, {count} times" for name, count in sorted(tally.failed.items())),
        *tally.notes,
        *(f"grows: {trend.name}" for trend in trends if not trend.is_good),
        "the soak passed" if is_good else "THE SOAK FAILED",
    ]
    return "\n".join(lines)


def _row(trend: Trend) -> str:
    return (
        f"| {trend.name} | {trend.first:.1f} | {trend.last:.1f} | {trend.growth:+.2f} | {trend.limit:g} | "
        f"{trend.windows} |"
    )
