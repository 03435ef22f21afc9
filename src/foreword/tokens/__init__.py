"""Text to token ids and back: tokenizers, their cache, chat templates, the detokenizer. Knows nothing of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreword.lazy import lazy_names

if TYPE_CHECKING:
    from foreword.tokens.cache_statistics import CacheStatistics, LevelStatistics
    from foreword.tokens.exact_cache import L0Config
    from foreword.tokens.loading import load_tokenizer
    from foreword.tokens.prefix_trie import L1Config
    from foreword.tokens.token_cache import CachedTokenizer, Encoded
    from foreword.tokens.tokenizer import CacheableTokenizer, TokenIds, Tokenizer, TokenizerIdentity

__all__ = [
    "CacheStatistics",
    "CacheableTokenizer",
    "CachedTokenizer",
    "Encoded",
    "L0Config",
    "L1Config",
    "LevelStatistics",
    "TokenIds",
    "Tokenizer",
    "TokenizerIdentity",
    "load_tokenizer",
]

_HOMES = {
    "CacheStatistics": "foreword.tokens.cache_statistics",
    "CacheableTokenizer": "foreword.tokens.tokenizer",
    "CachedTokenizer": "foreword.tokens.token_cache",
    "Encoded": "foreword.tokens.token_cache",
    "L0Config": "foreword.tokens.exact_cache",
    "L1Config": "foreword.tokens.prefix_trie",
    "LevelStatistics": "foreword.tokens.cache_statistics",
    "TokenIds": "foreword.tokens.tokenizer",
    "Tokenizer": "foreword.tokens.tokenizer",
    "TokenizerIdentity": "foreword.tokens.tokenizer",
    "load_tokenizer": "foreword.tokens.loading",
}

__getattr__ = lazy_names(__name__, _HOMES)
