"""Prompt caching over HTTP with the embedded engine behind it: the in-memory life, and 24 hours through a restart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.conftest import TINY, tiny_tensors, write_folder
from tests.gateway.test_prompt_caching import COMMON, DINNER, LUNCH, responder

from foreword.core.retention import IN_MEMORY
from foreword.engine import AsyncLLM, EngineConfig
from foreword.testing.server import MODEL, Running, serve


class Kitchen:
    """Servers over a tiny model with the byte tokenizer's vocabulary, one after another, under clocks of ours."""

    def __init__(self, folder: Path) -> None:
        config = TINY | {"vocab_size": 259, "max_position_embeddings": 8192, "num_hidden_layers": 1}
        self.model = write_folder(folder / "model", config, tiny_tensors(config))
        self.disk = folder / "disk"
        self.now, self.wall = 1000.0, 1_000_000.0

    @contextmanager
    def open(self, **settings: Any) -> Iterator[Running]:
        """A server with an engine."""
        config = EngineConfig(retention=IN_MEMORY, prompt_cache_disk=self.disk, kv_cache_memory=64 << 20)
        worker: Any = AsyncLLM(
            self.model, model=MODEL, config=config, clock=lambda: self.now, wall_clock=lambda: self.wall
        )
        with serve([worker], **settings) as running:
            yield running
        # the gateway has stopped the worker, which has written what it had to


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    """A place to cook."""
    return Kitchen(tmp_path)


def short(running: Running, key: str = "none") -> Callable[..., int]:
    """Asks for few tokens."""
    respond = responder(running, key)
    return lambda prompt, **fields: respond(prompt, max_output_tokens=2, **fields)


def test_cooking_with_the_embedded_engine(kitchen: Kitchen) -> None:
    """Every full block of the common prefix is cached; after ten idle minutes none, and an hour is the most."""
    with kitchen.open() as running:
        respond = short(running)
        assert [respond(DINNER), respond(LUNCH)] == [0, COMMON]
        kitchen.now += 599
        assert respond(LUNCH) >= COMMON
        kitchen.now += 600
        assert respond(LUNCH) == 0
        for _ in range(6):
            kitchen.now += 590
            assert respond(LUNCH) >= COMMON
        kitchen.now += 60
        assert respond(LUNCH) == 0


def test_a_day_through_a_restart(kitchen: Kitchen) -> None:
    """With 24h the prefix hits after a restart, for a day; without, and for another organisation, it does not."""
    with kitchen.open() as running:
        assert short(running)(DINNER, prompt_cache_retention="24h") == 0
        assert short(running)("Supper time! " + DINNER) == 0
    kitchen.wall += 80_000
    with kitchen.open() as running:
        assert [short(running)(LUNCH), short(running)("Supper time! " + LUNCH)] == [COMMON, 0]
    kitchen.wall += 6_400
    with kitchen.open() as running:
        assert short(running)(LUNCH) == 0


def test_organisations_after_a_restart(kitchen: Kitchen, tmp_path: Path) -> None:
    """Another organisation gets zero after a restart too, and a reset of one leaves the other's on disk."""
    keys = tmp_path / "keys"
    keys.write_text("one sk-1\nother sk-2\nops sk-ops admin\n")
    keys.chmod(0o600)
    with kitchen.open(api_keys=keys) as running:
        assert short(running, "sk-1")(DINNER, prompt_cache_retention="24h") == 0
    with kitchen.open(api_keys=keys) as running:
        assert short(running, "sk-2")(LUNCH, prompt_cache_retention="24h") == 0
        assert short(running, "sk-1")(LUNCH) == COMMON
    with kitchen.open(api_keys=keys) as running:
        headers = {"Authorization": "Bearer sk-ops"}
        answer = httpx.post(
            f"{running.url}/v1/prefix_cache/reset", json={"organisation": "one"}, headers=headers
        ).json()
        assert (answer["blocks"], answer["disk_blocks"] >= COMMON // 16) == (0, True)
    with kitchen.open(api_keys=keys) as running:
        assert [short(running, "sk-1")(DINNER), short(running, "sk-2")(DINNER)] == [0, COMMON]


def test_metrics_and_inspection(kitchen: Kitchen) -> None:
    """What is on disk shows in the metrics and in /v1/prefix_cache."""
    with kitchen.open() as running:
        short(running)(DINNER, prompt_cache_retention="24h")
    with kitchen.open() as running:
        short(running)(LUNCH)
        (worker,) = httpx.get(f"{running.url}/v1/prefix_cache").json()["workers"]
        assert worker["restored"] == worker["disk"]["read"] * 16 == COMMON
        assert worker["disk"]["found"] + worker["disk"]["stored"] - worker["disk"]["evicted"] == worker["disk"]["held"]
        metrics = httpx.get(f"{running.url}/metrics").text
        found = dict(re.findall(r'foreword_prompt_cache_disk_(\w+)\{worker="embedded"\} (\S+)', metrics))
        assert float(found["read_total"]) == COMMON / 16
        assert float(found["blocks"]) == worker["disk"]["held"]
        assert float(found["bytes"]) == worker["disk"]["bytes"]
