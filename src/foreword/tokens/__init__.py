"""Text to token ids and back: tokenizers, their cache, chat templates, the detokenizer. Knows nothing of blocks."""

from foreword.tokens.exact_cache import L0Config
from foreword.tokens.loading import load_tokenizer
from foreword.tokens.prefix_trie import L1Config
from foreword.tokens.token_cache import CachedTokenizer, CacheStatistics, Encoded, LevelStatistics
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
