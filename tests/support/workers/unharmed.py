"""A check that a worker still works correctly after an attack or a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.workers.worker import WorkerProcess


@contextmanager
def unharmed_after(process: WorkerProcess, client: RawClient) -> Iterator[None]:
    """Asserts that after the block the worker renders as before, runs, and has logged no error."""
    spec, cloud = spec_of(opencv_camera(32, 32)), sphere_cloud(30)
    before = client.render(spec, cloud=cloud).arrays["color"]
    yield
    assert client.render(spec, cloud=cloud).arrays["color"].tobytes() == before.tobytes()
    assert " ERROR " not in process.log, process.log[-3000:]
    assert process.process.poll() is None
