"""What the metrics show of a worker's present state, read when somebody asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

from lumigrad.kernels.device import describe
from lumigrad.server.call_threads import CallThreads
from lumigrad.server.capacity import store_limits
from lumigrad.server.config import MIB, Config
from lumigrad.server.lanes import Lanes
from lumigrad.server.machine import Machine
from lumigrad.server.metrics import Metrics
from lumigrad.server.spool_writer import SpoolWriter
from lumigrad.server.surface import Surface
from lumigrad.server.tenants import Tenants


def show_state(
    metrics: Metrics,
    machine: Machine,
    tenants: Tenants,
    lanes: Lanes,
    surface: Surface,
    spool: SpoolWriter | None,
    threads: CallThreads,
    is_serving: Callable[[], bool],
) -> None:
    """Let the gauges show what the parts of a worker say."""
    executor, device = machine.executor, machine.transfer.device
    metrics.accounts({"transit": machine.transit.account, "open_trainings": surface.trainings, **tenants.accounts})
    for name, read in {
        "up": is_serving,
        "queue_depth": lambda: executor.depth,
        "calls_in_progress": lambda: surface.in_progress,
        "call_threads_busy": lambda: threads.busy,
        "transit_bytes": lambda: machine.transit.bytes,
        "lanes": lambda: len(lanes),
        "lane_bytes": lambda: lanes.memory_bytes,
        "scenes": lambda: tenants.scenes,
        "scene_bytes": lambda: tenants.scene_bytes,
        "contexts": lambda: tenants.contexts,
        "context_bytes": lambda: tenants.context_bytes,
        "trainings": lambda: tenants.trainings,
        "training_bytes": lambda: tenants.training_bytes,
        "predicted_bytes": lambda: executor.predicted_bytes,
        "device_memory_bytes": lambda: describe(device).memory_bytes,
        "device_memory_free_bytes": lambda: describe(device).memory_free_bytes,
    }.items():
        metrics.observe(name, read)
    if spool is not None:
        writer, files = spool, spool.spool
        metrics.observe("spool_files", lambda: len(files))
        metrics.observe("spool_bytes", lambda: files.bytes)
        metrics.observe("spool_waiting", lambda: writer.depth)
    text = "Time that the device's thread worked."
    metrics.observe_total("device_busy_seconds", text, lambda: executor.busy_seconds)
    metrics.observe_stages(lambda: surface.stages(executor.depth))


def show_setup(metrics: Metrics, config: Config, machine: Machine, max_calls: int, threads: CallThreads) -> None:
    """Show what a worker is, and how much it may hold."""
    described = describe(machine.transfer.device)
    limits = store_limits(config, machine.memory.capacity_bytes)
    metrics.describe(
        version=version("lumigrad"),
        device=described.name,
        device_name=described.device_name,
        instruction_set=described.instruction_set,
    )
    for name, value in {
        "start_time_seconds": time.time(),
        "queue_limit": config.queue_size,
        "calls_limit": max_calls,
        "call_threads": threads.count,
        "transit_limit_bytes": config.transit_mib * MIB,
        "lane_limit_bytes": config.lane_mib * MIB,
        "scene_limit_bytes": limits.scene_bytes,
        "context_limit_bytes": config.context_mib * MIB,
        "training_limit_bytes": limits.training_bytes,
        "device_memory_limit_bytes": machine.memory.capacity_bytes,
        "spool_limit_bytes": config.spool_mib * MIB if config.spool else 0,
    }.items():
        metrics.set(name, value)
