"""From the metrics of an interval to what is told of a worker."""

from __future__ import annotations

import time
from typing import Any

from lumigrad.client.monitor.report import (
    NOT_SERVING,
    SERVING,
    Identity,
    Load,
    MethodLoad,
    Process,
    StageLoad,
    Store,
    TenantLoad,
)
from lumigrad.client.monitor.snapshot import Interval, Snapshot

_STAGES = ("decode", "restore", "queue", "upload", "download", "compress", "encode")
_OK = "OK"


def sections(interval: Interval) -> dict[str, Any]:
    """The parts of a report that the metrics tell."""
    return {
        "state": SERVING if interval.after.value("lumigrad_up") else NOT_SERVING,
        "interval_s": interval.seconds,
        "identity": _identity(interval.after),
        "process": _process(interval),
        "load": _load(interval),
        "stores": _stores(interval.after),
        "methods": _methods(interval),
        "stages": _stages(interval),
        "kernels": _kernels(interval),
        "tenants": _tenants(interval),
        "rejections_per_s": _by(interval, "lumigrad_rejections_total", "reason"),
        "evictions_per_s": _by(interval, "lumigrad_evictions_total", "store", "reason"),
        "puts_per_s": _by(interval, "lumigrad_scene_puts_total", "result"),
        "contexts_lost_per_s": interval.rate("lumigrad_context_lookups_total", result="lost"),
    }


def started(snapshot: Snapshot) -> float:
    """When this worker began to serve: tells one process from another."""
    return snapshot.value("lumigrad_start_time_seconds")


def _identity(now: Snapshot) -> Identity:
    labels = now.labels("lumigrad_worker_info")
    return Identity(
        version=labels.get("version", ""),
        device=labels.get("device", ""),
        device_name=labels.get("device_name", ""),
        instruction_set=labels.get("instruction_set", ""),
        uptime_s=max(0.0, time.time() - started(now)),
        restarts=int(now.value("lumigrad_worker_restarts_total")),
        last_exit=now.where_one("lumigrad_worker_last_exit", "reason"),
    )


def _process(interval: Interval) -> Process:
    now = interval.after
    return Process(
        resident_bytes=now.value("process_resident_memory_bytes"),
        processors=interval.rate("process_cpu_seconds_total"),
        open_fds=int(now.value("process_open_fds")),
        device_memory_bytes=now.value("lumigrad_device_memory_bytes"),
        device_memory_free_bytes=now.value("lumigrad_device_memory_free_bytes"),
    )


def _load(interval: Interval) -> Load:
    now = interval.after
    return Load(
        calls_per_s=interval.rate("lumigrad_calls_total"),
        failures_per_s=_failures(interval),
        p50_ms=_quantile_ms(interval, 0.5),
        p95_ms=_quantile_ms(interval, 0.95),
        in_progress=int(now.value("lumigrad_calls_in_progress")),
        calls_limit=int(now.value("lumigrad_calls_limit")),
        stages={stage: int(count) for (stage,), count in now.by("lumigrad_calls_in_stage", "stage").items()},
        queue_depth=int(now.value("lumigrad_queue_depth")),
        queue_limit=int(now.value("lumigrad_queue_limit")),
        device_busy=min(1.0, interval.rate("lumigrad_device_busy_seconds_total")),
        received_bytes_per_s=_volume(interval, "received"),
        sent_bytes_per_s=_volume(interval, "sent"),
    )


def _quantile_ms(interval: Interval, share: float, **labels: str) -> float:
    return 1e3 * interval.quantile(share, "lumigrad_call_seconds", **labels)


def _volume(interval: Interval, direction: str, **labels: str) -> float:
    return interval.rate("lumigrad_payload_bytes_total", direction=direction, **labels)


def _failures(interval: Interval, **labels: str) -> dict[str, float]:
    rates = interval.rates("lumigrad_calls_total", "code", **labels)
    return {code: rate for (code,), rate in rates.items() if code != _OK}


def _stores(now: Snapshot) -> list[Store]:
    counts = {
        "scene": "lumigrad_scenes",
        "context": "lumigrad_contexts",
        "training": "lumigrad_trainings",
        "transit": "lumigrad_calls_in_progress",
    }
    return [
        Store(
            name,
            int(now.value(count)),
            now.value(f"lumigrad_{name}_bytes"),
            now.value(f"lumigrad_{name}_limit_bytes"),
        )
        for name, count in counts.items()
    ]


def _methods(interval: Interval) -> list[MethodLoad]:
    return [
        MethodLoad(
            method=method,
            calls_per_s=rate,
            failures_per_s=_failures(interval, method=method),
            p50_ms=_quantile_ms(interval, 0.5, method=method),
            p95_ms=_quantile_ms(interval, 0.95, method=method),
            received_bytes_per_s=_volume(interval, "received", method=method),
            sent_bytes_per_s=_volume(interval, "sent", method=method),
        )
        for (method,), rate in interval.rates("lumigrad_calls_total", "method").items()
    ]


def _stages(interval: Interval) -> list[StageLoad]:
    seconds = interval.rates("lumigrad_stage_seconds_sum", "stage")
    counts = interval.rates("lumigrad_stage_seconds_count", "stage")
    names = sorted((name for (name,) in seconds if (name,) in counts), key=_place)
    return [StageLoad(stage, seconds[stage,], 1e3 * seconds[stage,] / counts[stage,]) for stage in names]


def _place(stage: str) -> int:
    """As calls pass through them; those that a newer worker has come last."""
    return _STAGES.index(stage) if stage in _STAGES else len(_STAGES)


def _kernels(interval: Interval) -> list[StageLoad]:
    labels = ("engine", "op", "stage")
    counts = interval.rates("lumigrad_kernel_seconds_count", *labels)
    seconds = interval.rates("lumigrad_kernel_seconds_sum", *labels)
    return [StageLoad(" ".join(key), rate, 1e3 * rate / counts[key]) for key, rate in seconds.items() if key in counts]


def _tenants(interval: Interval) -> list[TenantLoad]:
    volumes = interval.rates("lumigrad_tenant_payload_bytes_total", "tenant")
    rates = interval.rates("lumigrad_tenant_calls_total", "tenant")
    return [TenantLoad(key[0], rate, volumes.get(key, 0.0)) for key, rate in rates.items()]


def _by(interval: Interval, name: str, *labels: str) -> dict[str, float]:
    return {" ".join(key): rate for key, rate in interval.rates(name, *labels).items()}
