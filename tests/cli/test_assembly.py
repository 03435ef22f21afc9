"""What a gateway before other workers is made of."""

from pathlib import Path

from foreword.cli.assembly import assemble
from foreword.config import Config
from foreword.models import ModelStore


def test_workers_need_neither_an_engine_nor_a_tokenizer(tmp_path: Path) -> None:
    """Nothing is fetched: HTTP workers tokenize themselves, and gRPC workers bring their tokenizer."""
    config = Config(worker_urls=("http://127.0.0.1:1",))
    assembly = assemble(config, ModelStore(tmp_path))
    assert (list(assembly.registry), assembly.worker) == ([], None)
    assert list(tmp_path.iterdir()) == []
