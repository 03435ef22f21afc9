"""From what a user writes (a folder, a file, a name, a hub id) to where weights and tokenizer are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foreword.errors import ModelError, ModelNotFound
from foreword.models.catalogue import CATALOGUE
from foreword.models.digest import file_digest
from foreword.models.hub import MODEL_FILES, TOKENIZER_FILES, cached_snapshot, fetch_snapshot
from foreword.models.store import InstalledModel, ModelStore
from foreword.tokens.gguf import read_gguf_metadata, tokenizer_files

_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_TOKENIZER_NAMES = ("tokenizer.json", "tokenizer.model", "tekken.json", "*.tiktoken", "vocab.json")

Pull = Callable[[str, ModelStore], InstalledModel]
"""Fetches a model of the catalogue into a store."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is.

    Attributes:
        name: what clients call it.
        weights: a GGUF file, or a folder of config.json and safetensors; None when there are no weights.
        tokenizer: a folder or file for ``load_tokenizer``; its chat template lies there too. None when there is none.
    """

    name: str
    weights: Path | None
    tokenizer: Path | None


def resolve_model(reference: str, *, store: ModelStore, pull: Pull) -> ModelFiles:
    """Find a model; one of the catalogue or the hub that is not here is fetched.

    Args:
        reference: a folder, a GGUF file, a name of the catalogue, or a hub id.
        store: where fetched models are kept.
        pull: fetches one of the catalogue that is not there.

    Raises:
        ModelNotFound: there is none.
        ModelError: what is there is no model.
        ModelFetchError: it is elsewhere and cannot be fetched.
    """
    name, path = _locate(reference, store, pull, MODEL_FILES)
    return ModelFiles(name, _weights(path), _tokenizer(path, store))


def resolve_tokenizer(reference: str, *, store: ModelStore, pull: Pull) -> Path:
    """Find a tokenizer, as ``resolve_model`` finds a model; no weights are fetched for it from the hub."""
    _, path = _locate(reference, store, pull, TOKENIZER_FILES)
    tokenizer = _tokenizer(path, store) if path.is_dir() or path.suffix == ".gguf" else path
    if tokenizer is None:
        raise ModelNotFound(f"{path} holds no tokenizer.", hint=f"One of {', '.join(_TOKENIZER_NAMES)} is looked for.")
    return tokenizer


def _locate(reference: str, store: ModelStore, pull: Pull, patterns: tuple[str, ...]) -> tuple[str, Path]:
    """The name and the folder or file of what a reference means; a path that exists comes before any name."""
    path = existing_path(reference)
    if path is not None:
        return path.stem if path.suffix == ".gguf" else path.resolve().name, path
    if reference in CATALOGUE:
        return reference, _in_catalogue(reference, store, pull)
    if is_hub_id(reference):
        return reference, _on_hub(reference, patterns)
    raise ModelNotFound(
        f"There is no file, folder or model {reference[:200]!r}.",
        hint=f"Give a folder, a GGUF file, a hub id (organisation/name) or one of: {', '.join(CATALOGUE)}.",
        reference=reference,
    )


def existing_path(reference: str) -> Path | None:
    """The absolute path of what is there; None for what is not, and for a text that can be no path."""
    try:
        path = Path(reference).expanduser().absolute()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long a name; ``~name`` of nobody; a null character
        return None


def is_hub_id(reference: str) -> bool:
    """Whether it is written as organisation/name, and not as a path."""
    return _HUB_ID.fullmatch(reference) is not None and not reference.startswith(".")


def _in_catalogue(name: str, store: ModelStore, pull: Pull) -> Path:
    """In the store, or whole in the hub's own cache, or fetched."""
    if model := store.find(name):
        return model.folder
    snapshot = cached_snapshot(CATALOGUE[name].hub_id)
    if snapshot and _is_whole(snapshot, CATALOGUE[name].tokenizer_sha256):
        return snapshot
    return pull(name, store).folder


def _is_whole(snapshot: Path, tokenizer_sha256: str) -> bool:
    tokenizer = snapshot / "tokenizer.json"
    return _has_safetensors(snapshot) and tokenizer.is_file() and file_digest(tokenizer) == tokenizer_sha256


def _on_hub(hub_id: str, patterns: tuple[str, ...]) -> Path:
    """In the hub's own cache, or fetched into it; a snapshot that only lacks what is asked for is completed."""
    snapshot = cached_snapshot(hub_id)
    if snapshot:
        has_tokenizer = any(any(snapshot.glob(name)) for name in _TOKENIZER_NAMES)
        if has_tokenizer and (patterns is TOKENIZER_FILES or _has_safetensors(snapshot)):
            return snapshot
    return fetch_snapshot(hub_id, patterns)


def _has_safetensors(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _weights(path: Path) -> Path | None:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is no model.", hint="Give a folder, a GGUF file, a hub id or a name.")
        return path
    if _has_safetensors(path):
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ModelError(f"{path} holds several GGUF files ({names}).", hint="Name the one to serve.")
    return found[0] if found else None


def _tokenizer(path: Path, store: ModelStore) -> Path | None:
    if path.is_dir():
        if any(any(path.glob(name)) for name in _TOKENIZER_NAMES):
            return path
        found = sorted(path.glob("*.gguf"))
        return _tokenizer_of_gguf(found[0], store) if found else None
    beside = path.parent / "tokenizer.json"
    return path.parent if beside.is_file() else _tokenizer_of_gguf(path, store)


def _tokenizer_of_gguf(path: Path, store: ModelStore) -> Path:
    """The folder of the tokenizer inside a GGUF file, under a name made from its content."""
    return store.keep_files("tokenizers", tokenizer_files(read_gguf_metadata(path)))
