"""Ends the kernels of a thread early, at the request of another thread.

A thread heeds a request in a `with` block, one at a time. Once another thread has made it, CPU loops end before their
next tile or chunk, and CUDA kernels before the next stage that waits for the device; the call raises `Stopped`, and
what it was to write is incomplete::

    request = StopRequest()
    threading.Timer(1.0, request.make).start()
    with request:
        forward(...)  # Raises Stopped after a second.
"""

from lumigrad.kernels._native import Stopped, StopRequest

__all__ = ["StopRequest", "Stopped"]
