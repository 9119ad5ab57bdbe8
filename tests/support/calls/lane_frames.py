"""Frames of streams whose images go by a lane, with a lease for each."""

from __future__ import annotations

import itertools
from typing import Any

from lumigrad.protos.frame_stream import FrameAnswer
from lumigrad.protos.lanes import ToCaller
from lumigrad.v1 import image_pb2, render_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, opencv_camera
from support.calls.raw_frames import RawFrames
from support.calls.raw_lane import RawLane

SIZE = (401, 301)


def camera(view: int, size: tuple[int, int] = SIZE) -> Any:
    return opencv_camera(*size, x=0.01 * view)


def stored_request(
    client: RawClient, outputs: tuple[str, ...] = ("color",), form: int = image_pb2.IMAGE_FORMAT_FLOAT32, **size: Any
) -> render_pb2.RenderRequest:
    scene_id = client.put(gaussian_cloud(60)).scene.scene_id
    spec = gaussian_spec(camera(0, **size), scene_id=scene_id, outputs=outputs)
    return render_pb2.RenderRequest(spec=spec, formats=[image_pb2.OutputFormat(name="color", format=form)])


class LaneFrames(RawFrames):
    """A stream whose frames go by a lane, each with a lease of its own number."""

    def __init__(self, client: RawClient, render: render_pb2.RenderRequest, lane: RawLane, **options: Any) -> None:
        """Sends `render` as the first frame; frames with cameras like its are prepared from then on."""
        super().__init__(client, **options)
        self.lane, self._leases, self._by_number = lane, itertools.count(1), dict[int, int]()
        self.size = render.spec.cameras[0].width, render.spec.cameras[0].height
        self.send(render=render, lane=self.named())
        self.read()
        for view in range(2):
            self.ask(view)
            self.read()

    def named(self) -> str:
        self.lease = next(self._leases)
        return self.lane.metadata(self.lease)[0][1]

    def ask(self, view: int, **fields: Any) -> int:
        number = self.send(cameras=[camera(view, self.size)], lane=self.named(), **fields)
        self._by_number[number] = self.lease
        return number

    def outputs(self, answer: FrameAnswer) -> list[bytes]:
        """The content of the regions of an answer."""
        assert answer.reply is not None, answer.status
        found = []
        for output in answer.reply.outputs:
            span = output.tensor.region
            assert output.tensor.HasField("region")
            while span.region not in self.lane.regions:
                self.lane.expect(ToCaller.REGION)
            found.append(self.lane.regions[span.region][span.offset : span.offset + span.length].tobytes())
        return found

    def read(self) -> list[bytes]:
        """The outputs of the next answer, whose lease ends then."""
        answer = self.receive()
        found = self.outputs(answer)
        self.lane.release(self._by_number.get(answer.number, self.lease))
        return found


def region_of(answer: FrameAnswer) -> int:
    assert answer.reply is not None, answer.status
    return int(answer.reply.outputs[0].tensor.region.region)


def expected(client: RawClient, render: render_pb2.RenderRequest, view: int) -> list[bytes]:
    """The outputs that a Render gives without a lane."""
    spec = render_pb2.RenderSpec()
    spec.CopyFrom(render.spec)
    size = spec.cameras[0].width, spec.cameras[0].height
    del spec.cameras[:]
    spec.cameras.append(camera(view, size))
    frames = client.render(spec, formats=render.formats).frames
    data = b"".join(bytes(frame.data) for frame in frames)
    spans = [output.tensor.payload for output in frames[0].message.outputs]
    return [data[span.offset : span.offset + span.length] for span in spans]
