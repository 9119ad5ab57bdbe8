"""How the client's commands end: the exit codes. Those of a worker, `lumigrad serve`, are its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lumigrad.client.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unauthenticated, Unavailable
from lumigrad.client.shell.complaint import option_of

OK = 0
FAILED = 1
USAGE = 2
NOT_SO = 3
UNREACHABLE = 4
REFUSED = 5
BUSY = 6
TIMED_OUT = 7
INTERRUPTED = 130
# As if the signal had ended it.
CLOSED_PIPE = 141

MEANINGS = {
    OK: "done",
    FAILED: "failed: a file, a scene or a package is not as it should be, or the worker failed",
    USAGE: "wrong usage: an option that is wrong or does not fit",
    NOT_SO: "done, and the answer is no: a collision (`query --check`), or not serving (`health`)",
    UNREACHABLE: "no worker answers, or it and the caller do not agree about TLS",
    REFUSED: "the worker refused the caller: a token or a certificate",
    BUSY: "the worker is full, or has no memory for the call; what exceeds a limit that it declares is 1",
    TIMED_OUT: "no answer in the time given",
    INTERRUPTED: "ended by Ctrl-C; `view`, `top`, and a `fit` that leaves its scene, end with 0",
    CLOSED_PIPE: "whoever read the output has closed it",
}

_BY_KIND: tuple[tuple[type[BaseException], int], ...] = (
    (Unavailable, UNREACHABLE),
    (Unauthenticated, REFUSED),
    (ResourceExhausted, BUSY),
    (DeadlineExceeded, TIMED_OUT),
    (KeyboardInterrupt, INTERRUPTED),
    (BrokenPipeError, CLOSED_PIPE),
)


def exit_code(error: BaseException, options: Mapping[str, str] = MappingProxyType({})) -> int:
    """The code for what a command raised; `options` as in `complaint`."""
    if isinstance(error, InvalidArgument) and any(option_of(each.field, options) for each in error.violations):
        return USAGE
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), FAILED)
