"""Results of workers: arrays, and the forward state that gradients are computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lumigrad.client.base.arrays import Array, NamedArrays
from lumigrad.client.base.timings import Timings
from lumigrad.client.transport.call import Call, Cancellable
from lumigrad.client.transport.connection import Reply
from lumigrad.client.wire.scenes import named_tensors
from lumigrad.client.workers.attempts import RoutedAttempts, Source
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.routing import Subject
from lumigrad.client.workers.worker import Context, Kept
from lumigrad.protos.tensors import PayloadWriter


class Result(NamedArrays, Cancellable):
    """The arrays of a reply, as items and as attributes.

    Attributes:
        timings: of the call.
    """

    def __init__(self, workers: Pool, arrays: Mapping[str, Array], kept: Kept | None, timings: Timings) -> None:
        """Takes arrays as they are shown; `kept` is the forward state on the worker, None: there is none."""
        super().__init__(arrays)
        self.timings = timings
        self._workers = workers
        self._context = Context(self, kept)

    def release(self) -> None:
        """Lets the worker forget the forward state; backward still works, by computing it again."""
        self._context.release()

    def _differentiate(
        self,
        service: str,
        subject: Subject,
        begin: Callable[[], Any],
        again: Callable[[Any, Source | None, PayloadWriter], None],
        output_gradients: Mapping[str, Array],
        call: Call,
        release: bool,
    ) -> Reply[Any]:
        """Gradients from the forward state, or without one by computing it again.

        Args:
            service: of the connection, which has the method Backward.
            subject: what the call is about.
            begin: makes the request, but for what is said below.
            again: adds to its spec what is computed again, given what the worker calls the scene.
            output_gradients: dL/d output by the output's name.
            call: of the user.
            release: let the worker forget the forward state.
        """
        attempts = RoutedAttempts(
            self._workers, subject, call, context=self._context, to_release=release, any_version=True
        )

        def build(payload: PayloadWriter) -> Any:
            request, kept = begin(), attempts.kept
            if kept is None:
                again(request.spec, attempts.source, payload)
            else:
                request.spec.context_id, request.spec.release = kept.context_id, release
            request.spec.output_gradients.extend(named_tensors(output_gradients, payload))
            return request

        while True:
            with attempts as worker:
                method = getattr(worker.connection, service).Backward
                return worker.connection.exchange(method, build, attempts.call)
