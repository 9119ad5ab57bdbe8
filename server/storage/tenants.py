"""Creates the stores of each tenant, within its share of the worker's limits; no data is shared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call
from lumigrad.server.core.config import MIB, Config
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.capacity import store_limits
from lumigrad.server.device.memory import Budget
from lumigrad.server.engines.runner import Machine, Retained
from lumigrad.server.storage.contexts import ContextStore
from lumigrad.server.storage.named import NamedScenes
from lumigrad.server.storage.page_pool import PagePool
from lumigrad.server.storage.reads import DiskReads
from lumigrad.server.storage.scene_files import SceneSpool
from lumigrad.server.storage.scenes import SceneStore
from lumigrad.server.storage.spool import TenantSpool
from lumigrad.server.storage.spool_writer import SpoolWriter
from lumigrad.server.storage.trainings import TrainingStore

# Retry time for trainings, which take long.
_TRAINING_RETRY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Runtime(Machine):
    """The parts of a worker that serve one tenant: the device, its queue, and the tenant's stores."""

    scenes: SceneStore
    contexts: ContextStore[Retained]
    # None if scenes are kept only in memory.
    spool: SceneSpool | None
    trainings: TrainingStore[Any]
    # The name of the tenant; "" without tenants.
    tenant: str
    # Holds snapshots of trainings; None without a spool.
    tenant_spool: TenantSpool | None
    # The scenes that the worker reads from files.
    named: NamedScenes
    reads: DiskReads
    # Reads that wait for other machines.
    downloads: DiskReads
    # The pages of scenes with levels that are in memory.
    pages: PagePool
    # Held from the start of building a scene outside the device's thread until the device has taken the scene over.
    building: threading.Lock = field(default_factory=threading.Lock)


class Tenants:
    """Creates each tenant's own stores, so that no name or hash of one tenant resolves for another."""

    def __init__(
        self,
        machine: Machine,
        config: Config,
        metrics: Metrics,
        spool: SpoolWriter | None = None,
        named: NamedScenes | None = None,
    ) -> None:
        """Begin without stores.

        `spool`, if given, keeps scenes and snapshots beyond the process; `named` are scenes in files.
        """
        self.machine = machine
        self._named = named or NamedScenes()
        self._spool = spool
        self._config = config
        self._metrics = metrics
        limits = self._limits = store_limits(config, machine.memory.capacity_bytes)
        self._scenes = Budget(limits.scene_bytes, config.max_scenes)
        # Scenes and trainings take at most half of the memory, forward states a quarter; the rest is for calls.
        kept = min(config.context_mib * MIB, machine.memory.capacity_bytes // 4)
        self._contexts = Budget(config.context_mib * MIB, config.max_contexts, kept)
        self._trainings = Account(
            "bytes of trainings",
            limits.training_bytes,
            f"--training-mib{limits.cause}",
            share=limits.tenant_training_bytes,
            share_option=f"--tenant-training-mib{limits.cause}",
            retry_seconds=_TRAINING_RETRY_SECONDS,
        )
        machine.memory.share_with(self._contexts, self._scenes, self._trainings)
        self._lock = threading.Lock()
        self._runtimes: dict[str, Runtime] = {}

    def of(self, call: Call) -> Runtime:
        """Return the caller's runtime, created on first use."""
        return self.of_tenant(call.tenant)

    def of_tenant(self, tenant: str) -> Runtime:
        """Return the runtime of a tenant, created on first use; `tenant` is "" without tenants."""
        with self._lock:
            runtime = self._runtimes.get(tenant)
            if runtime is None:
                runtime = self._runtimes[tenant] = self._make(tenant)
            return runtime

    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """Return functions for the counts and sizes of stored objects, by their names in the metrics."""
        return {
            "scenes": lambda: sum(len(runtime.scenes) for runtime in self.all()),
            "scene_bytes": lambda: self._scenes.bytes,
            "contexts": lambda: sum(len(runtime.contexts) for runtime in self.all()),
            "context_bytes": lambda: self._contexts.bytes,
            "trainings": lambda: sum(len(runtime.trainings) for runtime in self.all()),
            "training_bytes": lambda: self._trainings.taken,
        }

    @property
    def accounts(self) -> Mapping[str, Account]:
        """The accounts of stored resources, by their names in the metrics."""
        return {"training": self._trainings}

    @property
    def target_image_bytes(self) -> int:
        """The most bytes that the target images of one training may take, since all must be present when it begins."""
        limits = self._limits
        stored = limits.tenant_scene_bytes if self._spool is None else limits.tenant_training_bytes
        return min(stored, limits.tenant_training_bytes)

    def expire(self) -> None:
        """Remove forward states and trainings that were idle for too long."""
        for runtime in self.all():
            runtime.contexts.expire()
            runtime.trainings.expire()

    def clear(self) -> None:
        """Remove everything from memory."""
        for runtime in self.all():
            runtime.contexts.clear()
            runtime.trainings.clear()
            runtime.scenes.clear()
            runtime.pages.clear()

    def all(self) -> tuple[Runtime, ...]:
        """Return the runtimes of all tenants that have made calls."""
        with self._lock:
            return tuple(self._runtimes.values())

    def _make(self, tenant: str) -> Runtime:
        config, machine = self._config, self.machine
        writer = self._spool
        tenant_spool = None if writer is None else writer.spool.of_tenant(tenant)
        spool = None if writer is None or tenant_spool is None else SceneSpool(tenant_spool, writer, machine.transfer)
        context_bytes = (config.tenant_context_mib or config.context_mib) * MIB
        scenes = SceneStore(
            self._limits.tenant_scene_bytes,
            self._scenes,
            self._metrics,
            spool,
            config.share_of(config.max_scenes),
            f"{'--tenant-scene-mib' if config.tenant_scene_mib else '--scene-mib'}{self._limits.cause}",
        )
        # Pages can be read again; scenes without a spool cannot.
        scenes.spare = pages = PagePool(self._limits.tenant_scene_bytes, self._scenes, self._metrics)
        return Runtime(
            **vars(machine),
            scenes=scenes,
            contexts=ContextStore(
                context_bytes,
                config.context_seconds,
                self._contexts,
                self._metrics,
                config.share_of(config.max_contexts),
            ),
            spool=spool,
            tenant=tenant,
            trainings=TrainingStore[Any](self._trainings, tenant, config.training_seconds, machine.memory),
            tenant_spool=tenant_spool,
            named=self._named.unread(),
            reads=DiskReads(machine.payload_memory, tenant),
            downloads=DiskReads(machine.payload_memory, tenant),
            pages=pages,
        )
