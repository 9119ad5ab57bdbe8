"""Numbers as people read them, in few characters."""

from __future__ import annotations

import math

_MIB, _GIB = 2**20, 2**30


def rate(value: float) -> str:
    """Something per second, such as "0", "0.03", "12.3", "1,234"."""
    if value == 0:
        return "0"
    if value < 0.095:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def milliseconds(value: float) -> str:
    """Such as "0.12", "3.4", "120"; a dash for none."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def size(count: float) -> str:
    """Such as "512 MiB", "1.2 GiB"."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def part(count: float, whole: float) -> str:
    """Such as "1.2 of 24.0 GiB", "6 MiB of 4.0 GiB"."""
    some, all_of_it = size(count), size(whole)
    (number, unit), (_, other) = some.split(), all_of_it.split()
    return f"{number if unit == other else some} of {all_of_it}"


def megabytes(per_second: float) -> str:
    """Bytes per second in MB/s."""
    return rate(per_second / 1e6)


def percent(share: float) -> str:
    """Such as "7 %"."""
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Such as "5 s", "12 min", "3 h 10 min", "2 d 4 h"."""
    whole = int(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours < 2:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 2 else f"{days} d {hours % 24} h"
