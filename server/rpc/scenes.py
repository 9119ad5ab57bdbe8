"""SceneService: stores, updates, describes and deletes scenes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from lumigrad.protos.dtypes import Array
from lumigrad.protos.hashing import content_hash
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import BusyError, SceneNotFoundError
from lumigrad.server.core.limits import require
from lumigrad.server.core.streams import Receiver
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.transfer import Delivery
from lumigrad.server.engines.levels import KIND as LEVELS
from lumigrad.server.engines.levels import check_header
from lumigrad.server.scenes.clouds import Arrival
from lumigrad.server.scenes.levels import checked_rows, content_of
from lumigrad.server.scenes.lookup import (
    SCENE_KINDS,
    kind_of,
    named_scene,
    restore_meshes,
    stored_content,
    stored_scene,
    with_stored,
)
from lumigrad.server.storage.scene_files import LevelPayload, name_of_levels
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime, Tenants
from lumigrad.v1 import scene_pb2

_HASH = re.compile(r"[0-9a-f]{64}")
_MAX_UPDATE_ID = 64
# A reply with descriptions of scenes stays below gRPC's limit of 4 MiB; each takes a tag and a length besides its
# bytes.
_MOST_LISTED_BYTES = 3 << 20
_FIELD_BYTES = 4


class SceneService:
    """The methods of `lumigrad.v1.SceneService`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def Put(self, frames: Iterator[Frame[scene_pb2.PutRequest]], call: Call) -> scene_pb2.PutReply:
        """Store a scene, unless its content is already stored."""
        runtime = self._tenants.of(call)
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            header = receiver.header
            kind = kind_of(header.scene, "scene")
            call.record.engine, call.record.operation = kind.engine, "put"
            claimed = header.content_hash
            require(
                not claimed or _HASH.fullmatch(claimed) is not None, "content_hash", "64 hexadecimal digits", claimed
            )
            restore_meshes(runtime, call, header.scene)
            arrival = with_stored(runtime, call, lambda: kind.arrival(header.scene, runtime, f"scene.{kind.name}"))
            present = stored_content(runtime, call, claimed) if claimed else None
            if present is not None:
                return scene_pb2.PutReply(scene=present.info(), existed=True)
            if kind.name == LEVELS:
                return _put_levels(receiver, arrival, runtime, call)
            cost = Cost.of_payload(receiver.length(runtime.limits.payload_bytes))
            runtime.memory.check(cost)
            runtime.scenes.check(cost.payload_bytes)
            reader = receiver.payload(runtime.limits.payload_bytes, runtime.payload_memory)
            prepare = arrival.receive(reader)
            computed = content_hash(getattr(header.scene, kind.name), reader.read)
            require(claimed in ("", computed), "content_hash", f"the hash of the content, {computed}", claimed)
            present = None if claimed else stored_content(runtime, call, computed)
        if present is not None:
            receiver.expect_end()
            return scene_pb2.PutReply(scene=present.info(), existed=True)
        with runtime.scenes.room(cost.payload_bytes, call):
            # Prepare after waiting for room, in the same order as a restore that builds a scene.
            make = prepare(call)
            content = runtime.executor.run(lambda: make(call.times), call, cost)
            receiver.expect_end()
            scene, existed = with_stored(runtime, call, lambda: runtime.scenes.add(computed, content))
        return scene_pb2.PutReply(scene=scene.info(), existed=existed)

    def Update(self, frames: Iterator[Frame[scene_pb2.UpdateRequest]], call: Call) -> scene_pb2.UpdateReply:
        """Update a scene."""
        runtime = self._tenants.of(call)
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            header = receiver.header
            require(header.expected_version > 0, "expected_version", "the version that the update builds on", 0)
            length = len(header.update_id)
            require(length <= _MAX_UPDATE_ID, "update_id", f"at most {_MAX_UPDATE_ID} characters", length)
            made = stored_scene(runtime, call, header.scene_id).made_by(header.update_id)
            if made is not None:
                return scene_pb2.UpdateReply(scene=made)
            scene = stored_scene(runtime, call, header.scene_id, header.expected_version)
            kind = SCENE_KINDS[scene.kind]
            call.record.engine, call.record.operation = kind.engine, "update"
            change = kind.change(scene.content, header, runtime)
            payload_bytes = receiver.length(runtime.limits.payload_bytes)
            cost = Cost(bytes=payload_bytes + change.copied_bytes, payload_bytes=payload_bytes, is_repeatable=True)
            runtime.memory.check(cost)
            prepare = change.receive(receiver.payload(runtime.limits.payload_bytes, runtime.payload_memory))
        make = prepare(call)
        content = runtime.executor.run(lambda: make(call.times), call, cost)
        receiver.expect_end()
        scene_id, version = header.scene_id, header.expected_version
        replace = partial(runtime.scenes.replace, scene_id, version, content, header.update_id, call)
        updated = with_stored(runtime, call, replace)
        return scene_pb2.UpdateReply(scene=updated)

    def Get(self, request: scene_pb2.GetRequest, call: Call) -> Iterator[Frame[scene_pb2.GetReply]]:
        """Describe a scene, and send its tensors on request."""
        runtime = self._tenants.of(call)
        scene = _found(request, runtime, call)
        reply = scene_pb2.GetReply(info=_info(scene, runtime))
        payload = call.lane.writer()
        if request.with_tensors:
            require(scene.kind != LEVELS, "with_tensors", "false for a scene with levels: keep its files", "true")
            tensors = scene.content.tensors
            nbytes = sum(tensor.nbytes for tensor in tensors.values())
            runtime.payload_memory.reserve(nbytes, call)

            def work() -> Delivery[Sequence[Array]]:
                with call.times.stage("download"):
                    download = runtime.transfer.start_download(list(tensors.values()), [call.lane] * len(tensors))
                return Delivery(download.arrays, download)

            # No device memory is needed: the tensors are already there.
            arrays = runtime.executor.deliver(work, call, Cost(payload_bytes=nbytes, is_repeatable=True))
            sent = {name: payload.add(array) for name, array in zip(tensors, arrays, strict=True)}
            # A world may have many obstacles.
            call.turn.take(call.check)
            reply.scene.CopyFrom(scene.content.message(sent))
        with call.times.stage("encode"):
            yield from frames_of(reply, payload)

    def List(self, request: scene_pb2.ListRequest, call: Call) -> scene_pb2.ListReply:
        """Describe all scenes, or one page of them."""
        runtime, reply, nbytes = self._tenants.of(call), scene_pb2.ListReply(), 0
        # Listing takes a turn, because there may be many scenes.
        call.turn.take(call.check)
        scenes = {_key(scene.scene_id, runtime): scene for scene in runtime.scenes.all()}
        filed = set() if runtime.spool is None else runtime.spool.keys()
        keys = sorted(key for key in filed.union(scenes) if key > request.page_token)
        for key in keys[: request.page_size or None]:
            call.check()
            info = _info(scenes[key], runtime) if key in scenes else _filed(key, runtime)
            nbytes += 0 if info is None else info.ByteSize() + _FIELD_BYTES
            if nbytes > _MOST_LISTED_BYTES:
                break
            reply.next_page_token = key
            if info is not None:
                reply.scenes.append(info)
        if keys and reply.next_page_token < keys[-1]:
            if not request.page_size:
                what = f"there are {len(keys)} scenes, more than fit into one reply; ask for them in pages (page_size)"
                raise BusyError(what, None)
            return reply
        reply.next_page_token = ""
        stored = {runtime.named.name_of(scene.content_hash) for scene in scenes.values()}
        others = (named.name for named in runtime.named if named.name not in stored)
        reply.scenes.extend(scene_pb2.SceneInfo(name=name, kind="gaussians") for name in others)
        return reply

    def Delete(self, request: scene_pb2.DeleteRequest, call: Call) -> scene_pb2.DeleteReply:
        """Delete a scene, or take back one of its Puts."""
        runtime = self._tenants.of(call)
        is_deleted = True
        if request.one_put:
            is_deleted = runtime.scenes.take_back(request.scene_id)
        else:
            runtime.scenes.delete(request.scene_id)
        if is_deleted:
            runtime.pages.forget(request.scene_id)
        return scene_pb2.DeleteReply()


def _put_levels(
    receiver: Receiver[scene_pb2.PutRequest], arrival: Arrival, runtime: Runtime, call: Call
) -> scene_pb2.PutReply:
    """Write a scene with levels to the spool as it arrives."""
    header, spool = receiver.header, runtime.spool
    levels, field = header.scene.levels, "scene.levels"
    require(spool is not None, field, "a worker with a spool, which keeps the pages (--spool)", "one without")
    assert spool is not None
    table_bytes = check_header(levels, runtime.limits, field)
    runtime.scenes.check(table_bytes)
    allocate, stream = runtime.payload_memory.allocator(call), receiver.stream()
    table = stream.fill(allocate(table_bytes))
    call.turn.take(call.check)
    reader = PayloadReader(table)
    content = content_of(arrival, reader, call)
    length = content.table.payload_bytes
    require(header.payload_bytes == length, "payload_bytes", f"{length}, as the counts say", header.payload_bytes)
    computed = content_hash(levels, reader.read)
    require(header.content_hash in ("", computed), "content_hash", f"the hash of the content, {computed}", "another")
    call.turn.give()
    with spool.arriving(computed, call):
        present = stored_content(runtime, call, computed)
        if present is not None:
            return scene_pb2.PutReply(scene=present.info(), existed=True)
        scene = StoredScene(name_of_levels(computed), 1, computed, content)
        rows = checked_rows(content.table, stream, allocate, field, call)
        with runtime.scenes.room(content.bytes, call), runtime.scenes.counted(scene.scene_id):
            spool.write_levels(scene.info(), header.scene, LevelPayload(length, table, rows))
            runtime.scenes.restore(scene)
    return scene_pb2.PutReply(scene=scene.info())


def _key(scene_id: str, runtime: Runtime) -> str:
    """Return the sort key of a scene in lists, which is the same in memory and in a file."""
    return scene_id if runtime.spool is None else runtime.spool.key(scene_id)


def _filed(key: str, runtime: Runtime) -> scene_pb2.SceneInfo | None:
    return None if runtime.spool is None else runtime.spool.info_at(key)


def _info(scene: StoredScene, runtime: Runtime) -> scene_pb2.SceneInfo:
    info = scene.info()
    info.name = runtime.named.name_of(scene.content_hash)
    return info


def _found(request: scene_pb2.GetRequest, runtime: Runtime, call: Call) -> StoredScene:
    given = [name for name in ("scene_id", "content_hash", "name") if getattr(request, name)]
    require(len(given) == 1, "scene_id", "scene_id, content_hash or name", " and ".join(given) or "none")
    if request.name:
        return named_scene(runtime, call, request.name)
    if request.scene_id:
        return stored_scene(runtime, call, request.scene_id)
    scene = stored_content(runtime, call, request.content_hash)
    if scene is None:
        raise SceneNotFoundError("")
    return scene
