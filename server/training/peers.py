"""Workers that train one model together: each renders its share of the views, and they meet to add up gradients.

The meetings are torch.distributed's: gloo between CPUs, NCCL between GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from lumigrad.server.errors import PeerLostError
from lumigrad.server.limits import require
from lumigrad.v1 import training_pb2

# Its type stubs know less than it has: groups that are nobody else's, so that trainings do not meet each other.
dist: Any = torch.distributed
_MOST_PEERS = 4096
_LEAST_SECONDS, _MOST_SECONDS, _USUAL_SECONDS = 0.1, 600.0, 30.0


class Peers:
    """This worker's place in a group. Only the device's thread may meet the others."""

    def __init__(self, message: training_pb2.Peers, device: torch.device, is_allowed: bool) -> None:
        """Listen for the others, or find the one that listens."""
        field = "start.peers"
        require(is_allowed, field, "none: this worker was not started with --peers", f"{message.size}")
        require(1 <= message.size <= _MOST_PEERS, f"{field}.size", f"1 to {_MOST_PEERS}", message.size)
        require(message.rank < message.size, f"{field}.rank", f"less than {message.size}", message.rank)
        seconds = message.timeout_seconds or _USUAL_SECONDS
        is_fit = math.isfinite(seconds) and _LEAST_SECONDS <= seconds <= _MOST_SECONDS
        require(is_fit, f"{field}.timeout_seconds", f"{_LEAST_SECONDS:g} to {_MOST_SECONDS:g}", seconds)
        host, _, port = message.rendezvous.rpartition(":") if message.rank else (message.rendezvous, "", "0")
        require(bool(host) and port.isdecimal(), f"{field}.rendezvous", "host:port, of rank 0 a host", "another")
        self.rank, self.size = message.rank, message.size
        self._group_name = message.group
        self._device = device
        self._is_local = host in ("localhost", "127.0.0.1")
        self._timeout = timedelta(seconds=seconds)
        self._store = self._meeting_place(host, int(port))
        self._group: Any = None

    @property
    def port(self) -> int:
        """Where rank 0 listens."""
        return int(self._store.port)

    def mean(self, tensors: Mapping[str, torch.Tensor], weight: float, step: int) -> dict[str, torch.Tensor]:
        """The weighted means over all workers, who must bring tensors of the same shapes; in float32."""
        own = torch.tensor([weight], device=self._device)
        flat = torch.cat([*(tensor.float().flatten() * weight for tensor in tensors.values()), own])
        self._meet(lambda group: group.allreduce([flat], _options(dist.ReduceOp.SUM)), step)
        return self._apart(flat[:-1] / flat[-1], tensors)

    def total(self, tensors: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """The sums over all workers."""
        return self._reduced(tensors, dist.ReduceOp.SUM, step)

    def largest(self, tensors: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """The largest over all workers."""
        return self._reduced(tensors, dist.ReduceOp.MAX, step)

    def _reduced(self, tensors: Mapping[str, torch.Tensor], operation: Any, step: int) -> dict[str, torch.Tensor]:
        flat = torch.cat([tensor.float().flatten() for tensor in tensors.values()])
        self._meet(lambda group: group.allreduce([flat], _options(operation)), step)
        return self._apart(flat, tensors)

    def _apart(self, flat: torch.Tensor, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        sizes = [tensor.numel() for tensor in like.values()]
        parts: Sequence[torch.Tensor] = flat.split(sizes)  # type: ignore[no-untyped-call]
        return {
            name: part.reshape(tensor.shape).to(tensor.dtype)
            for part, (name, tensor) in zip(parts, like.items(), strict=True)
        }

    def _meet(self, begin: Callable[[Any], Any], step: int) -> None:
        try:
            if self._group is None:
                self._group = self._gathered()
            begin(self._group).wait()
        except RuntimeError as error:
            raise PeerLostError(self._group_name, step) from error

    def _meeting_place(self, host: str, port: int) -> Any:
        try:
            return dist.TCPStore(
                host, port, None, self.rank == 0, timeout=self._timeout, wait_for_workers=False, multi_tenant=True
            )
        except RuntimeError as error:
            raise PeerLostError(self._group_name, 0) from error

    def _gathered(self) -> Any:
        store = dist.PrefixStore(self._group_name, self._store)
        if self._device.type == "cuda":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = self._timeout
            return dist.ProcessGroupNCCL(store, self.rank, self.size, nccl)
        options = dist.ProcessGroupGloo._Options()
        # By itself gloo listens where the machine's name leads to, or on GLOO_SOCKET_IFNAME.
        loopback = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1") if self._is_local else None
        options._devices = [loopback or dist.ProcessGroupGloo.create_default_device()]
        options._timeout = self._timeout
        return dist.ProcessGroupGloo(store, self.rank, self.size, options)


def _options(operation: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    return options
