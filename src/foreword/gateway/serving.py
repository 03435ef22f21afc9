"""What chat, completions and responses do alike: find the model, start generations, watch the client, keep the books."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from foreword.config import Config
from foreword.core.extra_keys import frame_salt
from foreword.diagnose.ledger import FingerprintLedger
from foreword.diagnose.verdicts import SeamWatch
from foreword.gateway.errors import Interrupted, Refusal
from foreword.gateway.exchange import Exchange
from foreword.gateway.fingerprints import DistinctFingerprints, SegmentFingerprints, Segments
from foreword.gateway.fleet import Fleet
from foreword.gateway.generate import (
    CacheReporting,
    Generation,
    TextDelta,
    TextOptions,
    check_context,
    merge,
    sample_seeds,
)
from foreword.gateway.inflight import InFlight
from foreword.gateway.metrics import Metrics
from foreword.gateway.protocol.common import SamplingFields, check_retention
from foreword.gateway.seams import seam_headers
from foreword.gateway.shared_state import SharedFingerprints
from foreword.gateway.tokenizers import LoadedTokenizer, TokenizerRegistry
from foreword.generation import CacheBreakpoint, GenerateRequest, PromptCacheRetention, SamplingParams
from foreword.tokens.tokenizer import TokenIds

MAX_SAMPLES = 128
"""Generations of one request: prompts times samples of each."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts that generating endpoints share."""

    config: Config
    tokenizers: TokenizerRegistry
    pool: Fleet
    metrics: Metrics
    in_flight: InFlight
    segments: SegmentFingerprints
    distinct: DistinctFingerprints | SharedFingerprints
    seams: SeamWatch
    ledger: FingerprintLedger

    def find(self, model: str) -> LoadedTokenizer:
        """The tokenizer of a model that workers serve; raises ModelNotFound."""
        self.pool.find_model(model)
        return self.tokenizers.find(model)

    def start(
        self,
        exchange: Exchange,
        request: SamplingFields,
        loaded: LoadedTokenizer,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: SamplingParams,
        options: TextOptions,
        samples: int = 1,
        breakpoints: Sequence[CacheBreakpoint] = (),
    ) -> list[Generation]:
        """The generations of a request, samples of one prompt side by side; raises ContextOverflow or Refusal."""
        if len(prompts) * samples > MAX_SAMPLES:
            message = f"{len(prompts)} prompts with {samples} answers each are over the limit of {MAX_SAMPLES}."
            raise Refusal(message, param="n", code="invalid_value")
        limit = self.pool.find_model(request.model).max_model_len
        salt = frame_salt(exchange.organisation or None, request.cache_salt)
        retention = check_retention(request.prompt_cache_retention)
        reporting = CacheReporting(self.config.prompt_cache_minimum_tokens, self.config.prompt_cache_step)
        _note_cache_wishes(exchange, request.prompt_cache_key, retention)
        generations: list[Generation] = []
        for prompt in prompts:
            if len(prompt) == 0:
                raise Refusal("The prompt has no tokens.", param="prompt", code="empty_prompt")
            check_context(len(prompt), sampling.max_tokens, limit)
            for seed in sample_seeds(sampling, samples):
                request_id = f"{exchange.request_id}-{len(generations)}"
                wanted = GenerateRequest(
                    request_id,
                    prompt,
                    replace(sampling, seed=seed),
                    salt,
                    routing_key=request.prompt_cache_key,
                    retention=retention,
                    breakpoints=tuple(breakpoints),
                )
                generations.append(Generation(request.model, wanted, loaded, self.pool, options, reporting))
        return generations

    async def deltas(
        self, exchange: Exchange, generations: Sequence[Generation]
    ) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """Run the generations; whatever ends them, the client's leaving included, their tokens are counted."""
        first = True
        try:
            async with self.watching(exchange), aclosing(merge(generations)) as merged:
                async for item in merged:
                    if first:
                        first = False
                        self.note_first_token(exchange, generations[0].model)
                    yield item
        finally:
            self._account(exchange, generations)

    @asynccontextmanager
    async def watching(self, exchange: Exchange) -> AsyncIterator[None]:
        """End the exchange when its client hangs up."""
        watcher = asyncio.create_task(self._interrupt_when_gone(exchange))
        try:
            yield
        finally:
            watcher.cancel()

    async def _interrupt_when_gone(self, exchange: Exchange) -> None:
        await exchange.wait_until_gone()
        self.in_flight.interrupt(exchange, Interrupted("The client left.", status=499, code="client_gone"))

    def note_first_token(self, exchange: Exchange, model: str) -> None:
        """Record how long the client waited."""
        exchange.log["ttft_ms"] = round(exchange.elapsed * 1e3, 3)
        self.metrics.observe_first_token(model, exchange.elapsed)

    def _account(self, exchange: Exchange, generations: Sequence[Generation]) -> None:
        for one in generations:
            if one.worker:
                self.metrics.observe_generation(
                    one.model, one.worker, one.prompt_tokens, one.cached_tokens, one.completion_tokens
                )
        exchange.log.update(
            event="llm.request",
            model=generations[0].model,
            tokenizer=generations[0].tokenizer.tokenizer.identity.digest[:16],
            prompt_tokens=sum(one.prompt_tokens for one in generations),
            predicted_cached_tokens=_sum_known(one.predicted_cached_tokens for one in generations),
            cached_tokens=sum(one.cached_tokens for one in generations),
            completion_tokens=sum(one.completion_tokens for one in generations),
            worker=generations[0].worker,
        )

    def note_prefix(
        self, exchange: Exchange, model: str, body: dict[str, Any], ids: TokenIds, segments: Segments
    ) -> None:
        """Count a prompt's fingerprints, and judge its prefix against the earlier requests of its lane."""
        prints = {"prefix_fp": segments.prefix_fp, "tools_fp": segments.tools_fp, "system_fp": segments.system_fp}
        self.ledger.record(f"{exchange.organisation}/{model}" if exchange.organisation else model, prints, time.time())
        self.judge(exchange, model, body, ids)

    def judge(self, exchange: Exchange, model: str, body: dict[str, Any], ids: TokenIds) -> None:
        """Compare a prompt with the earlier ones of its lane; headers and log tell of a request's first prompt."""
        if not self.config.seam_history:
            return
        lane = exchange.headers.get(b"x-foreword-lane", b"").decode("latin-1")[:64]
        row = self.seams.observe(
            body, ids, model=model, lane=lane, owner=exchange.organisation, request_id=exchange.request_id
        )
        if "shared_tokens" in exchange.log:
            return
        exchange.log.update(shared_tokens=row.shared_tokens, seam=row.seam, cause=row.code or None)
        if self.config.seam_headers:
            exchange.remarks += seam_headers(row)

    def note_prompt(self, exchange: Exchange, prompt: object) -> None:
        """Put a prompt's text in the log line, when the server was asked to."""
        if self.config.log_prompts:
            exchange.log["prompt"] = prompt


def _sum_known(counts: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None when none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _note_cache_wishes(exchange: Exchange, key: str | None, retention: PromptCacheRetention) -> None:
    if key is not None:
        exchange.log["prompt_cache_key"] = key
    if retention != "in_memory":
        exchange.log["prompt_cache_retention"] = retention
