"""The reader of Render requests that differ only in their poses, against protobuf."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from lumigrad.kernels import _native
from lumigrad.v1 import camera_pb2, image_pb2, render_pb2

POSE = [0.0, -0.0, 1.0, 0.5, 1e-300, -7.25, 1e30, 3.0, 0.1], [-2.0, 0.0, 1e-9]


def camera(rotation: list[float] = POSE[0], translation: list[float] = POSE[1], **changes: Any) -> camera_pb2.Camera:
    values = {"fx": 50.0, "fy": 51.0, "cx": 16.0, "cy": 12.0, **changes}
    model = camera_pb2.OpenCVCamera(rotation=rotation, translation=translation, **values)
    return camera_pb2.Camera(width=32, height=24, opencv=model)


def request(*cameras: camera_pb2.Camera, **changes: Any) -> render_pb2.RenderRequest:
    message = render_pb2.RenderRequest(**changes)
    message.spec.scene_ref.scene_id = "0123abcd"
    message.spec.gaussians.background.extend([0.5, 0.25, 1.0])
    message.spec.cameras.extend(cameras or [camera()])
    return message


def without_poses(raw: bytes) -> render_pb2.RenderRequest:
    message = render_pb2.RenderRequest.FromString(raw)
    for each in message.spec.cameras:
        each.opencv.rotation[:] = [0.0] * 9
        each.opencv.translation[:] = [0.0] * 3
    return message


def read(message: render_pb2.RenderRequest) -> _native.RenderRequest | None:
    return _native.read_render_request(message.SerializeToString())


def test_scene_and_poses_are_found() -> None:
    message = request(camera(), camera([2.0] * 9, [3.0] * 3), camera())
    message.spec.scene_ref.version = 1 << 40
    found = read(message)
    assert found is not None
    assert (*found.kind[:2], len(found)) == ("0123abcd", 1 << 40, 3)


def named() -> render_pb2.RenderRequest:
    message = request()
    message.spec.scene_ref.Clear()
    message.spec.scene_ref.name = "street"
    return message


VARIANTS = {
    "focal length": request(camera(fx=50.5)),
    "principal point": request(camera(cx=0.0)),
    "lens": request(camera(distortion=[0.1, 0.0, 0.0, 0.0])),
    "projection": request(camera(projection=camera_pb2.PROJECTION_FISHEYE)),
    "two cameras": request(camera(), camera()),
    "format": request(formats=[image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_UINT8)]),
    "plain": request(),
    "retained": request(retain=True),
    "named": named(),
}


def test_keys_differ_by_all_but_the_poses() -> None:
    keys = {name: read(message).kind[2] for name, message in VARIANTS.items()}
    assert len(set(keys.values())) == len(keys)
    moved = request(camera([3.0] * 9, [4.0] * 3))
    assert read(moved).kind[2] == keys["plain"]


def sent() -> render_pb2.RenderRequest:
    message = request()
    message.spec.scene.gaussians.SetInParent()
    return message


def replaced() -> render_pb2.RenderRequest:
    message = request()
    message.spec.tensors.add(name="opacities")
    return message


def of_inria() -> render_pb2.RenderRequest:
    return request(camera_pb2.Camera(width=32, height=24, inria=camera_pb2.InriaCamera(view_matrix=[1.0] * 16)))


OTHERS = {
    "sent": sent(),
    "with tensors": replaced(),
    "of Inria": of_inria(),
    "with data": request(data=b"1234"),
    "with a payload": request(payload_bytes=4),
    "short rotation": request(camera([1.0] * 8)),
    "long translation": request(camera(translation=[1.0] * 4)),
    "no translation": request(camera(translation=[])),
    "NaN": request(camera([float("nan")] * 9)),
    "infinite": request(camera(translation=[0.0, float("inf"), 0.0])),
    "no model": request(camera_pb2.Camera(width=32, height=24)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_requests_are_left_alone(name: str) -> None:
    assert read(OTHERS[name]) is None


def test_names_that_are_no_text_are_left_alone() -> None:
    raw = request().SerializeToString()
    assert _native.read_render_request(raw.replace(b"0123abcd", b"0123\xf2bcd")) is None


def test_fields_that_occur_twice_are_left_alone() -> None:
    """Protobuf would merge them."""
    raw = request().SerializeToString()
    assert _native.read_render_request(raw) is not None
    assert _native.read_render_request(raw + raw) is None
    extra = render_pb2.RenderRequest()
    extra.spec.cameras.append(camera())
    assert _native.read_render_request(raw + extra.SerializeToString()) is None


def test_whatever_is_read_is_what_protobuf_reads() -> None:
    """Random bytes are changed: requests that are accepted parse, and those with equal keys differ only in poses."""
    source = random.Random(7)
    whole = [message.SerializeToString() for message in VARIANTS.values()]
    of_key: dict[bytes, render_pb2.RenderRequest] = {}
    accepted = 0
    for _ in range(30_000):
        raw = bytearray(source.choice(whole))
        for _ in range(source.randrange(1, 4)):
            position = source.randrange(len(raw))
            raw[position] = source.choice((source.randrange(256), raw[position] ^ 1 << source.randrange(8)))
        if source.random() < 0.2:
            del raw[source.randrange(len(raw)) :]
        found = _native.read_render_request(bytes(raw))
        if found is None:
            continue
        accepted += 1
        try:
            message = render_pb2.RenderRequest.FromString(bytes(raw))
        except DecodeError:
            # The key has the damaged bytes then, so that it cannot be the key of a request that was parsed.
            assert found.kind[2] not in of_key
            continue
        reference = message.spec.scene_ref
        assert found.kind[:2] == ((reference.name, -1) if reference.name else (reference.scene_id, reference.version))
        assert not (reference.name and reference.scene_id)
        assert len(found) == len(message.spec.cameras)
        assert not (message.data or message.payload_bytes or message.spec.tensors)
        assert all(len(each.opencv.rotation) == 9 for each in message.spec.cameras)
        assert without_poses(bytes(raw)) == of_key.setdefault(found.kind[2], without_poses(bytes(raw)))
    assert accepted > 1000
    assert len(of_key) > 100


def test_no_bytes_are_read_beyond_the_end() -> None:
    raw = request(camera(), camera()).SerializeToString()
    for end in range(len(raw)):
        assert _native.read_render_request(raw[:end]) is None
    for before, after in pairwise(range(0, len(raw), 7)):
        _native.read_render_request(raw[:before] + struct.pack("<Q", 1 << 63) + raw[after:])
