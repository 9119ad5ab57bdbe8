"""Runs rollouts by AlpaSim's own client modules, in a separate process, since others may have its messages' names.

    python -m support.driving.alpasim_rollouts CHECKOUT TARGET SCENE ROLLOUTS STEPS FOLDER

Prints a line for each step, and at the end the numbers of pictures and of logged messages, as JSON. Stubs and logs are
written to FOLDER.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

from support.driving import alpasim_geometry
from support.driving.scenes import AROUND, END_US, FRONT, START_US, WIDE

NEEDED = ("omegaconf", "csaps", "aiofiles", "dataclasses_json", "yaml")
_FRAME_US = 5_000
_CAMERAS = (WIDE, FRONT, AROUND)


def prepare(checkout: Path, folder: Path) -> None:
    """Generates AlpaSim's stubs, and lets its packages be imported."""
    from grpc_tools import protoc

    protos = checkout / "src" / "grpc"
    files = sorted(str(path.relative_to(protos)) for path in (protos / "alpasim_grpc" / "v0").glob("*.proto"))
    if not files or protoc.main(["", f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}", *files]):
        raise SystemExit(f"expected a checkout of AlpaSim, whose protos compile, in {checkout}")
    # The original __init__ asks for the version of the installed package.
    (folder / "alpasim_grpc" / "__init__.py").write_text("API_VERSION_MESSAGE = None\n")
    sys.path[:0] = [str(folder), *(str(checkout / "src" / name) for name in ("runtime", "utils"))]
    sys.modules["utils_rs"] = alpasim_geometry  # type: ignore[assignment]


class Rollout:
    """One simulation: a service with a channel, a log, and steps that each render all cameras."""

    def __init__(self, target: str, scene_id: str, steps: int, log: Path) -> None:
        from alpasim_runtime.camera_catalog import CameraCatalog
        from alpasim_runtime.services.sensorsim_service import SensorsimService
        from alpasim_runtime.types import Clock, RuntimeCamera

        self._scene_id, self._steps, self._log = scene_id, steps, log
        self._service = SensorsimService(target, skip=False, camera_catalog=CameraCatalog(None))
        interval = (END_US - START_US - _FRAME_US) // steps
        self._cameras = [RuntimeCamera(name, (64, 96), Clock(interval, _FRAME_US, START_US)) for name in _CAMERAS]
        still = [[0, 0, 0, 1]] * 2
        self._ego = alpasim_geometry.Trajectory((START_US, END_US), [[0, 0, 0], [3, 0, 0]], still)
        car = alpasim_geometry.Trajectory((START_US, END_US), [[9, 3, 1.6], [9, -3, 1.6]], still)
        # The simulator's own objects, one of which is in the scene.
        self._traffic = {"car": car, "pedestrian-7": car}

    async def run(self) -> tuple[int, int]:
        """Makes all steps; returns the numbers of pictures and of logged messages."""
        from alpasim_grpc.v0.sensorsim_pb2 import ImageFormat
        from alpasim_runtime.broadcaster import MessageBroadcaster
        from alpasim_runtime.services.session_configs import RendererSessionConfig
        from alpasim_utils.logs import LogWriter

        source: Any = SimpleNamespace(scene_id=self._scene_id)
        config = RendererSessionConfig(source, self._cameras, self._ego, "jpeg", "rig-1")
        counter, pictures = _Counter(), 0
        broadcaster = MessageBroadcaster([LogWriter(str(self._log)), counter])
        async with broadcaster, self._service.rollout_session(self._log.stem, broadcaster, config) as service:
            for step in range(self._steps):
                triggers = [(camera, camera.clock.ith_trigger(step)) for camera in self._cameras]
                given = (self._ego, self._traffic, self._scene_id, ImageFormat.JPEG, "rig-1")
                # One call for all cameras, as by default; in each tenth step, one call per camera.
                if step % 10:
                    found, _ = await service.batch_render(triggers, *given)
                else:
                    found = [await service.render(*given[:2], *pair, *given[2:]) for pair in triggers]
                pictures += self._checked(found, triggers)
                print(json.dumps({"step": step}), flush=True)
        return pictures, counter.messages

    @staticmethod
    def _checked(found: list[Any], triggers: list[Any]) -> int:
        """Checks that each picture is of its camera and trigger, and large enough; returns the number of pictures."""
        for picture, (camera, trigger) in zip(found, triggers, strict=True):
            assert picture.camera_logical_id == camera.logical_id
            assert picture.start_timestamp_us == trigger.time_range_us.start
            image = Image.open(io.BytesIO(picture.image_bytes))
            height, width = camera.render_resolution_hw
            assert image.width >= width and image.height >= height and image.getextrema() != ((0, 0),) * 3
        return len(found)


class _Counter:
    """Counts what is broadcast."""

    messages = 0

    async def on_message(self, message: Any) -> None:
        self.messages += 1


async def _all(target: str, scene_id: str, rollouts: int, steps: int, folder: Path) -> dict[str, int]:
    made = [Rollout(target, scene_id, steps, folder / f"rollout-{k}.asl") for k in range(rollouts)]
    pictures, messages = zip(*await asyncio.gather(*(each.run() for each in made)), strict=True)
    return {"pictures": sum(pictures), "messages": sum(messages)}


def main() -> None:
    """Runs the rollouts that the command line asks for."""
    logging.basicConfig(level=logging.WARNING, force=True)
    checkout, target, scene_id, rollouts, steps, folder = sys.argv[1:]
    prepare(Path(checkout), Path(folder))
    print(json.dumps(asyncio.run(_all(target, scene_id, int(rollouts), int(steps), Path(folder)))), flush=True)


if __name__ == "__main__":
    main()
