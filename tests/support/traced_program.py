"""A program that uses the client and has configured OpenTelemetry as users do: `traced_program.py TARGET COLLECTOR`."""

from __future__ import annotations

import socket
import sys

import numpy as np
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from lumigrad.client import Camera, Client, LumigradError, Mesh, Spheres

UNKEPT_TRACE = 0x1234567890ABCDEF1234567890ABCDEF
SECRET = "do-not-quote-this"

target, collector = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": "trainer"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector)))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("trainer")
rng = np.random.default_rng(1)
spheres = Spheres(rng.normal(size=(50, 3)), rng.random((50, 3)), np.full(50, 0.2))
camera = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=320, height=240)
mesh = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


def expect_error(call: object, *arguments: object, **options: object) -> None:
    try:
        call(*arguments, **options)
    except LumigradError:
        return
    raise AssertionError("no error")


with Client(target) as client:
    with tracer.start_as_current_span("step"):
        scene = client.put(spheres)
        frame = client.render(scene, camera, retain=True)
        frame.backward(np.ones_like(frame.color))
        client.update(scene, radii=np.full(50, 0.1))
        client.query(mesh, [[2.0, 0.0, 0.0, 0.1]])
    with tracer.start_as_current_span("losses"):
        kept = client.put(Spheres(spheres.positions + 1, spheres.colors, spheres.radii))
        client.delete(kept)
        client.render(kept, camera)
        lost, _ = (client.render(kept, camera, retain=True) for _ in range(2))
        lost.backward(np.ones_like(lost.color))
    with tracer.start_as_current_span("failures"):
        expect_error(client.render, spheres, camera, outputs=(SECRET,))
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            with Client(f"127.0.0.1:{nobody.getsockname()[1]}", retry_s=0.5) as lonely:
                expect_error(lonely.info)
    with trace.use_span(NonRecordingSpan(SpanContext(UNKEPT_TRACE, 1, True, TraceFlags(0)))):
        client.render(spheres, camera)
provider.shutdown()
