"""Renders a turn around a scene from a coroutine: frame by frame, and as a stream with several frames on their way.

Something else goes on in the event loop meanwhile: it looks at the worker's queue. At the end a render that nobody
wants to wait for is given up, here and on the worker.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

import knot
from local_worker import worker
from lumigrad.client.aio import AsyncClient
from lumigrad.client.pictures import write_image

WIDTH, HEIGHT = 240, 180
SHOWN = 6
SETTINGS: dict[str, Any] = {
    "gamma": 1e-4, "min_depth": knot.NEAREST, "max_depth": knot.FARTHEST, "background": knot.BACKGROUND
}  # fmt: skip


def main() -> int:
    """Makes the turn; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=120, help="(default: 120)")
    parser.add_argument("--in-flight", type=int, default=4, help="frames on their way at a time (default: 4)")
    parser.add_argument("--output", type=Path, default=Path("turn_output"), help="(default: turn_output)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with worker(arguments.output / "worker.log") as target:
        asyncio.run(turn(target, arguments.frames, arguments.in_flight, arguments.output))
    return 0


async def turn(target: str, count: int, in_flight: int, output: Path) -> None:
    """Renders the turn both ways, and writes some of its frames side by side."""
    cameras = [knot.camera(360 * index / count, 15, WIDTH, HEIGHT) for index in range(count)]
    async with AsyncClient(target) as client:
        scene = await client.put(knot.knot())
        async with looking_at_the_queue(client) as seen:
            began = time.perf_counter()
            for camera in cameras:
                await client.render(scene, camera, **SETTINGS)
            singly = count / (time.perf_counter() - began)
            began, pictures = time.perf_counter(), []
            async with client.stream(scene, in_flight=in_flight, **SETTINGS) as stream:
                async for frame in stream.frames(cameras):
                    pictures.append(frame.color)
            streamed = count / (time.perf_counter() - began)
        print(f"{singly:.0f} frames a second one by one, {streamed:.0f} with {in_flight} on their way")
        print(f"meanwhile the loop looked at the queue {len(seen)} times")
        write_image(output / "turn.png", np.concatenate(pictures[:: max(1, count // SHOWN)][:SHOWN], axis=1))
        try:
            await asyncio.wait_for(client.render(scene, (cameras * 256)[:256], **SETTINGS), timeout=0.1)
        except asyncio.TimeoutError:
            print("a render was given up after 0.1 s")


@asynccontextmanager
async def looking_at_the_queue(client: AsyncClient) -> AsyncIterator[list[int]]:
    """Collects how many calls wait for the worker's device, before the block and while it runs."""
    seen = [(await client.info()).queue_depth]

    async def look() -> None:
        while True:
            await asyncio.sleep(0.05)
            seen.append((await client.info()).queue_depth)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
