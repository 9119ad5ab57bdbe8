"""Who a worker is and how it is, in two lines."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from lumigrad.client.monitor import quantities
from lumigrad.client.monitor.report import NOT_SERVING, SERVING, UNREACHABLE, Report

# Codes that are seldom the caller's fault.
_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
_STYLES = {SERVING: "bold green", NOT_SERVING: "bold red", UNREACHABLE: "bold red"}


def headline(report: Report) -> list[Text]:
    """State, device, age and history; what is wrong, if something is; a line each."""
    identity, process = report.identity, report.process
    first = Text.assemble(
        (report.target, "bold"), "  ", state(report), f"  up {quantities.duration(identity.uptime_s)}",
        "  restarts ", (str(identity.restarts), "yellow" if identity.restarts else ""),
        f", last exit {identity.last_exit}" if identity.restarts else "",
        f"  v{identity.version}",
    )  # fmt: skip
    used = f"{quantities.size(process.resident_bytes)}, {process.processors:.1f} processors, {process.open_fds} fds"
    device = f"{identity.device}: {identity.device_name}, {identity.instruction_set}"
    second = Text(f"{device}  process {used}", "dim")
    lines = [first, second] if identity.version else [Text.assemble((report.target, "bold"), "  ", state(report))]
    return [*map(one_line, lines), *(Text(note, "yellow") for note in notes(report))]


def state(report: Report) -> Text:
    """In a word, coloured."""
    return Text(report.state, _STYLES[report.state])


def failure_style(failures_per_s: Mapping[str, float]) -> str:
    """For what fails: worse where it is the worker's fault, not the callers'."""
    return "dim" if not failures_per_s else "red" if _FAULTS & set(failures_per_s) else "yellow"


def notes(report: Report) -> list[str]:
    """What should not go unnoticed."""
    found = []
    if report.state == UNREACHABLE:
        found.append(f"for {quantities.duration(report.since_s)}: {report.why}")
    elif report.restarted_s is not None:
        found.append(
            f"restarted {quantities.duration(report.restarted_s)} ago; how the worker before ended: "
            f"{report.identity.last_exit}"
        )
    return found


def one_line(text: Text) -> Text:
    """Cut where the line ends."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
