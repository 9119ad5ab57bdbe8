"""Starts, inspects and stops fleets in the Ray cluster that this process belongs to."""

from __future__ import annotations

import secrets
import time
from typing import Any, cast

import ray

from lumigrad.ray.finding import DEFAULT_NAME, connect, fleet_of
from lumigrad.ray.fleet import NAMESPACE, Fleet, Status
from lumigrad.ray.options import Options

_TOKEN_BYTES = 32
_LOOK_S = 0.2


def start(
    options: Options | None = None,
    *,
    name: str = DEFAULT_NAME,
    token: str | None = None,
    timeout_s: float = 300.0,
) -> Status:
    """Starts a fleet of workers, which outlives this process, and waits until `options.minimum` of them serve.

    A fleet that already runs with the same options is left as it is.

    Args:
        options: the number of workers and their resources; None: one worker on a CPU.
        name: distinguishes the fleets of one cluster.
        token: the token that clients need; None: a new one. `lumigrad.ray.token` returns it within the cluster.
        timeout_s: how long to wait, seconds. The fleet keeps running after that.

    Raises:
        ValueError: a fleet of this name runs with other options.
        TimeoutError: the cluster has no room for so many workers, or they do not start; Ray's logs show the reason.
    """
    connect()
    options = options or Options()
    # Ray restarts the actor if it dies; its callers wait meanwhile.
    placed = ray.remote(Fleet).options(
        name=name, namespace=NAMESPACE, get_if_exists=True, lifetime="detached", num_cpus=0, max_restarts=-1,
        max_task_retries=-1, max_concurrency=16,
    )  # fmt: skip
    fleet: Any = placed.remote(name, options, token or secrets.token_hex(_TOKEN_BYTES))
    running = ray.get(fleet.options.remote())
    if running != options:
        raise ValueError(f"options: a fleet {name!r} runs with {running}; stop it first, or name another")
    until = time.monotonic() + timeout_s
    while len((now := status(name)).targets) < options.minimum:
        if time.monotonic() > until:
            text = f"of {options.minimum} workers {len(now.targets)} serve after {timeout_s:g} s"
            raise TimeoutError(f"{text}; see `ray status` for room in the cluster, and the logs of their actors")
        time.sleep(_LOOK_S)
    return now


def status(name: str = DEFAULT_NAME) -> Status:
    """Returns the current state of a fleet."""
    return cast(Status, ray.get(fleet_of(name).status.remote()))


def stop(name: str = DEFAULT_NAME) -> None:
    """Lets the workers of a fleet finish their calls, and ends the fleet."""
    fleet = fleet_of(name)
    ray.get(fleet.stop.remote())
    ray.kill(fleet)
