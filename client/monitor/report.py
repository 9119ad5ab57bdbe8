"""What is to be told of a worker: in numbers with units, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field

SERVING, NOT_SERVING, UNREACHABLE = "SERVING", "NOT_SERVING", "UNREACHABLE"


@dataclass(frozen=True)
class Identity:
    """What a worker is, and what became of those before it."""

    version: str = ""
    device: str = ""
    device_name: str = ""
    instruction_set: str = ""
    uptime_s: float = 0.0
    restarts: int = 0
    last_exit: str = ""


@dataclass(frozen=True)
class Process:
    """What the worker's process takes of the machine; `processors` is how many it kept busy."""

    resident_bytes: float = 0.0
    processors: float = 0.0
    open_fds: int = 0
    device_memory_bytes: float = 0.0
    device_memory_free_bytes: float = 0.0


@dataclass(frozen=True)
class Load:
    """How busy it is.

    Attributes:
        calls_per_s: that ended.
        failures_per_s: of these, by code.
        p50_ms: of all calls; NaN without any.
        p95_ms: likewise.
        in_progress: calls now.
        calls_limit: that may be.
        stages: calls now, by where they are.
        queue_depth: calls that wait for the device.
        queue_limit: that may.
        device_busy: share of the time in which the device's thread worked.
        received_bytes_per_s: payload.
        sent_bytes_per_s: payload.
    """

    calls_per_s: float = 0.0
    failures_per_s: dict[str, float] = field(default_factory=dict)
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    in_progress: int = 0
    calls_limit: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    queue_depth: int = 0
    queue_limit: int = 0
    device_busy: float = 0.0
    received_bytes_per_s: float = 0.0
    sent_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Store:
    """Something that is kept within a limit."""

    name: str
    count: int
    bytes: float
    limit_bytes: float


@dataclass(frozen=True)
class MethodLoad:
    """The calls of one method; times are NaN where none ended."""

    method: str
    calls_per_s: float
    failures_per_s: dict[str, float]
    p50_ms: float
    p95_ms: float
    received_bytes_per_s: float
    sent_bytes_per_s: float


@dataclass(frozen=True)
class StageLoad:
    """Where calls spent their time.

    Attributes:
        name: "queue", or of kernels such as "spheres forward blend".
        share: seconds per second: of what happens on the device at most 1, of calls that wait as many as wait.
        mean_ms: of a call that was there.
    """

    name: str
    share: float
    mean_ms: float


@dataclass(frozen=True)
class TenantLoad:
    """The calls of one tenant."""

    tenant: str
    calls_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Report:
    """One worker over one interval.

    Attributes:
        target: as it was named.
        state: one of SERVING, NOT_SERVING, UNREACHABLE.
        why: it cannot be reached.
        since_s: how long this state has lasted, as far as was seen.
        restarted_s: how long ago another worker took its place, if that was seen.
        interval_s: what rates are over.
        identity: what it is.
        process: what it takes.
        load: how busy it is.
        stores: what it keeps.
        methods: its calls, the most frequent first.
        stages: of calls outside kernels, in the order in which calls pass through.
        kernels: the largest share first.
        tenants: the most frequent first.
        rejections_per_s: by reason.
        evictions_per_s: by store and reason.
        puts_per_s: by whether the content was there.
        contexts_lost_per_s: forward states that were asked for in vain.
    """

    target: str
    state: str
    why: str = ""
    since_s: float = 0.0
    restarted_s: float | None = None
    interval_s: float = 0.0
    identity: Identity = field(default_factory=Identity)
    process: Process = field(default_factory=Process)
    load: Load = field(default_factory=Load)
    stores: list[Store] = field(default_factory=list)
    methods: list[MethodLoad] = field(default_factory=list)
    stages: list[StageLoad] = field(default_factory=list)
    kernels: list[StageLoad] = field(default_factory=list)
    tenants: list[TenantLoad] = field(default_factory=list)
    rejections_per_s: dict[str, float] = field(default_factory=dict)
    evictions_per_s: dict[str, float] = field(default_factory=dict)
    puts_per_s: dict[str, float] = field(default_factory=dict)
    contexts_lost_per_s: float = 0.0
