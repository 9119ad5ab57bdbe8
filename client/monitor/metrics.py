"""Polls the metrics of a worker, and reports the changes between two polls."""

from __future__ import annotations

import math
import ssl
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from lumigrad.client.errors import InvalidArgument, LumigradError, Unavailable

UNREACHABLE = "UNREACHABLE"
# Report as `--json` prints it; docs/command_line.md has its keys.
Report = dict[str, Any]
_LOAD = ("calls_in_progress", "calls_limit", "queue_depth", "queue_limit")
_STORES = {"scene": "scenes", "context": "contexts", "training": "trainings", "transit": "calls_in_progress"}
_TIMEOUT_S, _MOST_BYTES = 3.0, 16 << 20
_RESTART_SHOWN_S = 60.0


class Page:
    """Samples by name and labels: their values at one moment, or their increase per second."""

    def __init__(self, text: str = "") -> None:
        """Reads Prometheus' text format, or raises ValueError."""
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
            # Labels must not send control characters to the terminal.
            shown = {name: "".join(c if c.isprintable() else "?" for c in it) for name, it in sample.labels.items()}
            self._samples[sample.name, frozenset(shown.items())] = sample.value

    def rates(self, before: Page, seconds: float) -> Page:
        """The increase per second of all counters."""
        rates = Page()
        rates._samples = {
            key: (value - before._samples.get(key, 0.0)) / seconds for key, value in self._samples.items()
        }
        return rates

    def sums(self, name: str, *labels: str, **wanted: str) -> dict[str, float]:
        """Returns sums of the samples with the labels `wanted`, by the values of the labels `labels`."""
        sums: dict[str, float] = defaultdict(float)
        for (sample, key), value in self._samples.items():
            if sample == name and wanted.items() <= key:
                sums[" ".join(dict(key).get(label, "") for label in labels)] += value
        return sums

    def by(self, name: str, *labels: str, **wanted: str) -> dict[str, float]:
        """The sums above 0, the largest first."""
        sums = self.sums(name, *labels, **wanted)
        return dict(sorted(((key, value) for key, value in sums.items() if value > 0), key=lambda it: -it[1]))

    def value(self, name: str, **wanted: str) -> float:
        """The sum of the samples; 0 if there are none."""
        return self.by(name, **wanted).get("", 0.0)

    def labels(self, name: str) -> dict[str, str]:
        """The labels of the sample whose value is 1; none if there is no such sample."""
        return next((dict(key) for (sample, key), value in self._samples.items() if sample == name and value == 1), {})

    def quantile(self, share: float, name: str, **wanted: str) -> float:
        """A quantile of a histogram, interpolated in its bucket; NaN without observations."""
        counts = sorted((float(limit), count) for limit, count in self.sums(f"{name}_bucket", "le", **wanted).items())
        rank, lower, below = share * counts[-1][1] if counts else 0.0, 0.0, 0.0
        for limit, count in counts if rank > 0 else ():
            if math.isinf(limit):
                return lower
            if count >= rank:
                return lower + (limit - lower) * (rank - below) / (count - below)
            lower, below = limit, count
        return math.nan


def report(now: Page, rates: Page) -> Report:
    """The report of all metrics."""
    value, started = now.value, now.value("lumigrad_start_time_seconds")
    device = {name: value(f"lumigrad_{name}") for name in ("device_memory_bytes", "device_memory_free_bytes")}
    rss, cpu = value("process_resident_memory_bytes"), rates.value("process_cpu_seconds_total")
    return {
        "state": "SERVING" if value("lumigrad_up") else "NOT_SERVING",
        "identity": now.labels("lumigrad_worker_info")
        | {"uptime_s": max(0.0, time.time() - started), "restarts": int(value("lumigrad_worker_restarts_total"))}
        | {"last_exit": now.labels("lumigrad_worker_last_exit").get("reason", "")},
        "process": {"resident_bytes": rss, "processors": cpu, "open_fds": int(value("process_open_fds")), **device},
        "load": _calls(rates)
        | {name: int(value(f"lumigrad_{name}")) for name in _LOAD}
        | {"stages": {name: int(count) for name, count in now.sums("lumigrad_calls_in_stage", "stage").items()}}
        | {"device_busy": min(1.0, rates.value("lumigrad_device_busy_seconds_total"))},
        "stores": [
            {"name": name, "count": int(value(f"lumigrad_{counted}")), "bytes": value(f"lumigrad_{name}_bytes")}
            | {"limit_bytes": value(f"lumigrad_{name}_limit_bytes")}
            for name, counted in _STORES.items()
        ],
        "methods": [{"method": it, **_calls(rates, method=it)} for it in rates.by("lumigrad_calls_total", "method")],
        "stages": _times(rates, "lumigrad_stage_seconds", "stage"),
        "kernels": _times(rates, "lumigrad_kernel_seconds", "engine", "op", "stage"),
        "tenant_calls_per_s": rates.by("lumigrad_tenant_calls_total", "tenant"),
        "rejections_per_s": rates.by("lumigrad_rejections_total", "reason"),
        "evictions_per_s": rates.by("lumigrad_evictions_total", "store", "reason"),
        "puts_per_s": rates.by("lumigrad_scene_puts_total", "result"),
        "contexts_lost_per_s": rates.value("lumigrad_context_lookups_total", result="lost"),
    }


def _calls(rates: Page, **wanted: str) -> Report:
    codes, volume = rates.by("lumigrad_calls_total", "code", **wanted), "lumigrad_payload_bytes_total"
    return {
        "calls_per_s": sum(codes.values()),
        "failures_per_s": {code: rate for code, rate in codes.items() if code != "OK"},
        **{f"p{n}_ms": 1e3 * rates.quantile(n / 100, "lumigrad_call_seconds", **wanted) for n in (50, 95)},
        **{f"{way}_bytes_per_s": rates.value(volume, direction=way, **wanted) for way in ("received", "sent")},
    }


def _times(rates: Page, name: str, *labels: str) -> list[Report]:
    """Seconds per second, and milliseconds of one observation; the largest share first."""
    counts, sums = (rates.by(f"{name}_{what}", *labels) for what in ("count", "sum"))
    found = {key: share for key, share in sums.items() if key in counts}
    return [{"name": key, "share": share, "mean_ms": 1e3 * share / counts[key]} for key, share in found.items()]


class Watch:
    """Compares each poll of a worker with the previous one; `error` is the reason why the latest failed."""

    def __init__(self, target: str, ask: Callable[[], str | None], tls: ssl.SSLContext) -> None:
        """Does not connect yet. `target` is the URL of metrics, or a worker whose URL `ask` returns."""
        parts = urlsplit(target if "://" in target else "http://worker")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            expected = "expected HOST:PORT, or http(s)://HOST:PORT/metrics"
            raise InvalidArgument.of("target", f"{expected}, got {target!r}")
        url = parts._replace(path=parts.path.rstrip("/") or "/metrics").geturl()
        self._target, self._ask = target, (lambda: url) if "://" in target else ask
        # No proxy is used, because metrics are on internal networks.
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        self._open = urllib.request.build_opener(*handlers).open
        self._last, self._read_at, self._restarted = Page(), 0.0, -float("inf")
        self._since, self._report = time.monotonic(), report(self._last, self._last) | {"state": UNREACHABLE}
        self._url: str | None = None
        self.error: LumigradError | None = None

    def look(self) -> Report:
        """Polls; reports the changes since the last poll, or since the worker's start if there was none since then."""
        try:
            found, self.error = self._compared(self._read()), None
        except LumigradError as error:
            # The next worker at this target may use another port for its metrics.
            self._url, self.error = None, error
            found = {"interval_s": 0.0, **self._report, "state": UNREACHABLE}
        now = time.monotonic()
        self._since = self._since if found["state"] == self._report["state"] else now
        restarted = now - self._restarted if now - self._restarted < _RESTART_SHOWN_S else None
        history = {"why": str(self.error or ""), "since_s": now - self._since, "restarted_s": restarted}
        self._report = {"target": self._target, **found, **history}
        return self._report

    def _read(self) -> Page:
        self._url = url = self._url or self._ask()
        if not url:
            advice = "name their URL, such as http://HOST:9464/metrics"
            raise Unavailable(f"{self._target} does not report the address of its metrics; {advice}")
        try:
            with self._open(url, timeout=_TIMEOUT_S) as reply:
                page = Page(reply.read(_MOST_BYTES).decode("utf-8", "replace"))
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(error, HTTPException):
                reason = "the server there does not speak HTTP"
            elif not isinstance(error, OSError):
                reason = "no page of metrics"
            raise Unavailable(f"no metrics at {url}: {getattr(reason, 'strerror', None) or reason}") from error
        if not page.value("lumigrad_start_time_seconds"):
            raise Unavailable(f"expected the metrics of a worker at {url}, got something else")
        return page

    def _compared(self, page: Page) -> Report:
        """Compares a page with the last one; for a new process with zeros at its start."""
        began, last = (each.value("lumigrad_start_time_seconds") for each in (page, self._last))
        before, now = self._last, time.monotonic()
        if began != last:
            self._restarted = now if last else self._restarted
            before, self._read_at = Page(), now - (time.time() - began)
        seconds = max(now - self._read_at, 1e-9)
        self._last, self._read_at = page, now
        return {**report(page, page.rates(before, seconds)), "interval_s": seconds}
