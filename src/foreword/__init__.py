"""Foreword: prefix caching for large language models, exact from text to tokens to blocks to bill.

The names below are imported when first used, so that ``import foreword`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreword.lazy import lazy_names

if TYPE_CHECKING:
    from foreword.core.block_pool import BlockPool
    from foreword.core.hashing import hash_request_tokens
    from foreword.core.prefix_cache import PrefixCache
    from foreword.diagnose import (
        Prompt,
        Segment,
        ToolSet,
        canonical_json,
        diff_prompts,
        first_divergence,
        prefix_fingerprint,
    )
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
    "Prompt",
    "SamplingParams",
    "Segment",
    "ToolSet",
    "__version__",
    "canonical_json",
    "diff_prompts",
    "first_divergence",
    "hash_request_tokens",
    "load_tokenizer",
    "prefix_fingerprint",
]

_HOMES = {
    "BlockPool": "foreword.core.block_pool",
    "CachedTokenizer": "foreword.tokens",
    "L0Config": "foreword.tokens",
    "L1Config": "foreword.tokens",
    "LLM": "foreword.engine",
    "PrefixCache": "foreword.core.prefix_cache",
    "Prompt": "foreword.diagnose.assemble",
    "SamplingParams": "foreword.generation",
    "Segment": "foreword.diagnose.assemble",
    "ToolSet": "foreword.diagnose.assemble",
    "canonical_json": "foreword.diagnose.assemble",
    "diff_prompts": "foreword.diagnose.diff",
    "first_divergence": "foreword.diagnose.seam",
    "hash_request_tokens": "foreword.core.hashing",
    "load_tokenizer": "foreword.tokens",
    "prefix_fingerprint": "foreword.diagnose.fingerprint",
}

__getattr__ = lazy_names(__name__, _HOMES)
