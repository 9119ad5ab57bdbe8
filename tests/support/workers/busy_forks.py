"""A program that forks while its clients have calls in progress: the errors in its children.

Run as `GRPC_ENABLE_FORK_SUPPORT=0 python -m support.workers.busy_forks HOST:PORT`. Without the variable gRPC itself
ends some of the children.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np

from lumigrad.client import Client, Gaussians, LumigradError
from lumigrad.client.base.forks import is_in_grpc
from support.workers.client_load import CAMERA

# Children of each kind: gRPC's handling of forks would end at least one of twenty.
CHILDREN = 20


def in_children(work: Callable[[], None]) -> None:
    """Do something in forked processes, one after another."""
    for _ in range(CHILDREN):
        child = os.fork()
        if child == 0:
            try:
                work()
                # Anything that gRPC's threads do in a child happens within this time.
                time.sleep(0.02)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, f"a child ended with code {code}"


def assert_forked(*asks: Callable[[], object]) -> None:
    """Assert that each call raises the error about forks."""
    for ask in asks:
        try:
            ask()
        except LumigradError as error:
            assert "this process was forked" in str(error), error
        else:
            raise AssertionError(f"{ask} did not raise")


def with_a_call(target: str) -> None:
    """Fork while a thread waits for a server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent, Client(target) as client:
        client.info()
        waiting = Client(f"127.0.0.1:{silent.getsockname()[1]}", retry_s=0.0)
        thread = threading.Thread(target=lambda: assert_unavailable(waiting))
        thread.start()
        # The call is in progress, and stays so while its connection is open: gRPC gives up connections on which no
        # settings arrive.
        connection, _ = silent.accept()
        connection.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        in_children(lambda: assert_forked(client.info))
        assert thread.is_alive()
        connection.close()
        thread.join()
        waiting.close()


def assert_unavailable(client: Client) -> None:
    """Assert that a client gets no answer."""
    try:
        client.info(timeout_s=600.0)
    except LumigradError:
        return
    raise AssertionError("nobody answers there")


def with_several_workers(target: str) -> None:
    """Fork while a client watches the health of its workers."""
    with Client([target, target.replace("127.0.0.1", "localhost")]) as client:
        while not any(map(is_in_grpc, sys._current_frames().values())):
            client.info()
        in_children(lambda: assert_forked(client.info))
        assert client.info()


def with_a_trainer(target: str) -> None:
    """Fork while a training's stream is open."""
    scene = Gaussians(np.zeros((1, 3)), np.ones((1, 4)), np.full((1, 3), 0.1), np.full(1, 0.5), colors=np.ones((1, 3)))
    pictures = np.zeros((1, CAMERA.height, CAMERA.width, 3), np.float32)
    with Client(target) as client, client.trainer(scene, [CAMERA], pictures, rates={"means": 1e-3}) as trainer:
        trainer.step()

        def work() -> None:
            assert_forked(trainer.step, trainer.publish, trainer.snapshot, trainer.views)
            trainer.close()

        in_children(work)
        # The parent's trainer works as before.
        assert trainer.step().number == 1


if __name__ == "__main__":
    for case in (with_a_call, with_several_workers, with_a_trainer):
        case(sys.argv[1])
