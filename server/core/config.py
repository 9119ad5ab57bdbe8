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


class ConfigError(ValueError):
    """The configuration is invalid; retrying cannot help."""


def _option(default: Any, text: str, *, choices: tuple[str, ...] | None = None, kind: str | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices, "kind": kind})


# The groups of the help, by the first option of each.
_GROUPS = {
    "device": "service",
    "metrics_tls": "security",
    "log_format": "logs and traces",
    "queue_size": "queue",
    "max_payload_mib": "limits of a call",
    "device_memory_mib": "memory",
    "lame_duck_seconds": "end and replacement",
}


@dataclass(frozen=True)
class Config:
    """Every setting of `lumigrad serve`; the option of `queue_size` is `--queue-size`."""

    device: str = _option("auto", "auto, cpu, cuda:N, several with commas between, or all: a worker process for each")
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(50051, "port of the service, the next ones for further devices; 0 takes free ones")
    metrics_port: int = _option(9464, "port of the Prometheus metrics, likewise; 0 takes free ones")
    metrics_host: str = _option(
        "", "address of the metrics; none: --host if it is loopback, else 127.0.0.1", kind="HOST"
    )
    metrics_tls: bool = _option(False, "encrypt the metrics too, and ask their readers for what --tls-client-ca says")
    tls_cert: str = _option(
        "", "PEM file of the worker's certificate and its chain; with --tls-key, calls are encrypted", kind="FILE"
    )
    tls_key: str = _option("", "PEM file of the certificate's key, without a password", kind="FILE")
    tls_client_ca: str = _option(
        "", "PEM file of authorities; clients must show a certificate that one of them signed", kind="FILE"
    )
    tokens_file: str = _option("", 'file of lines "tenant: token"; clients must send one of the tokens', kind="FILE")
    insecure: bool = _option(False, "allow a public host without encryption or without authentication")
    reflection: bool = _option(False, "describe the services by gRPC's reflection, to callers who may call them")
    log_format: str = _option("plain", "form of the log on standard error", choices=("plain", "json"))
    trace_endpoint: str = _option("", "send traces to this OpenTelemetry collector, e.g. http://localhost:4317")
    queue_size: int = _option(64, "calls that may wait for the device")
    max_trainings: int = _option(32, "trainings open at once; one tenant may have half of them")
    batch_views: int = _option(16, "views, or queries of distances, of calls that wait together, computed as one")
    batch_wait_ms: float = _option(0.0, "time for which a call waits for others to be computed as one with")
    max_payload_mib: int = _option(1024, "payload of one request or reply")
    transit_mib: int = _option(8192, "payloads of all calls in progress, requests and replies, of all workers together")
    tenant_transit_mib: int = _option(
        0, "of --transit-mib, what one tenant may have; 0: a quarter (at least two payloads), or all without tenants"
    )
    lane_mib: int = _option(2048, "shared memory for the payloads of clients on this machine; 0: none")
    max_pixels: int = _option(1 << 26, "pixels of one call, all its cameras together")
    max_primitives: int = _option(1 << 24, "primitives of one scene")
    max_cameras: int = _option(256, "cameras of one call")
    max_rows: int = _option(1 << 24, "spheres of one query of distances")
    max_call_seconds: float = _option(600.0, "time after which a call is ended, whatever its own deadline")
    stall_seconds: float = _option(30.0, "time that a caller may take to send, or to receive, the next chunk of a call")
    device_memory_mib: int = _option(
        0,
        "of the device's memory, what calls and all that is stored may take together; 0: what is free at the start",
    )
    scene_mib: int = _option(4096, "bytes of stored scenes; the least recently used go first")
    context_mib: int = _option(4096, "bytes of retained forward states; the least recently used go first")
    training_mib: int = _option(8192, "bytes of trainings; those that nobody has come back to go first")
    tenant_scene_mib: int = _option(0, "of the stored scenes, bytes that one tenant may have; 0: all")
    tenant_context_mib: int = _option(0, "of the retained forward states, bytes that one tenant may have; 0: all")
    tenant_training_mib: int = _option(
        0, "of the trainings, bytes that one tenant may have; 0: half of them, or all without tenants"
    )
    max_scenes: int = _option(
        1 << 16, "stored scenes, in memory and in the spool each; one tenant may have half of them"
    )
    max_contexts: int = _option(1 << 16, "retained forward states; one tenant may have half of them")
    training_seconds: float = _option(600.0, "time after which a training that nobody came back to is dropped")
    context_seconds: float = _option(600.0, "time after which an unused forward state is dropped")
    spool: str = _option("", "folder in which stored scenes outlive the worker", kind="DIR")
    spool_mib: int = _option(16384, "bytes that each worker keeps in the spool; the least recently used go first")
    tenant_spool_mib: int = _option(
        0, "of those, bytes that one tenant may have; 0: half of them, or all without tenants"
    )
    lame_duck_seconds: float = _option(1.0, "time between saying NOT_SERVING and refusing calls, on SIGTERM")
    drain_seconds: float = _option(20.0, "time for the calls in progress to end, on SIGTERM")
    hang_seconds: float = _option(120.0, "time for one part of a call on the device, after which the worker is ended")
    max_crashes: int = _option(5, "crashes of a worker within --crash-seconds, after which it is not started again")
    crash_seconds: float = _option(60.0, "time for which the supervisor remembers a crash")
    no_supervisor: bool = _option(False, "run one worker in this process, and do not start it again when it dies")

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            name, value = option.name, getattr(self, option.name)
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
        self._check_security()

    def _check_trace_endpoint(self) -> None:
        if not self.trace_endpoint:
            return
        url = urlsplit(self.trace_endpoint)
        if "@" in url.netloc:
            # The log shows the configuration.
            raise ConfigError("--trace-endpoint: expected no password in it; OTEL_EXPORTER_OTLP_HEADERS may have one")
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
            text = "http://HOST:PORT or https://HOST:PORT"
            raise ConfigError(f"--trace-endpoint: expected {text}, got {self.trace_endpoint}")

    def _check_security(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            raise ConfigError(f"{missing}: expected a PEM file, as {given} is given")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError("--tls-client-ca: expected --tls-cert and --tls-key too, for certificates need TLS")
        if self.metrics_tls and not self.tls_cert:
            raise ConfigError("--metrics-tls: expected --tls-cert and --tls-key too, which it uses")
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
                f"authenticated: give {', and '.join(lacks)}; or say --insecure if the network is trusted"
            )

    def chosen(self) -> dict[str, Any]:
        """The settings that are not the default."""
        default = vars(Config())
        return {name: value for name, value in vars(self).items() if value != default[name]}

    def of_worker(self, index: int, count: int = 1) -> Config:
        """The configuration of one of `count` workers: its own spool folder, and its part of the host's memory."""
        # One tenant's share must leave room for another's call.
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
        """One tenant's share of `whole`: `given`, else half where there are tenants, else all."""
        return given or (min(whole, max(whole // 2, least, 1)) if self.has_tenants else whole)

    @property
    def transit_share_mib(self) -> int:
        """One tenant's share of the payloads of calls in progress, in MiB."""
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
                    type=type(option.default),
                    default=option.default,
                    choices=choices,
                    metavar=None if choices else unit,
                    help=text,
                )

    @staticmethod
    def from_arguments(arguments: argparse.Namespace) -> Config:
        """Read the options of `add_arguments`; ConfigError for invalid values."""
        return Config(**{option.name: getattr(arguments, option.name) for option in dataclasses.fields(Config)})


_PORTS = ("port", "metrics_port")
_TIMES = ("batch_wait_ms", "lame_duck_seconds", "drain_seconds")
# 0 stands for something else.
_SIZES = ("lane_mib", "device_memory_mib")


def _check(condition: bool, name: str, limit: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{_flag(name)}: expected {limit}, got {value}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# Modification time, size and inode; None: there is no such file.
FileVersion = tuple[int, int, int] | None


def file_version(path: str) -> FileVersion:
    """A value that changes whenever the file, or the target of a link, is written or replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
