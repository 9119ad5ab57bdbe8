"""A lane of shared memory: memory regions of a worker on this machine, mapped into this process, and their leases."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from lumigrad.client.base import forks
from lumigrad.client.base.arrays import Array
from lumigrad.protos.lane_tensors import LeasedRegion
from lumigrad.protos.lanes import PACKET_BYTES, SINGLE_REPLIES, Packet, ToCaller, ToWorker, lane_metadata

# A worker that does not answer for this long is considered hung.
PATIENCE_S = 2.0


class LaneFailed(Exception):
    """The lane cannot be used; the text is the reason."""


class Lane:
    """One lane. Safe to use from several threads; `release` is also safe in finalizers.

    A lane ends when it is retired and has no leases left. The worker then reclaims the memory, and arrays on it would
    read as zeros.
    """

    def __init__(self, link: socket.socket, token: bytes) -> None:
        """Takes ownership of a connection to the worker."""
        link.setblocking(False)
        self._link = link
        self._token = token
        # Held while reading from the link. Finalizers only send.
        self._lock = threading.Lock()
        self._regions: dict[int, Array] = {}
        self._granted: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._held: set[int] = set()
        self._unsent: deque[bytes] = deque()
        self._is_open = self._is_retired = self._is_dead = False
        # Whether calls that use the lane may request the reply as one message.
        self.has_single_replies = False
        weakref.finalize(self, link.close).atexit = False
        forks.follow(self)

    @property
    def is_alive(self) -> bool:
        """Whether the worker's end is still open; does not wait."""
        self._flush()
        if self._lock.acquire(blocking=False):
            try:
                while self._take():
                    pass
            except LaneFailed:
                pass
            finally:
                self._lock.release()
        return not (self._is_dead or self._is_retired)

    def prove(self, nonce: bytes, patience_s: float) -> None:
        """Proves to the worker that both sides map the same memory."""
        with self._lock:
            self._await(lambda: bool(self._regions), patience_s)
            (memory,) = self._regions.values()
            if memory[: len(nonce)].tobytes() != nonce:
                raise LaneFailed("the memory is not the worker's")
            memory[len(nonce) : 2 * len(nonce)] = np.frombuffer(nonce, np.uint8)
            self._send(Packet(ToWorker.READY).pack())
            self._await(lambda: self._is_open, patience_s)

    def hold(self) -> int:
        """Begins a lease and returns its number."""
        number = next(self._numbers)
        self._held.add(number)
        return number

    def metadata(self, lease: int) -> tuple[str, str]:
        """Returns the metadata of a call whose reply belongs to the lease."""
        return lane_metadata(self._token, lease)

    def let_go(self, lease: int) -> None:
        """Ends a lease under which nothing was leased."""
        self._held.discard(lease)
        if self._is_retired and not self._held:
            self._link.close()

    def release(self, lease: int) -> None:
        """Returns all regions of a lease. Takes no lock and does not wait."""
        # In a forked child, the lease belongs to the parent.
        if lease in self._held:
            self._send(Packet(ToWorker.RELEASE, lease).pack())
            self.let_go(lease)

    def lease_region(self, lease: int, nbytes: int, patience_s: float) -> LeasedRegion | None:
        """Leases memory for writing; returns None if the worker has none left.

        Raises:
            LaneFailed: the worker does not answer.
        """
        with self._lock:
            # The worker has already kept one thread waiting too long; no other thread waits for it.
            if self._is_retired:
                raise LaneFailed("it has ended")
            self._send(Packet(ToWorker.LEASE, lease, nbytes).pack())
            self._await(lambda: lease in self._granted, patience_s)
            region = self._granted.pop(lease)
            return (region, self._regions[region]) if region else None

    def memory(self, region: int, patience_s: float) -> Array:
        """Returns the bytes of a region that a reply names."""
        if region not in self._regions:
            with self._lock:
                self._await(lambda: region in self._regions, patience_s)
        return self._regions[region]

    def retire(self) -> None:
        """Ends the lane as soon as it has no leases."""
        self._is_retired = True
        if not self._held:
            self._link.close()

    def after_fork(self, is_sound: bool) -> None:
        """Leaves all resources to the parent, in a forked child."""
        self._is_retired = True
        self._held.clear()
        self._link.close()

    def _await(self, happened: Callable[[], bool], patience_s: float) -> None:
        """Reads packets until the awaited one has arrived.

        The lane ends if the packet does not arrive in time: a late answer would be taken for the answer to the lease's
        next request.
        """
        if self._is_dead:
            raise LaneFailed("it has ended")
        until = time.monotonic() + min(patience_s, PATIENCE_S)
        poll = select.poll()
        try:
            poll.register(self._link, select.POLLIN)
        except ValueError as error:
            raise self._failure("the connection was closed") from error
        while not happened():
            if not self._take() and not poll.poll(max(0.0, until - time.monotonic()) * 1e3):
                self.retire()
                raise LaneFailed(f"no answer within {min(patience_s, PATIENCE_S):g} s")

    def _take(self) -> bool:
        """Reads one packet; False if there is none."""
        try:
            raw, descriptors, flags, _ = socket.recv_fds(self._link, PACKET_BYTES + 1, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._failure(f"the connection broke: {error}") from error
        try:
            if flags & socket.MSG_CTRUNC:
                raise self._failure("this process may open no more files")
            self._handle(Packet.unpack(raw), descriptors, raw)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _handle(self, packet: Packet | None, descriptors: list[int], raw: bytes) -> None:
        match packet:
            case Packet(ToCaller.REGION, region, size) if descriptors:
                self._regions[region] = self._mapped(descriptors[0], size)
            case Packet(ToCaller.OPEN, abilities):
                self.has_single_replies = abilities == SINGLE_REPLIES
                self._is_open = True
            case Packet(ToCaller.DROP, region):
                self._regions.pop(region, None)
            case Packet(ToCaller.LEASED, lease, region) if not region or region in self._regions:
                self._granted[lease] = region
            case _:
                raise self._failure("the worker closed it" if not raw else "the worker broke the protocol")

    def _mapped(self, descriptor: int, size: int) -> Array:
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            if not seals & fcntl.F_SEAL_SHRINK or os.fstat(descriptor).st_size < size:
                raise self._failure("the worker's memory could vanish")
            return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        except OSError as error:
            raise self._failure(f"the memory cannot be mapped: {error}") from error

    def _failure(self, why: str) -> LaneFailed:
        """Marks the lane as unusable; returns the error to raise."""
        self._is_dead = True
        return LaneFailed(why)

    def _send(self, raw: bytes) -> None:
        """Sends a packet, or queues it if the socket is full."""
        self._unsent.append(raw)
        self._flush()

    def _flush(self) -> None:
        # Another thread, or a finalizer that interrupts this loop, may take the last packet.
        with contextlib.suppress(IndexError):
            while self._unsent:
                packet = self._unsent.popleft()
                try:
                    self._link.send(packet)
                except BlockingIOError:
                    self._unsent.appendleft(packet)
                    return
                except OSError:
                    # The worker has closed the socket.
                    return
