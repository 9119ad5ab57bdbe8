"""The worker's configuration: one frozen value, filled from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

MIB = 1 << 20
A_HOST = "expected a name or an address of this machine, such as 127.0.0.1 or ::1"


class ConfigError(ValueError):
    """The configuration is invalid; retrying cannot help."""


class PreferredPort(int):
    """A port that nobody asked for: if it is in use, a worker takes a free one."""


def _option(default: Any, text: str, *, choices: tuple[str, ...] | None = None, kind: str | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices, "kind": kind})


# Names of the groups in the help, by the first option of each.
_GROUPS = {
    "device": "service",
    "metrics_tls": "security",
    "sensorsim": "driving simulators",
    "log_level": "logs and traces",
    "queue_size": "queue",
    "max_payload_mib": "limits of a call",
    "device_memory_mib": "memory",
    "lame_duck_seconds": "shutdown and restart",
}


@dataclass(frozen=True)
class Config:
    """Every setting of `lumigrad serve`; the option of `queue_size` is `--queue-size`."""

    device: str = _option("auto", "auto, cpu, cuda:N, a comma-separated list, or all; one worker process per device")
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(50051, "gRPC port of the first worker, further workers use the next ports; 0: free ports")
    metrics_port: int = _option(
        PreferredPort(9464),
        "port of the Prometheus metrics, counted like --port; 0: free ports, as where the default one is in use",
    )
    metrics_host: str = _option(
        "", "address of the metrics; none: --host if it is a loopback address, otherwise 127.0.0.1", kind="HOST"
    )
    metrics_tls: bool = _option(False, "serve metrics over TLS, with client certificates if --tls-client-ca is set")
    tls_cert: str = _option(
        "", "PEM file of the worker's certificate chain; enables TLS together with --tls-key", kind="FILE"
    )
    tls_key: str = _option("", "PEM file of the certificate's private key, without a password", kind="FILE")
    tls_client_ca: str = _option(
        "", "PEM file of certificate authorities; clients must present a certificate signed by one of them", kind="FILE"
    )
    tokens_file: str = _option("", 'file with lines "tenant: token"; clients must send one of the tokens', kind="FILE")
    insecure: bool = _option(False, "allow a --host that is not loopback without TLS or without authentication")
    reflection: bool = _option(False, "enable gRPC server reflection for authenticated callers")
    scene_files: str = _option(
        "", "folder of files of Gaussians that callers may store by their file: addresses", kind="DIR"
    )
    scene_urls: str = _option(
        "",
        "https: addresses, separated by commas, below which callers may store files of Gaussians by their addresses",
        kind="URLS",
    )
    sensorsim: str = _option(
        "", "folder with a folder for each driving scene, to serve to AlpaSim, CARLA and other simulators", kind="DIR"
    )
    sensorsim_preload: bool = _option(False, "load the scenes of --sensorsim at the start, not when first used")
    log_level: str = _option(
        "auto",
        "calls: every call; info: events, and calls that failed or took more than a second; warning; error; auto: info "
        "if standard error is a terminal, else calls",
        choices=("auto", "calls", "info", "warning", "error"),
    )
    log_format: str = _option("plain", "format of the log on standard error", choices=("plain", "json"))
    trace_endpoint: str = _option("", "URL of an OpenTelemetry collector to send traces to, e.g. http://localhost:4317")
    queue_size: int = _option(64, "maximum number of calls that wait for the device")
    max_trainings: int = _option(32, "maximum number of open trainings; half of them per tenant")
    max_streams: int = _option(64, "maximum number of open streams of frames; half of them per tenant")
    batch_views: int = _option(16, "maximum number of views, or of distance queries, in a batch of waiting calls")
    max_payload_mib: int = _option(1024, "maximum payload of one request or reply")
    transit_mib: int = _option(8192, "maximum payload bytes of all calls in progress, over all workers")
    tenant_transit_mib: int = _option(
        0, "one tenant's share of --transit-mib; 0: a quarter (at least two payloads), or all without tenants"
    )
    lane_mib: int = _option(2048, "maximum shared memory for clients on the same machine; 0: disabled")
    max_pixels: int = _option(1 << 26, "maximum number of pixels of one call, over all its cameras")
    max_cameras: int = _option(256, "maximum number of cameras of one call")
    max_rows: int = _option(1 << 24, "maximum number of spheres of one distance query")
    max_call_seconds: float = _option(600.0, "maximum duration of a call, even if its deadline is later")
    max_device_seconds: float = _option(0.0, "maximum time of one call on the device; 0: --hang-seconds")
    stall_seconds: float = _option(30.0, "maximum time for a caller to send or receive the next chunk of a payload")
    device_memory_mib: int = _option(
        0,
        "device memory for calls and stored data together; 0: nine tenths of what is free at the start",
    )
    scene_mib: int = _option(4096, "memory for stored scenes; the least recently used are evicted")
    context_mib: int = _option(4096, "memory for retained forward states; the least recently used are evicted")
    training_mib: int = _option(
        8192, "memory for trainings; trainings without a client are evicted, the longest idle first"
    )
    tenant_scene_mib: int = _option(0, "one tenant's share of --scene-mib; 0: all")
    tenant_context_mib: int = _option(0, "one tenant's share of --context-mib; 0: all")
    tenant_training_mib: int = _option(0, "one tenant's share of --training-mib; 0: half, or all without tenants")
    max_scenes: int = _option(
        1 << 16, "maximum number of stored scenes, in memory and again in the spool; half of them per tenant"
    )
    max_contexts: int = _option(1 << 16, "maximum number of retained forward states; half of them per tenant")
    training_seconds: float = _option(600.0, "time after which a training without a client is dropped")
    context_seconds: float = _option(600.0, "time after which an unused forward state is dropped")
    spool: str = _option("", "folder for scenes and snapshots, which survive a restart of the worker", kind="DIR")
    spool_mib: int = _option(16384, "disk space of each worker in --spool; the least recently used files are evicted")
    tenant_spool_mib: int = _option(0, "one tenant's share of --spool-mib; 0: half, or all without tenants")
    lame_duck_seconds: float = _option(1.0, "on SIGTERM, time between reporting NOT_SERVING and refusing calls")
    drain_seconds: float = _option(20.0, "on SIGTERM, maximum time for calls in progress to end")
    hang_seconds: float = _option(120.0, "maximum time without progress on the device; the worker is then killed")
    max_crashes: int = _option(5, "number of crashes within --crash-seconds after which a worker is not restarted")
    crash_seconds: float = _option(60.0, "time window of --max-crashes")
    no_supervisor: bool = _option(False, "run one worker in this process, without restarting it after a crash")

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            name, value = option.name, getattr(self, option.name)
            if isinstance(value, float):
                _check(not value > _LONGEST_SECONDS, name, f"at most {_LONGEST_SECONDS:.0f} s", value)
            elif isinstance(value, int):
                _check(value <= _LARGEST, name, f"at most {_LARGEST}", value)
            if name in _PORTS:
                _check(0 <= value < 1 << 16, name, "0 to 65535", value)
            elif name in _TIMES:
                _check(value >= 0, name, "a time >= 0", value)
            elif name in _SIZES:
                _check(value >= 0, name, "a size >= 0", value)
            elif not isinstance(value, bool | str) and not name.startswith("tenant_"):
                _check(value > 0, name, "a value > 0", value)
        payload, share = self.max_payload_mib, self.tenant_transit_mib
        least = f"at least --max-payload-mib = {payload}, so that every scene that may be sent can be"
        twice = f"at least twice --max-payload-mib = {payload}"
        _check(self.scene_mib >= payload, "scene_mib", f"{least} stored", self.scene_mib)
        limit = f"{twice}, so that every call that is allowed can be served"
        _check(self.transit_mib >= 2 * payload, "transit_mib", limit, self.transit_mib)
        limit = f"0, or {twice} and at most --transit-mib = {self.transit_mib}"
        _check(not share or 2 * payload <= share <= self.transit_mib, "tenant_transit_mib", limit, share)
        self._check_trace_endpoint()
        _check(not self.spool or self.spool_mib >= payload, "spool_mib", f"{least} kept", self.spool_mib)
        for store in ("scene", "context", "training", "spool"):
            whole, share = getattr(self, f"{store}_mib"), getattr(self, f"tenant_{store}_mib")
            _check(0 <= share <= whole, f"tenant_{store}_mib", f"0 to {whole}", share)
            is_enough = store in ("context", "training") or not 0 < share < payload
            _check(is_enough, f"tenant_{store}_mib", f"{least} stored", share)
        if self.sensorsim_preload and (self.has_tenants or not self.sensorsim):
            cause = "no tenants, since each has scenes of its own" if self.sensorsim else "--sensorsim too"
            raise ConfigError(f"--sensorsim-preload: expected {cause}")
        self._check_security()

    def _check_trace_endpoint(self) -> None:
        if not self.trace_endpoint:
            return
        url = urlsplit(self.trace_endpoint)
        if "@" in url.netloc:
            # The log shows the configuration.
            raise ConfigError(
                "--trace-endpoint: expected a URL without a password; pass credentials in OTEL_EXPORTER_OTLP_HEADERS"
            )
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
            text = "http://HOST:PORT or https://HOST:PORT"
            raise ConfigError(f"--trace-endpoint: expected {text}, got {self.trace_endpoint}")

    def _check_security(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            raise ConfigError(f"{missing}: expected a PEM file, since {given} is set")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError(
                "--tls-client-ca: expected --tls-cert and --tls-key too, since client certificates need TLS"
            )
        if self.metrics_tls and not self.tls_cert:
            raise ConfigError("--metrics-tls: expected --tls-cert and --tls-key too, whose certificate it uses")
        self._check_host()
        if self.is_loopback or self.insecure:
            return
        lacks = []
        if not self.tls_cert:
            lacks.append("--tls-cert and --tls-key")
        if not self.has_tenants:
            lacks.append("--tokens-file or --tls-client-ca")
        if lacks:
            raise ConfigError(
                f"--host: {self.host} can be reached from other machines, so calls must be encrypted and "
                f"authenticated: set {', and '.join(lacks)}; or set --insecure if the network is trusted"
            )

    def _check_host(self) -> None:
        try:
            # Names have neither, unlike addresses of Unix sockets, URLs and HOST:PORT.
            if ":" in self.host or "/" in self.host:
                ipaddress.ip_address(self.host)
        except ValueError:
            raise ConfigError(f"--host: {A_HOST}, got {self.host!r}") from None

    def chosen(self) -> dict[str, Any]:
        """Return the settings that differ from the default."""
        default = vars(Config())
        return {name: value for name, value in vars(self).items() if value != default[name]}

    def of_worker(self, index: int, count: int = 1) -> Config:
        """Return the configuration of one of `count` workers, with its own spool folder and share of host memory."""
        # One tenant's share must leave room for a call of another tenant.
        least = (4 if self.has_tenants else 2) * self.max_payload_mib
        transit = max(self.transit_mib // count, min(least, self.transit_mib))
        return dataclasses.replace(
            self,
            spool=self.spool and os.path.join(self.spool, str(index)),
            transit_mib=transit,
            tenant_transit_mib=min(self.tenant_transit_mib, transit),
        )

    @property
    def has_tenants(self) -> bool:
        """Whether callers are authenticated as tenants."""
        return bool(self.tokens_file or self.tls_client_ca)

    def share_of(self, whole: int, given: int = 0, least: int = 0) -> int:
        """Return one tenant's share of `whole`: `given` if set, else half if there are tenants, else all."""
        return given or (min(whole, max(whole // 2, least, 1)) if self.has_tenants else whole)

    @property
    def transit_share_mib(self) -> int:
        """One tenant's share of the payload bytes of calls in progress, in MiB."""
        if not self.has_tenants:
            return self.transit_mib
        return self.tenant_transit_mib or min(self.transit_mib, max(self.transit_mib // 4, 2 * self.max_payload_mib))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the worker."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"

    @property
    def metrics_address(self) -> str:
        """The address on which the metrics listen."""
        return self.metrics_host or (self.host if self.is_loopback else "127.0.0.1")

    @property
    def url_host(self) -> str:
        """The host as a URL shows it: IPv6 addresses in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def max_payload_bytes(self) -> int:
        """The limit for the payload of one request or reply."""
        return self.max_payload_mib * MIB

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare one option per field."""
        group: argparse._ActionsContainer = parser
        for option in dataclasses.fields(Config):
            if option.name in _GROUPS:
                group = parser.add_argument_group(_GROUPS[option.name])
            text = f"{option.metadata['help']} (default: {'none' if option.default == '' else '%(default)s'})"
            if isinstance(option.default, bool):
                group.add_argument(_flag(option.name), action="store_true", help=text)
            else:
                choices = option.metadata["choices"]
                unit = option.metadata["kind"] or option.name.rpartition("_")[2].upper()
                group.add_argument(
                    _flag(option.name),
                    type=int if isinstance(option.default, int) else type(option.default),
                    default=option.default,
                    choices=choices,
                    metavar=None if choices else unit,
                    help=text,
                )

    @staticmethod
    def from_arguments(arguments: argparse.Namespace) -> Config:
        """Read the options of `add_arguments`; raises ConfigError for invalid values."""
        return Config(**{option.name: getattr(arguments, option.name) for option in dataclasses.fields(Config)})


_PORTS = ("port", "metrics_port")
# Longer waits overflow the system's clocks. This is 31 years.
_LONGEST_SECONDS = 1e9
# Numbers are counted in bytes with 64 bits.
_LARGEST = 1 << 40
_TIMES = ("max_device_seconds", "lame_duck_seconds", "drain_seconds")
# Sizes that may be 0, which means a default or "disabled".
_SIZES = ("lane_mib", "device_memory_mib")


def _check(condition: bool, name: str, limit: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{_flag(name)}: expected {limit}, got {value}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# Modification time, size and inode; None if the file does not exist.
FileVersion = tuple[int, int, int] | None


def file_version(path: str) -> FileVersion:
    """Return a value that changes whenever the file, or the target of a link, is written or replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
