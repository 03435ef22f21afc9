"""Models on this machine: fetched, verified, listed, and found by path, name or hub id."""

from foreword.models.catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueEntry
from foreword.models.resolve import ModelFiles, resolve_model, resolve_tokenizer
from foreword.models.store import InstalledModel, ModelStore, cache_folder

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "CatalogueEntry",
    "InstalledModel",
    "ModelFiles",
    "ModelStore",
    "cache_folder",
    "resolve_model",
    "resolve_tokenizer",
]
