"""What is asked of a worker, and what it answers: token ids in, token ids out.

The gateway speaks these types to every worker, embedded or remote; the engine speaks them too. Stop strings and text are
not here: whoever holds the tokenizer (the gateway) turns ids into text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]
"""``stop``: an end-of-sequence or stop token; ``length``: the budget or context is used up; ``abort``: on request."""

PromptCacheRetention = Literal["in_memory", "24h"]
"""How long a prompt's KV is kept: minutes in memory, or a day, through eviction and restart."""


@dataclass(frozen=True, slots=True)
class CacheBreakpoint:
    """A wish to keep the KV of the prompt's first ``num_tokens`` tokens for so many seconds after they were last used."""

    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; names, defaults and meaning are vLLM's.

    Attributes:
        max_tokens: tokens to generate at most; None means up to the end of the context.
        min_tokens: tokens before which no end-of-sequence or stop token is sampled.
        temperature: 0 is greedy.
        top_p: nucleus, in (0, 1]; 1 is off.
        top_k: 0 is off.
        min_p: relative to the most likely token, in [0, 1]; 0 is off.
        seed: makes one request repeatable, whatever runs beside it.
        stop_token_ids: end the request as end-of-sequence does; the token is returned.
        ignore_eos: go on past end-of-sequence.
        presence_penalty: OpenAI's, over generated tokens.
        frequency_penalty: OpenAI's, over generated tokens.
        repetition_penalty: over prompt and generated tokens; 1 is off.
        logit_bias: token id -> addend.
        logprobs: how many of the likeliest tokens to report at each position; None reports nothing.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt. ``token_ids`` is any sequence of ints; the worker may keep a reference and never changes it.

    Attributes:
        cache_salt: separates prefix-cache entries; requests share blocks only under one salt. None shares with all
            who gave none.
        routing_key: the client's ``prompt_cache_key``: requests that share it like to meet on one worker.
        retention: how long the prompt's KV is kept. A worker that cannot keep it so long keeps it as long as it can.
        breakpoints: prefixes to keep for a time of their own, shortest first.
    """

    request_id: str
    token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    cache_salt: str | None = None
    routing_key: str | None = None
    retention: PromptCacheRetention = "in_memory"
    breakpoints: tuple[CacheBreakpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one generated position: the sampled token's, and the likeliest ones', best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateOutput:
    """One step of one request; ``token_ids`` are those new since the step before. The last step has a finish reason.

    Attributes:
        stop_token_id: the end-of-sequence or stop token that ended the request, which is also in ``token_ids``.
        num_cached_tokens: prompt tokens whose prefill was skipped.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class DiskTierStatistics:
    """What a worker has on disk for ``prompt_cache_retention="24h"``. Blocks, since the start unless said otherwise.

    Attributes:
        held: there now; ``found + stored - evicted``.
        bytes: of their files.
        max_bytes: of files at most.
        found: left by an earlier process.
        stored: written.
        evicted: deleted, for any reason.
        expired: those of them whose day was over.
        reset: those of them emptied by a reset.
        damaged: those of them that were not what had been written, or could not be read.
        read: brought back into memory.
        failed: that could not be written.
        queued: that wait to be written now.
    """

    held: int
    bytes: int
    max_bytes: int
    found: int
    stored: int
    evicted: int
    expired: int
    reset: int
    damaged: int
    read: int
    failed: int
    queued: int


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """How busy a worker is now.

    Attributes:
        running: requests that run.
        waiting: requests that wait.
        kv_usage: share of KV memory in use, 0 to 1.
        disk: its disk tier; None when it has none, or does not say.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    disk: DiskTierStatistics | None = None
