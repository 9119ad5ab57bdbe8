"""The errors of the kernels: invalid arguments, calls stopped by another thread, and calls without enough memory.

A thread obeys one `StopRequest` at a time, within its `with` block. Once another thread makes the request, CPU loops
end before their next tile or chunk, and CUDA calls before the next stage that waits for the device; the call raises
`Stopped`, and its outputs are incomplete::

    request = StopRequest()
    threading.Timer(1.0, request.make).start()
    with request:
        forward(...)  # Raises Stopped after a second.

Loops check the request about every millisecond; `request.idle_seconds` is the time since the last check, from which
any thread can tell whether they make progress. Within `with Unstoppable():` a thread obeys no request. `check_stop`
raises `Stopped` if the thread obeys a request that was made.

A call that exceeds its `memory.MemoryRoom` raises `NoRoom`, a MemoryError.
"""

from lumigrad.kernels._native import NoRoom, Stopped, StopRequest, Unstoppable, check_stop

__all__ = ["ArgumentError", "NoRoom", "StopRequest", "Stopped", "Unstoppable", "check_stop"]


_LONGEST_VALUE = 200


class ArgumentError(ValueError):
    """An invalid argument.

    Attributes:
        argument: Name of the argument.
        expected: Accepted values.
        actual: Value that was passed.
    """

    def __init__(self, argument: str, expected: str, actual: str) -> None:
        # A value may be as long as the caller likes.
        actual = actual if len(actual) <= _LONGEST_VALUE else f"{actual[:_LONGEST_VALUE]}… ({len(actual)} characters)"
        super().__init__(f"{argument}: expected {expected}, got {actual}")
        self.argument = argument
        self.expected = expected
        self.actual = actual
