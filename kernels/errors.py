"""The errors of the kernels: an invalid argument, a call that another thread has stopped, and one without room.

A thread heeds a request to stop in a `with` block, one at a time. Once another thread has made it, CPU loops end before
their next tile or chunk, and CUDA kernels before the next stage that waits for the device; the call raises `Stopped`,
and what it was to write is incomplete::

    request = StopRequest()
    threading.Timer(1.0, request.make).start()
    with request:
        forward(...)  # Raises Stopped after a second.

Loops ask for the request about every millisecond; `request.idle_seconds` is the time since they last did, from which
any thread can tell that they make progress. Within `with Unstoppable():` a thread heeds no request. `check_stop` raises
`Stopped` if the thread heeds a request that was made.

A call that needs more memory than a `memory.MemoryRoom` leaves it raises `NoRoom`, a MemoryError.
"""

from lumigrad.kernels._native import NoRoom, Stopped, StopRequest, Unstoppable, check_stop

__all__ = ["ArgumentError", "NoRoom", "StopRequest", "Stopped", "Unstoppable", "check_stop"]


_LONGEST_VALUE = 200


class ArgumentError(ValueError):
    """An invalid argument.

    Attributes:
        argument: Name of the argument.
        expected: Values that are accepted.
        actual: Value that came.
    """

    def __init__(self, argument: str, expected: str, actual: str) -> None:
        # A value may be as long as the caller likes.
        actual = actual if len(actual) <= _LONGEST_VALUE else f"{actual[:_LONGEST_VALUE]}… ({len(actual)} characters)"
        super().__init__(f"{argument}: expected {expected}, got {actual}")
        self.argument = argument
        self.expected = expected
        self.actual = actual
