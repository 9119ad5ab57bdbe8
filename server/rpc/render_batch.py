"""RenderBatch: many renderings in one call, rendered together where similar, each with a status of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import grpc

from lumigrad.kernels.errors import ArgumentError
from lumigrad.protos import details
from lumigrad.protos.dtypes import Array
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.tensors import PayloadReader, PayloadWriter, rows_of
from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import (
    BusyError,
    DeviceMemoryError,
    DeviceTimeError,
    SceneFilesError,
    SceneNotFoundError,
    VersionMismatchError,
)
from lumigrad.server.core.limits import Limits, require, require_reply
from lumigrad.server.core.streams import Receiver, check_room, named_tensor, timed
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.base import joined_views
from lumigrad.server.engines.runner import ForwardJob, Task
from lumigrad.server.rpc.status import answer_to
from lumigrad.server.scenes.lookup import referred_scene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import image_pb2, render_pb2

BatchFrames = Iterator[Frame[render_pb2.RenderBatchRequest]]

# Errors that fail one item, like a BusyError without a retry time; any other error ends the call.
_ERRORS_OF_ITEMS = (
    ArgumentError,
    DeviceMemoryError,
    DeviceTimeError,
    ProtocolError,
    SceneFilesError,
    SceneNotFoundError,
    VersionMismatchError,
)


# Checks an item's spec, at a path in the request, and its formats.
MakeRequest = Callable[[render_pb2.RenderSpec, Call, str, Sequence[image_pb2.OutputFormat]], ForwardJob]


@dataclass(frozen=True)
class _Item:
    """An item whose header was checked, and its place in the request."""

    index: int
    message: render_pb2.RenderItem
    request: ForwardJob

    @property
    def field(self) -> str:
        """The path of its spec in the request."""
        return _field_of(self.index)

    @property
    def key(self) -> Hashable:
        """Items with equal keys are rendered together."""
        task = self.request.task
        if task.scene is None or task.plan.kind is None:
            return self.index
        return task.engine.name, task.scene.scene_id, task.scene.version, task.plan.kind, self.request.formats.key


class _Group:
    """Items of one stored scene that differ only in their cameras, or a single item, as one request."""

    def __init__(self, items: Sequence[_Item]) -> None:
        self.items = items
        self.request = request = items[0].request
        if len(items) > 1:
            plan = joined_views([item.request.task.plan for item in items])
            self.request = ForwardJob(replace(request.task, plan=plan), None, request.formats)
        self.task, self.formats = self.request.task, self.request.formats

    def parts(self) -> list[_Group]:
        """Return a separate group for each item."""
        return [_Group([item]) for item in self.items]


class _Batch:
    """The items of one call: renders them, and collects their outputs and errors."""

    def __init__(self, runtime: Runtime, call: Call, count: int, make_request: MakeRequest) -> None:
        self._runtime = runtime
        self._call = call
        self._make_request = make_request
        self.reply = render_pb2.RenderBatchReply(items=[render_pb2.RenderedItem() for _ in range(count)])
        self._rendered: list[tuple[_Group, dict[str, Array]]] = []
        # Payload bytes of request and reply, which the call has reserved.
        self._payload_bytes = 0

    def checked(self, messages: Sequence[render_pb2.RenderItem]) -> list[_Item]:
        """Return the items whose headers are valid."""
        items = []
        for index, message in enumerate(messages):
            try:
                request = self._checked(index, message)
            except _ERRORS_OF_ITEMS as error:
                self._fail(index, error)
                continue
            except BusyError as error:
                if error.retry_seconds is not None:
                    raise
                # The item never fits.
                self._fail(index, error)
                continue
            if request.task.scene is not None and request.task.cut is None:
                request.scene = None
            items.append(_Item(index, message, request))
        return items

    def _checked(self, index: int, message: render_pb2.RenderItem) -> ForwardJob:
        """Check the header of an item, and whether it fits alone."""
        field = _field_of(index)
        require(not message.spec.tensors, f"{field}.tensors", "none in a batch", len(message.spec.tensors))
        request = self._make_request(message.spec, self._call, field, message.formats)
        sent = request.formats.reply_bytes(request.task.plan, self._runtime.limits, field)
        self._runtime.memory.check(self._cost(request.task, sent))
        return request

    def reserve(self, items: Sequence[_Item], received: int) -> int:
        """Reserve the bytes of the reply; returns them. Raises InvalidArgumentError if they are too many."""
        limits = self._runtime.limits
        sent = sum(item.request.formats.reply_bytes(item.request.task.plan, limits, "") for item in items)
        require_reply(sent, limits, "items")
        check_room(self._call, sent)
        self._runtime.payload_memory.announce(sent, self._call)
        self._payload_bytes = sent + received
        return sent

    def fitting(self, items: Sequence[_Item]) -> list[_Group]:
        """Return the items in groups that fit into the device's memory, ordered by engine."""
        alike: dict[Hashable, list[_Item]] = {}
        for item in items:
            alike.setdefault(item.key, []).append(item)
        groups: list[_Group] = []
        for group in map(_Group, alike.values()):
            for part in [group] if self._fits(group) else group.parts():
                try:
                    self._runtime.memory.check(self._cost(part.task, self._payload_bytes))
                    groups.append(part)
                except DeviceMemoryError as error:
                    self._fail(part.items[0].index, error)
        return sorted(groups, key=lambda group: group.task.engine.name)

    def receive(self, groups: Sequence[_Group], reader: PayloadReader) -> list[_Group]:
        """Check the tensors in the payload; returns the groups whose tensors are valid."""
        valid = []
        for group in groups:
            try:
                group.request.receive(reader, self._runtime.transfer, self._call)
                valid.append(group)
            except _ERRORS_OF_ITEMS as error:
                self._fail(group.items[0].index, error)
        return valid

    def render(self, group: _Group) -> None:
        """Render a group; if it fails, render its items one by one, so that each gets its own error."""
        request = group.request
        # Once other items have been rendered, there may be no room to read scenes or pages into.
        is_late = bool(self._rendered) or group.task.cut is not None
        errors = (*_ERRORS_OF_ITEMS, BusyError) if is_late else _ERRORS_OF_ITEMS
        try:
            if request.scene is None and not self._find_again(group):
                self._render_anew(group)
                return
            assert request.scene is not None
            request.scene.gather()
        except errors as error:
            self._fail_or_divide(group, error)
            return
        self._render_found(group)

    def _find_again(self, group: _Group) -> bool:
        """Look up the scene of a group once more, since earlier items may have displaced it; False if it is another."""
        item = group.items[0]
        found = referred_scene(item.message.spec.scene_ref, self._runtime, self._call, f"{item.field}.scene_ref")
        is_same = found.reference == group.task.scene
        if is_same:
            group.request.scene = found
        return is_same

    def _render_anew(self, group: _Group) -> None:
        """Check items again whose scene was updated, or read from its file again, since they were checked."""
        if len(group.items) > 1:
            self._divide(group)
            return
        item = group.items[0]
        self.render(_Group([replace(item, request=self._checked(item.index, item.message))]))

    def _render_found(self, group: _Group) -> None:
        """Render a group whose scene is in memory."""
        call, runtime = self._call, self._runtime
        call.use_engine(group.task.engine.name)
        request = group.request
        assert request.scene is not None
        try:
            runner, entry = runtime.runner, runtime.runner.batch_entry(request, call)
            work = partial(runner.forward, request, call, retain=False)
            cost = self._cost(group.task, self._payload_bytes)
            # A full queue refuses a batch only at its beginning, when nothing is lost.
            result = runtime.executor.deliver_steps(work, call, cost, entry, waits=bool(self._rendered))
            if result.more:
                request.scene.note(result.more)
            self._rendered.append((group, dict(result.outputs)))
        except _ERRORS_OF_ITEMS as error:
            self._fail_or_divide(group, error)
        finally:
            request.scene.drawn()
            # Other items may need its memory.
            request.scene = None

    def _fail_or_divide(self, group: _Group, error: Exception) -> None:
        """Note the error of a single item, or find that of each item."""
        if len(group.items) == 1:
            self._fail(group.items[0].index, error)
        else:
            self._divide(group)

    def _divide(self, group: _Group) -> None:
        """Render the items of a group one by one."""
        for part in group.parts():
            self.render(part)

    def write(self, payload: PayloadWriter) -> None:
        """Append the outputs to a payload, group by group, and describe their places in the reply."""
        arrays: list[tuple[str, Array, list[tuple[int, int, int]], image_pb2.EncodedImages | None]] = []
        for group, outputs in self._rendered:
            ends = list(accumulate(item.request.task.plan.lead for item in group.items))
            rows = [(item.index, start, end) for item, start, end in zip(group.items, [0, *ends], ends, strict=False)]
            for name, array in outputs.items():
                if not group.formats.are_files(name):
                    arrays.append((name, array, rows, None))
                    continue
                for index, start, end in rows:
                    content, files = group.formats.files(name, array[start:end], self._call, self._runtime.jpegs)
                    arrays.append((name, content, [(index, 0, len(content))], files))
            if group.task.scene is not None:
                for item in group.items:
                    self.reply.items[item.index].scene.CopyFrom(group.task.scene)
            if group.task.cut is not None:
                self.reply.items[group.items[0].index].levels.CopyFrom(group.task.cut.report)
        payload.reserve([array for _, array, _, _ in arrays])
        for name, array, rows, encoded in arrays:
            tensor = named_tensor(name, array, payload).tensor
            for index, start, end in rows:
                part = rows_of(tensor, start, end)
                self.reply.items[index].outputs.add(name=name, tensor=part, encoded=encoded)

    def note_codes(self) -> None:
        """Note the items' status codes for metrics and log."""
        names = {code.value[0]: code.name for code in grpc.StatusCode}
        self._call.record.item_codes = [names[item.status.code] for item in self.reply.items]

    def _fits(self, group: _Group) -> bool:
        with suppress(DeviceMemoryError):
            self._runtime.memory.check(self._cost(group.task, self._payload_bytes))
            return True
        return False

    def _cost(self, task: Task, payload_bytes: int) -> Cost:
        plan, device = task.plan, self._runtime.transfer.device
        memory = plan.forward_bytes(plan.outputs + task.more_outputs, retain=False, device=device)
        return task.cost("forward", memory + payload_bytes, payload_bytes, device)

    def _fail(self, index: int, error: Exception) -> None:
        answer = answer_to(error, self._call.record.request_id)
        status = details.status_of(answer.code.value[0], answer.text, answer.details)
        self.reply.items[index].status.CopyFrom(status)


def render_batch(
    frames: BatchFrames, runtime: Runtime, call: Call, make_request: MakeRequest
) -> Iterator[Frame[render_pb2.RenderBatchReply]]:
    """Render the items of a request, and send their outputs and errors."""
    call.record.operation = "forward"
    receiver = Receiver(frames, call)
    limits, messages = runtime.limits, receiver.header.items
    batch = _Batch(runtime, call, len(messages), make_request)
    with call.times.stage("decode"):
        sizes = _check_sizes(messages, limits)
        items = batch.checked(messages)
        call.record.facts.update(sizes)
        reserved = batch.reserve(items, receiver.length(limits.payload_bytes))
        groups = batch.fitting(items)
        groups = batch.receive(groups, receiver.payload(limits.payload_bytes, runtime.payload_memory))
    for group in groups:
        batch.render(group)
    payload = call.lane.writer(call.most_payload_bytes)
    batch.write(payload)
    batch.note_codes()
    # Image files may be larger than the pixels that they are made of.
    runtime.payload_memory.reserve(max(0, payload.length - reserved), call)
    yield from timed(batch.reply, payload, receiver.expect_end, call)


def _field_of(index: int) -> str:
    return f"items[{index}].spec"


def _check_sizes(messages: Sequence[render_pb2.RenderItem], limits: Limits) -> dict[str, int]:
    """Check the cameras and pixels of all items together, and return them."""
    cameras = [camera for message in messages for camera in message.spec.cameras]
    limit = f"at most {limits.cameras} cameras in all (the worker's --max-cameras)"
    require(len(cameras) <= limits.cameras, "items", limit, len(cameras))
    pixels = sum(camera.width * camera.height for camera in cameras)
    require(
        pixels <= limits.pixels, "items", f"at most {limits.pixels} pixels in all (the worker's --max-pixels)", pixels
    )
    return {"items": len(messages), "cameras": len(cameras), "pixels": pixels}
