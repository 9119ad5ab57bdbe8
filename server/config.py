"""The worker's configuration: one frozen value, filled from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
# The exit code of a configuration that cannot work: no use to start the worker again.
CONFIG_ERROR = 2


class ConfigError(ValueError):
    """The worker cannot run as it was told to; trying again will not help."""


def _option(default: Any, text: str, *, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class Config:
    """Every setting of `lumigrad serve`; the option of `queue_size` is `--queue-size`."""

    device: str = _option("auto", "auto, cpu, cuda or cuda:N; auto takes the first CUDA device, else the CPU")
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(50051, "port of the service; 0 takes a free one")
    metrics_port: int = _option(9464, "port of the Prometheus metrics; 0 takes a free one")
    insecure: bool = _option(False, "allow a public host although calls are neither encrypted nor authenticated")
    log_format: str = _option("plain", "form of the log on standard error", choices=("plain", "json"))
    queue_size: int = _option(64, "calls that may wait for the device")
    max_payload_mib: int = _option(1024, "payload of one request or reply")
    transit_mib: int = _option(8192, "payloads of all calls in progress together, requests and replies")
    max_pixels: int = _option(1 << 26, "pixels of one call, all its cameras together")
    max_primitives: int = _option(1 << 24, "primitives of one scene")
    max_cameras: int = _option(256, "cameras of one call")
    max_channels: int = _option(512, "channels of one scene's colours")
    max_call_seconds: float = _option(600.0, "time after which a call is ended, whatever its own deadline")
    scene_mib: int = _option(4096, "bytes of stored scenes; the least recently used go first")
    context_mib: int = _option(4096, "bytes of retained forward states; the least recently used go first")
    context_seconds: float = _option(600.0, "time after which an unused forward state is dropped")
    lame_duck_seconds: float = _option(1.0, "time between saying NOT_SERVING and refusing calls, on SIGTERM")
    drain_seconds: float = _option(20.0, "time for the calls in progress to end, on SIGTERM")

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port"):
            if not 0 <= getattr(self, name) < 1 << 16:
                raise ConfigError(f"{_flag(name)}: expected 0 to 65535, got {getattr(self, name)}")
        for name in ("lame_duck_seconds", "drain_seconds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{_flag(name)}: expected a time >= 0, got {getattr(self, name)}")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{_flag(name)}: expected a value > 0, got {getattr(self, name)}")
        if self.scene_mib < self.max_payload_mib:
            raise ConfigError(
                f"--scene-mib: expected at least --max-payload-mib = {self.max_payload_mib}, so that every scene "
                f"that may be sent can be stored, got {self.scene_mib}"
            )
        if self.transit_mib < 2 * self.max_payload_mib:
            raise ConfigError(
                f"--transit-mib: expected at least twice --max-payload-mib = {self.max_payload_mib}, so that every "
                f"call that is allowed can be served, got {self.transit_mib}"
            )
        if not self.is_loopback and not self.insecure:
            raise ConfigError(
                f"--host: {self.host} can be reached from other machines, and calls are neither encrypted nor "
                "authenticated; say --insecure if the network is trusted"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the worker."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url_host(self) -> str:
        """The host as it stands before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def max_payload_bytes(self) -> int:
        """The limit for the payload of one request or reply."""
        return self.max_payload_mib * MIB

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare one option per field."""
        for option in dataclasses.fields(Config):
            text = f"{option.metadata['help']} (default: %(default)s)"
            if isinstance(option.default, bool):
                parser.add_argument(_flag(option.name), action="store_true", help=text)
            else:
                choices = option.metadata["choices"]
                kind = type(option.default)
                metavar = None if choices else option.name.rpartition("_")[2].upper()
                parser.add_argument(
                    _flag(option.name), type=kind, default=option.default, choices=choices, metavar=metavar, help=text
                )

    @staticmethod
    def from_arguments(arguments: argparse.Namespace) -> Config:
        """Read what `add_arguments` declared; values that make no sense are a ConfigError."""
        return Config(**{option.name: getattr(arguments, option.name) for option in dataclasses.fields(Config)})


_POSITIVE = (
    "queue_size",
    "max_payload_mib",
    "transit_mib",
    "max_pixels",
    "max_primitives",
    "max_cameras",
    "max_channels",
    "max_call_seconds",
    "scene_mib",
    "context_mib",
    "context_seconds",
)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
