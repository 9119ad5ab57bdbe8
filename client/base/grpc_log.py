"""Imports gRPC with its documented default log level, since it logs more if the environment sets none."""

from __future__ import annotations

import os

_VARIABLE = "GRPC_VERBOSITY"

if _VARIABLE in os.environ:
    import grpc
else:
    # gRPC reads the variable when it is imported; other processes should not inherit it.
    os.environ[_VARIABLE] = "ERROR"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_VARIABLE]
