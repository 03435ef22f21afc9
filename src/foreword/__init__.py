"""Foreword: prefix caching for large language models, exact from text to tokens to blocks to bill.

The names below are imported when first used, so that ``import foreword`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreword.core.block_pool import BlockPool
    from foreword.core.hashing import hash_request_tokens
    from foreword.core.prefix_cache import PrefixCache
    from foreword.engine import LLM
    from foreword.generation import SamplingParams
    from foreword.tokens import CachedTokenizer, L0Config, L1Config, load_tokenizer

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BlockPool",
    "CachedTokenizer",
    "L0Config",
    "L1Config",
    "PrefixCache",
    "SamplingParams",
    "__version__",
    "hash_request_tokens",
    "load_tokenizer",
]

_HOMES = {
    "BlockPool": "foreword.core.block_pool",
    "CachedTokenizer": "foreword.tokens",
    "L0Config": "foreword.tokens",
    "L1Config": "foreword.tokens",
    "LLM": "foreword.engine",
    "PrefixCache": "foreword.core.prefix_cache",
    "SamplingParams": "foreword.generation",
    "hash_request_tokens": "foreword.core.hashing",
    "load_tokenizer": "foreword.tokens",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foreword' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
