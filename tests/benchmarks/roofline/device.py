"""Peak rates of two GPUs, and the least time that some work takes on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """Peak rates per second; instructions are those of whole warps."""

    name: str
    bytes: float
    instructions: float
    host_bytes: float  # Over PCI Express, one way.


# Instructions: processors x schedulers x the clock under the kernels' load, measured on an H100 and on an H200.
DEVICES = (Device("H200", 4.8e12, 132 * 4 * 1.98e9, 55e9), Device("L4", 0.30e12, 58 * 4 * 2.04e9, 25e9))


@dataclass(frozen=True)
class Need:
    """The bytes that a stage must move at least, and the instructions that it must issue."""

    bytes: float
    instructions: float = 0.0

    def seconds(self, device: Device) -> float:
        """The time of the scarcer resource of a device."""
        return max(self.bytes / device.bytes, self.instructions / device.instructions)


def print_needs(title: str, needs: dict[str, Need]) -> None:
    """Print a table of stages, and the least milliseconds of each on every device."""
    print(f"\n{title}\n\n| stage | memory, MB | instructions of warps, millions | " + _names() + " |")
    print("|---|---|---|" + "---|" * len(DEVICES))
    for stage, need in needs.items():
        times = " | ".join(f"{1e3 * need.seconds(device):.2f}" for device in DEVICES)
        issued = f"{need.instructions / 1e6:.0f}" if need.instructions else "-"
        print(f"| {stage} | {need.bytes / 1e6:.0f} | {issued} | {times} |")


def seconds(needs: dict[str, Need], stages: tuple[str, ...], device: Device) -> float:
    """The least time of stages that run one after another."""
    return sum(needs[stage].seconds(device) for stage in stages)


def _names() -> str:
    return " | ".join(f"{device.name}, ms" for device in DEVICES)
