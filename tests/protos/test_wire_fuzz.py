"""A coverage-guided search for bytes that the hand codec gets wrong, for LUMIGRAD_FUZZ_SECONDS, 2 unless set."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lumigrad.v1 import scene_pb2
from support.calls import raw_calls

SECONDS = int(float(os.environ.get("LUMIGRAD_FUZZ_SECONDS", "2")))
FUZZER = Path(raw_calls.__file__).with_name("wire_fuzzer.py")


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not there for this Python or this machine")
def test_the_hand_codec_reads_what_protobuf_reads(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, message in enumerate(
        (
            scene_pb2.PutRequest(data=b"abc"),
            scene_pb2.PutRequest(payload_bytes=3, content_hash="0", data=b"abc"),
            scene_pb2.PutRequest(data=bytes(300)),
        )
    ):
        (corpus / str(number)).write_bytes(b"\0" + message.SerializeToString())
    # No limit of resident memory: the reported peak includes that of the process that starts this one.
    limits = ("-rss_limit_mb=0", "-malloc_limit_mb=1024")
    bounds = (f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/", *limits)
    command = [sys.executable, str(FUZZER), *bounds, str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 60, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Done" in done.stderr
