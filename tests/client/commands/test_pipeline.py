"""The pipeline of pictures: a few renderings at a time, in order, into a video."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from lumigrad.client import LumigradError
from lumigrad.client.commands.destination import in_order, with_progress
from lumigrad.client.shell.stages import Stages
from lumigrad.client.video import VideoWriter


def test_a_few_jobs_at_a_time_in_order():
    running, most, lock, first = 0, 0, threading.Lock(), threading.Barrier(3, timeout=60)

    def job(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if item < 3:
            first.wait()
        with lock:
            running -= 1
        return item

    assert list(in_order(job, range(20))) == list(range(20))
    assert most == 3


def test_the_first_error_ends_the_jobs():
    begun = []

    def job(item: int) -> int:
        begun.append(item)
        if item == 4:
            raise ValueError("four")
        return item

    results = in_order(job, range(1000))
    with pytest.raises(ValueError, match="four"):
        list(results)
    assert len(begun) < 10


def test_long_jobs_learn_that_no_more_results_are_wanted():
    """After Ctrl-C, a command waits for the jobs in progress, which would otherwise go on for seconds."""
    stopping, has_begun, ended = threading.Event(), threading.Event(), []

    def job(item: int) -> int:
        if item:
            has_begun.set()
            ended.append(stopping.wait(60))
        return item

    results = in_order(job, range(20), stopping)
    assert next(results) == 0
    assert has_begun.wait(60)
    results.close()
    assert ended and all(ended)


@pytest.mark.parametrize("count", [1, 4, 10, 25, 1000])
def test_a_file_or_a_pipe_gets_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str], count: int):
    assert list(with_progress(iter(range(count)), count, "painting", "vase")) == list(range(count))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (0 if count == 1 else min(count, 10))
    assert not lines or lines[-1] == f"painting: {count:,} of {count:,} vases"


def test_each_stage_has_its_lines(capsys: pytest.CaptureFixture[str]):
    with Stages() as stages:
        for stage, steps in {"reading": (1, 2, 3, 20), "sorting": (20,)}.items():
            for done in steps:
                stages.show(stage, done, 20)
    lines = ["reading: 2 of 20 Gaussians", "reading: 20 of 20 Gaussians", "sorting: 20 of 20 Gaussians"]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_video_refuses_pictures_of_another_size(tmp_path):
    with VideoWriter(tmp_path / "v.mp4", 16, 16, 30) as video:
        video.add(np.zeros((16, 16, 3), np.uint8))
        with pytest.raises(Exception, match=r"expected a picture of uint8 \[16, 16, 3\], got uint8 \(8, 16, 3\)"):
            video.add(np.zeros((8, 16, 3), np.uint8))
    assert (tmp_path / "v.mp4").stat().st_size > 500


def test_a_video_that_ffmpeg_cannot_finish_says_why(tmp_path):
    """The disk has no room for the last bytes, which ffmpeg writes after the last picture."""
    path = tmp_path / "v.mp4"
    path.symlink_to("/dev/full")
    video = VideoWriter(path, 16, 16, 30)
    video.add(np.zeros((16, 16, 3), np.uint8))
    with pytest.raises(LumigradError, match=r"ffmpeg could not write .*v\.mp4: .*No space left on device"):
        video.close()


def test_a_video_that_ffmpeg_cannot_begin_says_why(tmp_path):
    video = VideoWriter(tmp_path / "v.mp4", 16, 16, 30)
    (tmp_path / "v.mp4").mkdir()
    video.add(np.zeros((16, 16, 3), np.uint8))
    with pytest.raises(LumigradError, match="ffmpeg could not write"):
        video.close()
