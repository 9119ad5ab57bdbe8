"""Workers that freeze for a while, as on a machine that swaps: calls are late, but never wrong."""

from __future__ import annotations

import signal
import socket
import threading
import time

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.errors import DeadlineExceeded
from lumigrad.client.transport import lane as lanes
from lumigrad.client.transport.lane import Lane, LaneFailed
from lumigrad.protos.lanes import PACKET_BYTES, Packet, ToCaller, ToWorker
from support.gaussians.clouds import post
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess

CAMERA = Camera.orbit((0, 0, 0), distance=4, azimuth_degrees=30, elevation_degrees=20, width=64, height=48)


def large() -> Gaussians:
    """Gaussians whose tensors have different sizes, each large enough for a region of its own."""
    return Gaussians(**{name: np.repeat(array, 100, axis=0) for name, array in post().tensors.items()})


@pytest.mark.parametrize("seconds", [0.5, 2.1, 2.5, 3.0])
def test_a_call_outlasts_a_worker_that_stands_still(process: WorkerProcess, seconds: float) -> None:
    scene = large()
    with Client(process.target, lane="shared") as client:
        expected = client.render(scene, CAMERA)
        gradients = expected.backward(color=np.ones_like(expected.color))
        process.signal(signal.SIGSTOP)
        timer = threading.Timer(seconds, process.signal, [signal.SIGCONT])
        timer.start()
        try:
            for _ in range(3):
                frame = client.render(scene, CAMERA)
                assert np.array_equal(frame.color, expected.color)
                found = frame.backward(color=np.ones_like(frame.color))
                assert all(np.allclose(found[name], gradients[name], atol=1e-5) for name in gradients)
        finally:
            timer.join()
        # A lane that was lost is opened anew, after a second or more if the worker was too busy at first.
        wait_until(lambda: client.lane == "shared", "a lane")


def test_threads_outlast_a_worker_that_stands_still(process: WorkerProcess) -> None:
    scene, wrong = large(), []
    with Client(process.target, lane="shared") as client:
        expected = client.render(scene, CAMERA).color

        def render() -> None:
            try:
                for _ in range(3):
                    if not np.array_equal(client.render(scene, CAMERA).color, expected):
                        wrong.append("another picture")
            except Exception as error:
                wrong.append(repr(error)[:200])

        process.signal(signal.SIGSTOP)
        threads = [threading.Thread(target=render) for _ in range(4)]
        timer = threading.Timer(2.5, process.signal, [signal.SIGCONT])
        for thread in (timer, *threads):
            thread.start()
        for thread in (timer, *threads):
            thread.join()
    assert wrong == []


def test_a_training_outlasts_a_worker_that_stands_still(process: WorkerProcess) -> None:
    """A step has two gradients, each of which gets a region of its own."""
    camera = Camera.look_at((0, 0, 4), (0, 0, 0), width=400, height=300)
    fitted = []
    with Client(process.target, lane="shared") as client:
        for pause_s in (0.0, 2.5):
            with client.trainer(post(), [camera], rates={"means": 1e-3}) as trainer:
                for batch in trainer.batches(4, outputs=("color", "alpha")):
                    if pause_s and batch.images.number == 1:
                        process.signal(signal.SIGSTOP)
                        threading.Timer(pause_s, process.signal, [signal.SIGCONT]).start()
                    batch.apply(color=np.ones_like(batch.color), alpha=np.ones_like(batch.alpha))
                fitted.append(trainer.scene().means)
    np.testing.assert_allclose(fitted[0], fitted[1], atol=1e-5)


def test_a_training_is_waited_for_as_long_as_its_client_says(process: WorkerProcess) -> None:
    camera = Camera.look_at((0, 0, 4), (0, 0, 0), width=32, height=24)
    with Client(process.target) as patient, Client(process.target, timeout_s=1.0) as hasty:
        scene = patient.put(post())
        with patient.trainer(scene, [camera]) as begun:
            lease = begun.training_id, begun.lease
            begun.close(finish=False)
        process.signal(signal.SIGSTOP)
        try:
            for begin in (lambda: hasty.trainer(scene, [camera]), lambda: hasty.resume_trainer(*lease)):
                started = time.monotonic()
                with pytest.raises(DeadlineExceeded, match="within 1 s"):
                    begin()
                # Its own time-out would be a minute.
                assert time.monotonic() - started < 50.0
        finally:
            process.signal(signal.SIGCONT)
        patient.resume_trainer(*lease).close()


def test_a_late_grant_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "PATIENCE_S", 0.05)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        lane = Lane(here, b"0" * 16)
        reply, upload = lane.hold(), lane.hold()
        with pytest.raises(LaneFailed, match="no answer"):
            lane.lease_region(upload, 1000, 60.0)
        assert Packet.unpack(there.recv(PACKET_BYTES)) == Packet(ToWorker.LEASE, upload, 1000)
        there.send(Packet(ToCaller.LEASED, upload, 0).pack())
        # Later leases fail at once, for this call or another, since nobody waits for this lane again.
        monkeypatch.setattr(lanes, "PATIENCE_S", 3600.0)
        for lease in (upload, reply):
            with pytest.raises(LaneFailed, match="it has ended"):
                lane.lease_region(lease, 2000, 60.0)
        assert not lane.is_alive
        lane.release(upload)
        lane.let_go(reply)
        assert Packet.unpack(there.recv(PACKET_BYTES)) == Packet(ToWorker.RELEASE, upload)
        # The connection is closed with the last lease, so the worker takes the memory back.
        assert there.recv(PACKET_BYTES) == b""
