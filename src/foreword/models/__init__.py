"""Models on this machine: fetched, verified, listed, and found by path, name or hub id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreword.lazy import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "CATALOGUE": "foreword.models.catalogue",
    "DEFAULT_MODEL": "foreword.models.catalogue",
    "CatalogueEntry": "foreword.models.catalogue",
    "InstalledModel": "foreword.models.store",
    "ModelFiles": "foreword.models.resolve",
    "ModelStore": "foreword.models.store",
    "cache_folder": "foreword.models.store",
    "resolve_model": "foreword.models.resolve",
    "resolve_tokenizer": "foreword.models.resolve",
}

__getattr__ = lazy_names(__name__, _HOMES)
