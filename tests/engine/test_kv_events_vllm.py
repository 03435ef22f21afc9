"""The published bytes are read by vLLM's own classes."""

from __future__ import annotations

import json
import subprocess

import msgspec
import pytest
from benchmarks.vllm import environment
from tests.gateway.test_kv_publisher import REMOVED, STORED

from foreword.core.events import AllBlocksCleared
from foreword.gateway.kv_publisher import wire_event

READ = """
import json, sys, msgspec
from vllm.distributed.kv_events import KVEventBatch
batch = msgspec.msgpack.Decoder(KVEventBatch).decode(sys.stdin.buffer.read())
print(json.dumps([type(event).__name__ for event in batch.events] + [batch.ts, batch.data_parallel_rank]))
print(json.dumps(msgspec.to_builtins(batch.events[0])))
"""


@pytest.mark.engine
def test_vllms_classes_read_what_is_published() -> None:
    """Three kinds of event, decoded by the types that vLLM publishes and its routers decode."""
    events = [wire_event(event) for event in (STORED, REMOVED, AllBlocksCleared())]
    python = environment() / "bin" / "python"
    found = subprocess.run(
        [python, "-c", READ], input=msgspec.msgpack.encode((7.0, events, 0)), capture_output=True, check=True
    ).stdout.splitlines()[-2:]
    assert json.loads(found[0]) == ["BlockStored", "BlockRemoved", "AllBlocksCleared", 7.0, 0]
    stored = json.loads(found[1])
    assert stored | wire_event(STORED) | {"extra_keys": [["salt"], None]} == stored
