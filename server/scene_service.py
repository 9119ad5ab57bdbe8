"""SceneService: scenes come, change, and go."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lumigrad.protos.hashing import content_hash
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.arrivals import check_float32, check_shape, shapes_of, uploader
from lumigrad.server.call import Call
from lumigrad.server.engines import SCENE_KINDS, kind_of
from lumigrad.server.errors import SceneNotFoundError
from lumigrad.server.limits import require
from lumigrad.server.runtime import Runtime
from lumigrad.server.scene_kind import checked_tensors
from lumigrad.server.scenes import StoredScene, Tensors
from lumigrad.server.uploads import Receiver
from lumigrad.v1 import scene_pb2, tensor_pb2

_HASH = re.compile(r"[0-9a-f]{64}")


class SceneService:
    """The methods of `lumigrad.v1.SceneService`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def Put(self, frames: Iterator[Frame[scene_pb2.PutRequest]], call: Call) -> scene_pb2.PutReply:
        """Store a scene, unless its content is here."""
        runtime = self._runtime
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            header = receiver.header
            kind = kind_of(header.scene, "scene")
            field = f"scene.{kind.name}"
            claimed = header.content_hash
            require(
                not claimed or _HASH.fullmatch(claimed) is not None, "content_hash", "64 hexadecimal digits", claimed
            )
            expected = checked_tensors(header.scene, kind, runtime.limits, field)
            present = runtime.scenes.find_content(claimed) if claimed else None
            if present is not None:
                return scene_pb2.PutReply(scene=present.info(), existed=True)
            reader = receiver.payload(runtime.limits.payload_bytes, runtime.transit)
            upload = uploader(expected, reader, runtime.transfer, field)
            computed = content_hash(getattr(header.scene, kind.name), reader.read)
            require(claimed in ("", computed), "content_hash", f"the hash of the content, {computed}", claimed)

        def work() -> Tensors:
            with call.times.stage("upload"):
                tensors = upload()
                kind.check_values(tensors, field)
                runtime.transfer.finish()
            return tensors

        tensors = runtime.executor.run(work, call)
        receiver.expect_end()
        scene, existed = runtime.scenes.add(computed, kind.name, tensors, kind.count(shapes_of(expected)))
        return scene_pb2.PutReply(scene=scene.info(), existed=existed)

    def Update(self, frames: Iterator[Frame[scene_pb2.UpdateRequest]], call: Call) -> scene_pb2.UpdateReply:
        """Replace tensors of a scene."""
        runtime = self._runtime
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            header = receiver.header
            require(header.expected_version > 0, "expected_version", "the version that the update builds on", 0)
            scene = runtime.scenes.find(header.scene_id, header.expected_version)
            tensors = _checked_update(header, scene)
            reader = receiver.payload(runtime.limits.payload_bytes, runtime.transit)
            upload = uploader(tensors, reader, runtime.transfer, "tensors")

        def work() -> Tensors:
            with call.times.stage("upload"):
                uploaded = upload()
                SCENE_KINDS[scene.kind].check_values({**scene.tensors, **uploaded}, "tensors")
                runtime.transfer.finish()
            return uploaded

        uploaded = runtime.executor.run(work, call)
        receiver.expect_end()
        updated = runtime.scenes.update(header.scene_id, header.expected_version, uploaded)
        return scene_pb2.UpdateReply(scene=updated.info())

    def Get(self, request: scene_pb2.GetRequest, call: Call) -> Iterator[Frame[scene_pb2.GetReply]]:
        """Describe a scene, and send its tensors if asked."""
        scene = self._find(request)
        reply = scene_pb2.GetReply(info=scene.info())
        payload = PayloadWriter()
        if request.with_tensors:
            sent = getattr(reply.scene, scene.kind)
            names, tensors = list(scene.tensors), list(scene.tensors.values())

            def work() -> None:
                with call.times.stage("download"):
                    for name, array in zip(names, self._runtime.transfer.download(tensors), strict=True):
                        getattr(sent, name).CopyFrom(payload.add(array))

            self._runtime.executor.run(work, call)
        with call.times.stage("encode"):
            yield from frames_of(reply, payload)

    def List(self, _: scene_pb2.ListRequest, __: Call) -> scene_pb2.ListReply:
        """Describe every scene."""
        return scene_pb2.ListReply(scenes=[scene.info() for scene in self._runtime.scenes.all()])

    def Delete(self, request: scene_pb2.DeleteRequest, _: Call) -> scene_pb2.DeleteReply:
        """Forget a scene."""
        self._runtime.scenes.delete(request.scene_id)
        return scene_pb2.DeleteReply()

    def _find(self, request: scene_pb2.GetRequest) -> StoredScene:
        given = [name for name in ("scene_id", "content_hash") if getattr(request, name)]
        require(len(given) == 1, "scene_id", "either scene_id or content_hash", " and ".join(given) or "neither")
        if request.scene_id:
            return self._runtime.scenes.find(request.scene_id)
        scene = self._runtime.scenes.find_content(request.content_hash)
        if scene is None:
            raise SceneNotFoundError("")
        return scene


def _checked_update(header: scene_pb2.UpdateRequest, scene: StoredScene) -> dict[str, tensor_pb2.Tensor]:
    tensors: dict[str, tensor_pb2.Tensor] = {}
    require(len(header.tensors) > 0, "tensors", "at least one tensor", "none")
    for index, entry in enumerate(header.tensors):
        where = f"tensors[{index}]"
        limit = f"one of {', '.join(scene.tensors)}, each once"
        require(entry.name in scene.tensors and entry.name not in tensors, f"{where}.name", limit, entry.name)
        check_float32(entry.tensor, where)
        check_shape(entry.tensor.shape, scene.tensors[entry.name].shape, where)
        tensors[entry.name] = entry.tensor
    return tensors
