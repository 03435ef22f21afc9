"""What a gateway before other workers is made of."""

from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import TINY, tiny_tensors, write_folder

from foreword.cli import assembly as assembling
from foreword.cli.assembly import assemble
from foreword.config import Config
from foreword.core.retention import Retention
from foreword.models import ModelFiles, ModelStore


def test_workers_need_neither_an_engine_nor_a_tokenizer(tmp_path: Path) -> None:
    """Nothing is fetched: HTTP workers tokenize themselves, and gRPC workers bring their tokenizer."""
    config = Config(worker_urls=("http://127.0.0.1:1",))
    assembly = assemble(config, ModelStore(tmp_path))
    assert (list(assembly.registry), assembly.worker) == ([], None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("settings,folder", [({}, "cache/prompt-cache"), ({"prompt_cache_disk_max_bytes": 0}, None)])
def test_the_engine_keeps_prompts_as_long_as_the_api_promises(
    tmp_path: Path, settings: dict[str, Any], folder: str | None
) -> None:
    """Ten idle minutes, an hour at most; a day in the cache folder, unless nothing may be written."""
    model = write_folder(tmp_path / "model", TINY, tiny_tensors(TINY))
    worker = assembling._worker(Config(**settings), ModelFiles("tiny", weights=model, tokenizer=model), None)
    assert worker is not None
    assert worker._config.retention == Retention(idle_seconds=600, max_age_seconds=3600)
    assert worker._config.prompt_cache_disk == (folder and tmp_path / folder)
