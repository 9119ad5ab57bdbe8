"""A forward or a backward from its header to its last frame, the same for images and distances."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import require
from lumigrad.server.core.streams import Backward, Forward, Receiver, named_tensors, timed
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.batches import batch_entry
from lumigrad.server.engines.content import Tensors, uploader
from lumigrad.server.engines.gradients import Wanted
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.passes import Retained, Task
from lumigrad.server.engines.requests import checked_gradients, output_bytes
from lumigrad.server.storage.runtime import Runtime
from lumigrad.v1 import render_pb2, scene_pb2

Work = Callable[[], Mapping[str, Array]]


@dataclass(frozen=True)
class Question:
    """A forward that was asked for, checked by its header."""

    task: Task
    # The stored scene that it is about, if it is one.
    reference: scene_pb2.SceneRef | None
    # Checks the payload; returns what gives the engine's inputs, for the device's thread.
    receive: Callable[[PayloadReader], Callable[[], Any]]
    # How the outputs travel.
    formats: ImageFormats = field(default_factory=ImageFormats)


def answer_forward(
    question: Callable[[], Question], receiver: Receiver[Any], reply: Forward, runtime: Runtime, call: Call
) -> Iterator[Frame[Forward]]:
    """Compute what was asked, and send it."""
    call.operation = "forward"
    with call.times.stage("decode"):
        asked = question()
        task, formats = asked.task, asked.formats
        retain, received = receiver.header.retain, receiver.length(runtime.limits.payload_bytes)
        reserved = output_bytes(task.plan, formats, runtime.limits, task.field)
        memory = task.plan.forward_bytes(task.plan.outputs, retain=retain, device=runtime.transfer.device)
        cost = task.cost("retain" if retain else "forward", memory + received, reserved + received)
        runtime.memory.check(cost)
        runtime.transit.reserve(reserved, call)
        load = asked.receive(receiver.payload(runtime.limits.payload_bytes, runtime.transit))
    computed = runtime.executor.run(
        lambda: runtime.passes.forward(task, load(), call, formats, retain=retain),
        call,
        cost,
        None if retain else batch_entry(task, load, call, formats, runtime.transfer),
    )
    payload = call.lane.writer()
    if asked.reference is not None:
        reply.scene.CopyFrom(asked.reference)
    reply.outputs.extend(formats.named(computed.outputs, payload, call))
    # Files may be larger than what they are made of.
    runtime.transit.reserve(max(0, payload.length - reserved), call)
    if computed.retained is not None:
        state = computed.retained.state
        reply.context_id = runtime.contexts.add(computed.retained, state.bytes, task.engine.shared(state))
    try:
        yield from timed(reply, payload, receiver.expect_end, call)
    except BaseException:
        # Who does not take the reply to its end will not ask for the state.
        runtime.contexts.release(reply.context_id)
        raise


class BackwardExchange:
    """A backward of a forward that was retained, or of one that is computed again."""

    def __init__(self, receiver: Receiver[Any], runtime: Runtime, call: Call, gradient_format: Any = None) -> None:
        """`gradient_format` is the request's, if it may name one."""
        call.operation = "backward"
        self._receiver = receiver
        self._runtime = runtime
        self._call = call
        self._format = gradient_format or render_pb2.GradientFormat()

    def answer(
        self, question: Callable[[], Question], engines: Collection[str], reply: Backward
    ) -> Iterator[Frame[Backward]]:
        """Differentiate, and send it; `question` is the forward in the request, `engines` those of the service."""
        runtime, call, spec = self._runtime, self._call, self._receiver.header.spec
        retained = None
        with call.times.stage("decode"):
            if spec.WhichOneof("source") == "context_id":
                cost, retained, work = self._of_retained(spec.context_id, engines)
            else:
                cost, work = self._of_question(question())
        gradients = runtime.executor.run(work, call, cost)
        if spec.release:
            runtime.contexts.release(spec.context_id)
        elif retained is not None:
            runtime.contexts.resize(spec.context_id, retained.state.bytes)
        payload = call.lane.writer()
        reply.gradients.extend(named_tensors(gradients, payload))
        yield from timed(reply, payload, self._receiver.expect_end, call)

    def _of_retained(self, context_id: str, engines: Collection[str]) -> tuple[Cost, Retained, Work]:
        # Nothing here may hold the state while the payload comes: what is dropped for others meanwhile must be free.
        task = self._runtime.contexts.peek(context_id).task
        engine = task.engine.name
        require(engine in engines, "spec.context_id", f"a forward state of {' or '.join(engines)}", f"one of {engine}")
        self._call.engine = engine
        wanted, cost = self._admitted(task, "backward", 0)
        _, load = self._gradients(task)
        retained = self._runtime.contexts.find(context_id)
        return cost, retained, lambda: self._runtime.passes.backward(retained, load(), wanted, self._call)

    def _of_question(self, asked: Question) -> tuple[Cost, Work]:
        passes, plan, given = self._runtime.passes, asked.task.plan, self._receiver.header.spec.output_gradients
        names = [entry.name for entry in given if entry.name in plan.output_shapes]
        forward = plan.forward_bytes(names, retain=True, device=self._runtime.transfer.device)
        wanted, cost = self._admitted(asked.task, "forward and backward", forward)
        reader, load = self._gradients(asked.task)
        inputs = asked.receive(reader)
        return cost, lambda: passes.forward_backward(asked.task, inputs(), load(), wanted, self._call)

    def _admitted(self, task: Task, operation: str, forward_bytes: int) -> tuple[Wanted, Cost]:
        """What is wanted, and its cost with that of a forward pass of so many bytes; reserves room for the reply."""
        runtime, receiver = self._runtime, self._receiver
        wanted = Wanted.of(receiver.header.spec.wanted, self._format, task.plan)
        reserved, received = wanted.bytes(task.plan, runtime.limits), receiver.length(runtime.limits.payload_bytes)
        memory = forward_bytes + task.plan.backward_bytes(wanted.names, runtime.transfer.device)
        cost = task.cost(operation, memory + received, reserved + received)
        runtime.memory.check(cost)
        runtime.transit.reserve(reserved, self._call)
        return wanted, cost

    def _gradients(self, task: Task) -> tuple[PayloadReader, Callable[[], Tensors]]:
        """Receive the payload; returns it, and what uploads the output gradients."""
        runtime, spec, field = self._runtime, self._receiver.header.spec, "spec.output_gradients"
        tensors = checked_gradients(spec.output_gradients, task.plan.upstream_shapes, field)
        reader = self._receiver.payload(runtime.limits.payload_bytes, runtime.transit)
        # Kernels only multiply and add these numbers: no place in memory, no branch and nothing that stays depends on
        # them. A caller who changes them meanwhile spoils its own gradients.
        upload = uploader(tensors, reader, runtime.transfer, field, in_place=True)

        def load() -> Tensors:
            with self._call.times.stage("upload"):
                return upload()

        return reader, load
