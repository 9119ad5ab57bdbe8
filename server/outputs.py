"""The outputs that a RenderSpec asks for, and the room that they take in a reply."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lumigrad.server.engine import Plan
from lumigrad.server.image_formats import ImageFormats
from lumigrad.server.limits import Limits, require
from lumigrad.v1 import render_pb2


def checked_outputs(spec: render_pb2.RenderSpec, known: Sequence[str], field: str) -> tuple[str, ...]:
    """The names, each once; colour if there are none."""
    for name in spec.outputs:
        require(name in known, f"{field}.outputs", f"names out of {', '.join(known)}", name)
    return tuple(dict.fromkeys(spec.outputs)) or ("color",)


def output_bytes(plan: Plan, formats: ImageFormats, limits: Limits, field: str) -> int:
    """The size of the reply, checked."""
    size = sum(formats.value_bytes(plan, name) * prod(plan.output_shapes[name]) for name in plan.outputs)
    limit = f"at most {limits.payload_bytes} bytes of reply"
    require(size <= limits.payload_bytes, f"{field}.outputs", limit, size)
    return size
