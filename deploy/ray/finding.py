"""Finds the workers of a fleet, for clients."""

from __future__ import annotations

from typing import Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayError

from lumigrad.client import Client
from lumigrad.client.errors import Unavailable
from lumigrad.ray.fleet import NAMESPACE

DEFAULT_NAME = "lumigrad"
_ANSWER_S = 10.0


def connect() -> None:
    """Joins the cluster that runs on this machine, or that RAY_ADDRESS names, unless this process belongs to one."""
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False)


def fleet_of(name: str) -> Any:
    """Returns the actor of a fleet.

    Raises:
        Unavailable: there is no fleet of this name.
    """
    connect()
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        raise Unavailable(f"no fleet {name!r} in this Ray cluster; start one with lumigrad.ray.start()") from None


def targets(name: str = DEFAULT_NAME) -> list[str]:
    """Returns the addresses of the workers that serve now. `Client(lumigrad.ray.targets)` follows their changes.

    Raises:
        Unavailable: the fleet does not answer, or no worker serves; clients keep the addresses that they have.
    """
    found = _answer(name, fleet_of(name).status).targets
    if not found:
        raise Unavailable(f"no worker of the fleet {name!r} serves; see lumigrad.ray.status()")
    return list(found)


def token(name: str = DEFAULT_NAME) -> str:
    """Returns the token that the workers of a fleet require from clients.

    Raises:
        Unavailable: the fleet does not answer, for example because Ray is restarting its actor.
    """
    return cast(str, _answer(name, fleet_of(name).token))


def client(name: str = DEFAULT_NAME, **options: Any) -> Client:
    """Returns a client of all workers of a fleet, which follows their changes; `options` are those of `Client`."""
    return Client(lambda: targets(name), token=token(name), **options)


def _answer(name: str, method: Any) -> Any:
    """Returns what a method of a fleet's actor returns; raises Unavailable if it does not answer in time."""
    try:
        return ray.get(method.remote(), timeout=_ANSWER_S)
    except (GetTimeoutError, RayError) as error:
        raise Unavailable(f"the fleet {name!r} does not answer ({type(error).__name__})") from error
