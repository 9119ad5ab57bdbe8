"""Imports gRPC with the log level that it documents as its default, since it logs more if the environment has none."""

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
