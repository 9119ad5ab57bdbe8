"""How many files of the server one call goes through."""

from __future__ import annotations

import json
import re
import sys

from support.calls.raw_calls import RawClient, spec_of, sphere_cloud
from support.workers import walked_worker
from support.workers.worker import worker

MOST_FILES = 20


def test_a_render_of_a_stored_scene_goes_through_few_files() -> None:
    with worker("--device", "cpu", command=(sys.executable, walked_worker.__file__)) as process:
        client = RawClient(process.target)
        scene = client.put(sphere_cloud()).scene
        walks = process.log.count("walk [")
        # The first is slower than those after it: it makes what they find made.
        for number in range(1, 4):
            client.render(spec_of(scene_id=scene.scene_id))
            process.wait_for_log("walk [", count=walks + number)
        client.close()
    files = json.loads(re.findall(r"^walk (\[.*\])$", process.log, re.MULTILINE)[-1])
    assert len(files) <= MOST_FILES, files
