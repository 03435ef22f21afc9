"""Tokenizers from their sources, behind caches as configured."""

from __future__ import annotations

from pathlib import Path

from foreword.config import Config
from foreword.gateway.tokenizers import LoadedTokenizer, TokenizerRegistry, answer_cache_memory
from foreword.tokens import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.tokens.chat_template import ChatTemplate, load_chat_template


def load(config: Config, source: str, name: str, template: ChatTemplate | None = None) -> LoadedTokenizer:
    """Load a tokenizer and its chat template; raises TokenizerError, TokenizerNotFound or TemplateError."""
    tokenizer = CachedTokenizer(load_tokenizer(Path(source)), l0=_l0(config), l1=_l1(config))
    path = Path(source) if config.chat_template is None else config.chat_template
    return LoadedTokenizer(name, source, tokenizer, template or load_chat_template(path))


def registry(config: Config, tokenizers: list[LoadedTokenizer]) -> TokenizerRegistry:
    """The registry that starts with these tokenizers and loads others as configured."""
    return TokenizerRegistry(
        tokenizers, load=lambda source, name: load(config, source, name), limit=config.max_tokenizers
    )


def _l0(config: Config) -> L0Config | None:
    if not config.tokenizer_cache_enable_l0:
        return None
    memory = config.tokenizer_cache_l0_max_memory
    return L0Config(max_entries=config.tokenizer_cache_l0_max_entries, max_memory=memory - answer_cache_memory(memory))


def _l1(config: Config) -> L1Config | None:
    if not config.tokenizer_cache_enable_l1:
        return None
    return L1Config(max_memory=config.tokenizer_cache_l1_max_memory)
