"""Bounds of every repeated field and size, checked on the bytes before protobuf reads them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import SERVICE_NAMES, methods
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import Limits

# Names, hashes and tokens.
_NAME = 256
# Outputs of a call, and whatever there is one of for each of them.
_OUTPUTS = 64
# Numbers of a matrix or a vector and sizes of a tensor, whose exact counts are checked where they are read. They are as
# many as leave a message of 256 bytes, as most cameras and obstacles are, no room for anything that is over a bound.
_MATRIX = 64
_DIMENSIONS = 256
_VIEWS = 1 << 16
# Numbers that are compared or kept and never counted to.
_NUMBER = (1 << 64) - 1
# Sizes that count in a product or within something else, which is checked where that is known: the pixels of all
# cameras, the obstacles of a world, the Gaussians of a scene.
_WITH_OTHERS = (1 << 64) - 1

# Of repeated fields and maps, how many; of strings and bytes, how many bytes; of integers, the largest. Texts name a
# limit of the worker.
BOUNDS: Mapping[str, int | str] = {
    "BackwardRequest.data": "payload_bytes",
    "BackwardRequest.payload_bytes": "payload_bytes",
    "BackwardSpec.context_id": _NAME,
    "BackwardSpec.output_gradients": _OUTPUTS,
    "BackwardSpec.wanted": _OUTPUTS,
    "Camera.height": _WITH_OTHERS,
    "Camera.width": _WITH_OTHERS,
    "Cuboid.size": _MATRIX,
    "DefaultStrategy.every": _NUMBER,
    "DefaultStrategy.pause_after_reset": _NUMBER,
    "DefaultStrategy.reset_every": _NUMBER,
    "DefaultStrategy.screen_stop": _NUMBER,
    "DefaultStrategy.start": _NUMBER,
    "DefaultStrategy.stop": _NUMBER,
    "DeleteRequest.scene_id": _NAME,
    "DensityControl.max_count": _WITH_OTHERS,
    "DistanceBackwardRequest.data": "payload_bytes",
    "DistanceBackwardRequest.payload_bytes": "payload_bytes",
    "DistanceBackwardSpec.context_id": _NAME,
    "DistanceBackwardSpec.output_gradients": _OUTPUTS,
    "DistanceBackwardSpec.wanted": _OUTPUTS,
    "DistanceSettings.samples": _WITH_OTHERS,
    "DistanceSpec.outputs": _OUTPUTS,
    "EncodedImages.lengths": "cameras",
    "FieldRequest.environment": _WITH_OTHERS,
    "FieldRequest.size": _MATRIX,
    "GaussianSettings.background": "channels",
    "GaussianSettings.sh_degree": _WITH_OTHERS,
    "GaussianSettings.transforms": "obstacles",
    "GetRequest.content_hash": _NAME,
    "GetRequest.scene_id": _NAME,
    "InriaCamera.full_projection": _MATRIX,
    "InriaCamera.position": _MATRIX,
    "InriaCamera.view_matrix": _MATRIX,
    "McmcStrategy.cap": _WITH_OTHERS,
    "McmcStrategy.every": _NUMBER,
    "McmcStrategy.start": _NUMBER,
    "McmcStrategy.stop": _NUMBER,
    "NamedTensor.name": _NAME,
    "Obstacle.environment": _WITH_OTHERS,
    "Obstacle.mesh_id": _NAME,
    "Obstacle.mesh_version": _NUMBER,
    "Obstacle.name": _NAME,
    "ObstacleUpdate.name": _NAME,
    "OpenCVCamera.distortion": _MATRIX,
    "OpenCVCamera.rotation": _MATRIX,
    "OpenCVCamera.translation": _MATRIX,
    "Optimizer.rates": _OUTPUTS,
    "OutputFormat.name": _NAME,
    "OutputFormat.quality": _NUMBER,
    "Peers.group": _NAME,
    "Peers.rank": _NUMBER,
    "Peers.rendezvous": _NAME,
    "Peers.size": _WITH_OTHERS,
    "Pose.values": _MATRIX,
    "PulsarCamera.parameters": _MATRIX,
    "PutRequest.content_hash": _NAME,
    "PutRequest.data": "payload_bytes",
    "PutRequest.payload_bytes": "payload_bytes",
    "QueryRequest.data": "payload_bytes",
    "QueryRequest.payload_bytes": "payload_bytes",
    "Rate.steps": _NUMBER,
    "RatesEntry.key": _NAME,
    "RegionSpan.length": _WITH_OTHERS,
    "RegionSpan.offset": _WITH_OTHERS,
    "RegionSpan.region": _NUMBER,
    "ReleaseRequest.context_id": _NAME,
    "RenderRequest.data": "payload_bytes",
    "RenderRequest.formats": _OUTPUTS,
    "RenderRequest.payload_bytes": "payload_bytes",
    "RenderSpec.cameras": "cameras",
    "RenderSpec.outputs": _OUTPUTS,
    "SceneRef.scene_id": _NAME,
    "SceneRef.version": _NUMBER,
    "SliceTransform.begin": _WITH_OTHERS,
    "SliceTransform.end": _WITH_OTHERS,
    "SliceTransform.matrix": _MATRIX,
    "Span.length": _WITH_OTHERS,
    "Span.offset": _WITH_OTHERS,
    "SphereSettings.background": "channels",
    "SphereSettings.max_hits": _WITH_OTHERS,
    "SphereSettings.n_track": _WITH_OTHERS,
    "Step.batch": _WITH_OTHERS,
    "Step.number": _NUMBER,
    "Step.outputs": _OUTPUTS,
    "Step.views": "cameras",
    "StepGradients.number": _NUMBER,
    "StepGradients.output_gradients": _OUTPUTS,
    "Tensor.inline": "payload_bytes",
    "Tensor.shape": _DIMENSIONS,
    "TrainRequest.data": "payload_bytes",
    "TrainRequest.payload_bytes": "payload_bytes",
    "TrainingSpec.seed": _NUMBER,
    "TrainingSpec.sh_degree_every": _NUMBER,
    "TrainingSpec.snapshot_every": _NUMBER,
    "TrainingStart.at_step": _NUMBER,
    "TrainingStart.holder": _NUMBER,
    "TrainingStart.lease": _NAME,
    "TrainingStart.start_id": _NAME,
    "TrainingStart.training_id": _NAME,
    "TrainingStart.undelivered": _NUMBER,
    "TrainingStart.views": _VIEWS,
    "TrainingView.target": _NAME,
    "UpdateRequest.data": "payload_bytes",
    "UpdateRequest.expected_version": _NUMBER,
    "UpdateRequest.obstacles": "obstacles",
    "UpdateRequest.payload_bytes": "payload_bytes",
    "UpdateRequest.scene_id": _NAME,
    "UpdateRequest.tensors": _OUTPUTS,
    "UpdateRequest.update_id": _NAME,
    "World.environments": _WITH_OTHERS,
    "World.obstacles": "obstacles",
}

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


def needs_bound(field: FieldDescriptor) -> bool:
    """Whether a field repeats or has a size, and so must stand in `BOUNDS`."""
    return bool(field.is_repeated) or field.cpp_type in _INTEGERS | {FieldDescriptor.CPPTYPE_STRING}


# Of all fields that are looked at in one message and the messages in it: more than a training's start has whose views
# fill what gRPC takes as one message. It bounds how long a check takes.
_MOST_FIELDS = 1 << 18
# Fields after which a check waits for others that are as long, so that they do not all keep short ones from Python.
_MANY_FIELDS = 1 << 12
# Bytes of a message in parts that are too small to be over any bound, which are not looked into. They have room for no
# more than half as many empty messages.
_MOST_UNSEEN = 3 << 19
# Of the fields of one message that do not repeat, and of those that are unknown: an encoder writes each once.
_MOST_SINGLE = 1024
_MOST_VARINT_BYTES = 10
_LARGEST = (1 << 64) - 1
_LENGTH_DELIMITED = 2
# Kinds of fields that begin with their value as a varint, or with its length.
_MEASURED = (0, _LENGTH_DELIMITED)
# Bytes of values by kind.
_FIXED = {1: 8, 5: 4}
# Bytes of a number in a packed field; of others it varies.
_PACKED = {FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FLOAT: 4}


class RequestCheck:
    """Checks requests against the bounds of a worker with some limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Whoever has it checks a message of many fields.
        self._long = threading.Lock()
        # By the full names of messages.
        self._rules: dict[str, _Rules] = {}
        # Before any call: a thread must not find the rules of a message half made.
        for service in SERVICE_NAMES:
            for method in methods(service):
                self._of(method.request)

    def check(self, kind: Descriptor, raw: bytes) -> None:
        """Refuse the bytes of a message of which any field is over its bound."""
        scan = _Scan(raw, kind.name, self._long)
        try:
            scan.check(0, len(raw), self._rules[kind.full_name])
        except IndexError:
            raise _malformed(kind.name, raw) from None
        finally:
            scan.end()

    def _of(self, kind: Descriptor) -> _Rules:
        found = self._rules.get(kind.full_name)
        if found is None:
            found = self._rules[kind.full_name] = _Rules(
                {field.number: self._rule(kind, field) for field in kind.fields}
            )
        return found

    def _rule(self, kind: Descriptor, field: FieldDescriptor) -> _Rule:
        bound = BOUNDS[f"{kind.name}.{field.name}"] if needs_bound(field) else _LARGEST
        return _Rule(
            name=field.name,
            most=getattr(self._limits, bound) if isinstance(bound, str) else bound,
            is_repeated=bool(field.is_repeated),
            is_packable=bool(field.is_repeated)
            and field.message_type is None
            and field.cpp_type != FieldDescriptor.CPPTYPE_STRING,
            is_text=field.cpp_type == FieldDescriptor.CPPTYPE_STRING,
            width=_PACKED.get(field.type, 0),
            inner=None if field.message_type is None else self._of(field.message_type),
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a field may be."""

    name: str
    most: int
    is_repeated: bool
    # Whether its numbers may stand together in one value.
    is_packable: bool
    is_text: bool
    # Bytes of each of them; 0 where that varies.
    width: int
    # For the fields of the message in it.
    inner: _Rules | None

    @property
    def harmless_bytes(self) -> int:
        """Bytes of a message that has no room for so much of this field that it is over its bound."""
        inner = _LARGEST if self.inner is None else self.inner.harmless_bytes
        if self.is_packable:
            return self.most * (self.width or 1)
        if self.is_repeated:
            return min(2 * self.most, inner)
        if self.is_text or self.most == _LARGEST:
            return min(self.most, inner)
        return 0


class _Rules:
    """What the fields of a message may be, by their numbers."""

    def __init__(self, fields: dict[int, _Rule]) -> None:
        self.fields = fields
        # A message that is no longer has nothing in it that is over a bound.
        self.harmless_bytes = min([2 * _MOST_SINGLE, *(rule.harmless_bytes for rule in fields.values())])


class _Scan:
    """Counts and measures the fields in the bytes of one message; raises IndexError if the bytes end early."""

    def __init__(self, raw: bytes, name: str, long: threading.Lock) -> None:
        self._raw = raw
        self._name = name
        self._long = long
        self._is_long = False
        self._left = _MOST_FIELDS
        self._unseen = _MOST_UNSEEN

    def end(self) -> None:
        """Let the next long check go on."""
        if self._is_long:
            self._long.release()

    def check(self, position: int, stop: int, rules: _Rules) -> None:
        """Raise an error at the first field between two places that is over its bound."""
        counts: dict[int, int] = {}
        raw, fields = self._raw, rules.fields
        while position < stop:
            tag = raw[position]
            position += 1
            if tag >= 0x80:
                tag, position = self._varint(position - 1)
            number, kind = tag >> 3, tag & 7
            if kind in _MEASURED:
                value = raw[position]
                position += 1
                if value >= 0x80:
                    value, position = self._varint(position - 1)
                end = position + value if kind else position
            else:
                value = 0
                position = end = position + self._fixed(kind)
            if end > stop:
                raise _malformed(self._name, raw)
            rule = fields.get(number)
            more, most = 1, _MOST_SINGLE
            if rule is None or not rule.is_repeated:
                # Fields that do not repeat share one count.
                number = 0
            else:
                most = rule.most
                if rule.is_packable and kind == _LENGTH_DELIMITED:
                    more = self._entries(rule, position, end)
            counts[number] = count = counts.get(number, 0) + more
            self._left -= 1
            if self._left == _MOST_FIELDS - _MANY_FIELDS:
                self._is_long = self._long.acquire()
            if self._left < 0 or count > most:
                raise self._too_many(rule if number else None, count)
            if rule is not None:
                self._look_into(rule, kind, value, position, count - 1)
            position = end

    def _look_into(self, rule: _Rule, kind: int, value: int, position: int, index: int) -> None:
        if rule.inner is None:
            if value > rule.most and not rule.is_repeated:
                unit = " bytes" if kind == _LENGTH_DELIMITED or rule.name.endswith("_bytes") else ""
                limit = f"at most {rule.most}{unit}"
                raise InvalidArgumentError(rule.name, limit, value)
        elif kind == _LENGTH_DELIMITED:
            if value <= rule.inner.harmless_bytes and value <= self._unseen:
                self._unseen -= value
                return
            try:
                self.check(position, position + value, rule.inner)
            except InvalidArgumentError as error:
                where = f"{rule.name}[{index}]" if rule.is_repeated else rule.name
                raise InvalidArgumentError(f"{where}.{error.field}", error.limit, error.value) from None

    def _fixed(self, kind: int) -> int:
        if kind not in _FIXED:
            raise _malformed(self._name, self._raw)
        return _FIXED[kind]

    def _varint(self, position: int) -> tuple[int, int]:
        value = 0
        for index in range(_MOST_VARINT_BYTES):
            byte = self._raw[position + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value & _LARGEST, position + index + 1
        raise _malformed(self._name, self._raw)

    def _entries(self, rule: _Rule, start: int, stop: int) -> int:
        """How many entries of a repeated field stand in one value of bytes: numbers may stand together."""
        if rule.width or stop - start <= rule.most:
            return (stop - start) // (rule.width or 1)
        # Each ends with a byte below 128.
        return sum(byte < 0x80 for byte in self._raw[start:stop])

    def _too_many(self, rule: _Rule | None, count: int) -> InvalidArgumentError:
        if rule is not None and count > rule.most:
            return InvalidArgumentError(rule.name, f"at most {rule.most} {rule.name}", f"at least {count}")
        limit = f"each field once, and at most {_MOST_FIELDS} fields in all"
        return InvalidArgumentError("*", limit, f"at least {count} in one message")


def _malformed(name: str, raw: bytes) -> ProtocolError:
    return ProtocolError(name, "a well-formed message", f"{len(raw)} bytes that are not")
