"""Which tokens of which sequences are computed in the next step.

Continuous batching in first-come order: running sequences first (a decode token, or the next chunk of a prompt), then
waiting ones while blocks and budget last. A sequence starts behind the longest prefix that the prefix cache holds, and
one whose next block somebody is computing right now waits for it: simultaneous newcomers compute a shared prefix once.
When a running sequence needs a block and none is free, the youngest running sequence is preempted: its blocks are freed
and it waits, in front, to be computed again, likely from its own blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from foreword.core.cache_request import CacheRequest, PrefixCacheStatistics
from foreword.core.prefix_cache import PrefixCache
from foreword.engine.sequence import Sequence
from foreword.errors import IntegrityError

_DECODE_SHARE = 4
"""While some sequence decodes, prompts get a quarter of the token budget, so that its next token is not long in coming."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """The next ``num_tokens`` uncomputed tokens of a sequence."""

    sequence: Sequence
    num_tokens: int

    @property
    def completes(self) -> bool:
        """Whether nothing is left uncomputed after it, so that the next token can be sampled."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Sequences that run and wait, preemptions so far, and the state of the prefix cache."""

    running: int
    waiting: int
    preemptions: int
    prefix_cache: PrefixCacheStatistics

    @property
    def kv_usage(self) -> float:
        """Share of blocks in use, 0 to 1."""
        return 1 - self.prefix_cache.num_free / self.prefix_cache.num_blocks


class Scheduler:
    """Owns the queues; admits, feeds and preempts sequences in the prefix cache.

    ``add`` and ``free`` are a pair, and so are ``schedule`` and ``commit``. ``now`` is the time, in seconds, by which
    cached blocks age. A prompt is not computed while ``can_restore`` says that its next block need not be.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        can_restore: Callable[[CacheRequest], bool] | None = None,
    ) -> None:
        self._cache = cache
        self._can_restore = can_restore or (lambda _: False)
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind the others. The caller has checked that it fits the cache when alone."""
        self.waiting.append(sequence)

    def free(self, sequence: Sequence, now: float) -> None:
        """Forget a sequence, wherever it is, and give its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._cache.free(sequence.cache, now)
        else:
            self.waiting.remove(sequence)

    def commit(self, chunks: list[ScheduledChunk], now: float) -> None:
        """Note that the chunks' keys and values are written: full blocks can be found from now on."""
        for chunk in chunks:
            cache = chunk.sequence.cache
            self._cache.commit(cache, cache.num_computed_tokens + chunk.num_tokens, now)

    def schedule(self, now: float) -> list[ScheduledChunk]:
        """The next step; empty only if there is nothing to do, or everything that runs can be restored."""
        chunks = self._decodes(now)
        budget = self._max_num_batched_tokens
        if chunks:
            budget = max(1, budget // _DECODE_SHARE - len(chunks))
        for sequence in [s for s in self.running if not s.is_decoding]:
            budget -= self._take(chunks, sequence, budget)
        for sequence in list(self.waiting):
            if budget <= 0 or not self._admit(sequence, now):
                break
            if sequence in self.running:
                budget -= self._take(chunks, sequence, budget)
        return chunks

    def _decodes(self, now: float) -> list[ScheduledChunk]:
        """A token for every decoding sequence, each of which gets the block that it needs."""
        for sequence in list(self.running):
            while (
                sequence in self.running and sequence.is_decoding and not self._cache.allocate_slots(sequence.cache, 1)
            ):
                self._preempt(self.running[-1], now)
        return [ScheduledChunk(sequence, 1) for sequence in self.running if sequence.is_decoding]

    def restorable(self) -> list[Sequence]:
        """Running sequences that wait for blocks to be brought back."""
        return [s for s in self.running if not s.is_decoding and self._can_restore(s.cache)]

    def _take(self, chunks: list[ScheduledChunk], sequence: Sequence, budget: int) -> int:
        """Add the next of a prompt's tokens, as many as the budget allows; returns how many."""
        if self._can_restore(sequence.cache):
            return 0
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.cache.num_computed_tokens
        num_tokens = min(budget, sequence.num_uncomputed_tokens)
        if num_tokens:
            chunks.append(ScheduledChunk(sequence, num_tokens))
        return num_tokens

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Start a waiting sequence unless its prefix is being computed; False when those behind it must wait too.

        It gets blocks for all its tokens at once. One block to spare keeps it from being preempted right away.
        """
        if len(self.running) >= self._max_num_seqs:
            return False
        computed = self._cache.get_computed_blocks(sequence.cache, now)
        if computed.pending is not None:
            return True
        num_new_tokens = len(sequence.token_ids) - computed.num_tokens
        spare = self._cache.block_size if self.running else 0
        if not self._cache.can_allocate(sequence.cache, num_new_tokens + spare, computed):
            return False
        self._cache.allocate_slots(sequence.cache, num_new_tokens, computed, now)
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def _preempt(self, sequence: Sequence, now: float) -> None:
        self.running.remove(sequence)
        self._cache.free(sequence.cache, now)
        self.waiting.appendleft(sequence)
        self._preemptions += 1

    def statistics(self) -> SchedulerStatistics:
        """How many run and wait."""
        return SchedulerStatistics(len(self.running), len(self.waiting), self._preemptions, self._cache.statistics())

    def check_integrity(self) -> None:
        """Raise IntegrityError unless queues and prefix cache are sound and agree."""
        self._cache.check_integrity()
        if self._cache.statistics().running != len(self.running):
            raise IntegrityError(f"{len(self.running)} sequences run, and others hold blocks.")
        for sequence in self.waiting:
            if sequence.cache.block_table or sequence.cache.num_computed_tokens:
                raise IntegrityError(f"Sequence {sequence.request_id} waits and holds blocks.")
