"""From what a user writes to where weights and tokenizer are."""

import json
from pathlib import Path
from typing import Any

import pytest

from foreword.errors import ConfigError, ModelError, ModelNotFound
from foreword.models import resolve_model, resolve_tokenizer
from foreword.models.store import cache_folder
from foreword.testing.gguf_files import TINY_TOKENIZER, gguf_bytes


def never(name: str, store: Any) -> Any:
    """A pull that must not happen."""
    raise AssertionError(name)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_snapshot(hub_cache: Path, hub_id: str, files: dict[str, bytes]) -> Path:
    """Lay a repository into the hub's cache, as its library does."""
    repository = hub_cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("c0ffee")
    snapshot = repository / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    for name, data in files.items():
        (snapshot / name).write_bytes(data)
    return snapshot


def test_a_folder_of_safetensors(tmp_path: Path, store: Any) -> None:
    """Weights and tokenizer are the folder itself; its name is the model's."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"{}")
    found = resolve_model(str(folder), store=store, pull=never)
    assert (found.name, found.weights, found.tokenizer) == ("my-model", folder, folder)


def test_a_folder_with_a_tokenizer_only(tmp_path: Path, store: Any) -> None:
    """No weights is no error here: a gateway can still tokenize."""
    (tmp_path / "tokenizer.json").write_text("{}")
    found = resolve_model(str(tmp_path), store=store, pull=never)
    assert (found.weights, found.tokenizer) == (None, tmp_path)


def test_a_gguf_file_brings_its_tokenizer(tmp_path: Path, store: Any) -> None:
    """The tokenizer is rebuilt once into the store; a second look finds the same folder."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(TINY_TOKENIZER))

    found = resolve_model(str(path), store=store, pull=never)
    assert (found.name, found.weights) == ("m", path)
    assert found.tokenizer is not None
    assert json.loads((found.tokenizer / "tokenizer.json").read_text())["model"]["vocab"]["ab"] == 4
    assert resolve_tokenizer(str(tmp_path), store=store, pull=never) == found.tokenizer


def test_a_tokenizer_beside_the_gguf_file_comes_first(tmp_path: Path, store: Any) -> None:
    """A published tokenizer.json in the same folder is the better source."""
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(TINY_TOKENIZER))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert resolve_model(str(tmp_path / "m.gguf"), store=store, pull=never).tokenizer == tmp_path


def test_several_gguf_files_are_ambiguous(tmp_path: Path, store: Any) -> None:
    """The error names them and asks which."""
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes(TINY_TOKENIZER))
    with pytest.raises(ModelError, match=r"several GGUF files \(a.gguf, b.gguf\). Name the one"):
        resolve_model(str(tmp_path), store=store, pull=never)


def test_a_catalogue_name_is_pulled_once(tiny: Any, store: Any, hub_cache: Path) -> None:
    """What is not there is fetched; what is there is used."""
    from foreword.models.pull import pull_model

    pulled = []

    def pull(name: str, into: Any) -> Any:
        pulled.append(name)
        return pull_model(name, store=into, progress=lambda *_: None, report=lambda _: None)

    first = resolve_model("tiny", store=store, pull=pull)
    assert first == resolve_model("tiny", store=store, pull=pull)
    assert pulled == ["tiny"]
    assert first.weights == store.folder / "tiny" / "tiny.gguf"


def test_a_hub_snapshot_that_is_there_is_used(tiny: Any, store: Any, hub_cache: Path) -> None:
    """A repository in HF_HOME serves its hub id and the catalogue's name, without a network."""
    from foreword.tokens.gguf import tokenizer_files

    tokenizer = tokenizer_files(dict(TINY_TOKENIZER))["tokenizer.json"].encode()
    files = {"config.json": b"{}", "model.safetensors": b"w", "tokenizer.json": tokenizer}
    snapshot = put_snapshot(hub_cache, "org/tiny", files)

    assert resolve_model("org/tiny", store=store, pull=never).weights == snapshot
    assert resolve_model("tiny", store=store, pull=never).weights == snapshot


@pytest.mark.parametrize("reference", ["nope", "./a/b", "/no/such", "a/b/c", "~/zzz"])
def test_nothing_by_that_name_says_what_there_is(reference: str, store: Any) -> None:
    """A path that does not exist is never taken for a hub id."""
    with pytest.raises(ModelNotFound, match="smollm2-135m"):
        resolve_model(reference, store=store, pull=never)


def test_a_folder_without_a_tokenizer_says_what_is_looked_for(tmp_path: Path, store: Any) -> None:
    """The error lists file names."""
    with pytest.raises(ModelNotFound, match=r"holds no tokenizer. One of tokenizer.json"):
        resolve_tokenizer(str(tmp_path), store=store, pull=never)


@pytest.mark.parametrize("reference", ["a" * 256, "a" * 5000, "~nobody-of-that-name/x", "a\0b"])
def test_a_text_that_can_be_no_path_is_not_found(reference: str, store: Any) -> None:
    """Too long a name, the home of nobody and a null character are a ModelNotFound of bounded length."""
    for resolve in (resolve_model, resolve_tokenizer):
        with pytest.raises(ModelNotFound) as caught:
            resolve(reference, store=store, pull=never)
        assert len(caught.value.message) < 300


def test_a_cache_in_the_home_of_nobody() -> None:
    """FOREWORD_CACHE=~name of no user is a mistake of the configuration."""
    with pytest.raises(ConfigError, match="FOREWORD_CACHE"):
        cache_folder({"FOREWORD_CACHE": "~nobody-of-that-name/x"})
