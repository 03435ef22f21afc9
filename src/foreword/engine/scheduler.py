"""Which tokens of which sequences are computed in the next step.

Continuous batching in first-come order: running sequences first (a decode token, or the next chunk of a prompt), then
waiting ones while blocks and budget last. When a running sequence needs a block and none is free, the youngest running
sequence is preempted: its blocks are freed and it waits, in front, to be computed again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from foreword.engine.kv_cache import BlockAllocator, KVCacheStatistics
from foreword.engine.sequence import Sequence

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
        return self.sequence.num_computed_tokens + self.num_tokens == len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Sequences that run and wait, preemptions so far, and the state of the blocks."""

    running: int
    waiting: int
    preemptions: int
    kv_cache: KVCacheStatistics


class Scheduler:
    """Owns the queues and the sequences' blocks. ``schedule``, ``add``, ``free`` and ``computed`` mutate."""

    def __init__(
        self, allocator: BlockAllocator, *, block_size: int, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind the others. The caller has checked that it fits the cache when alone."""
        self.waiting.append(sequence)

    def free(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and take its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._free_blocks(sequence)

    def computed(self, chunks: list[ScheduledChunk]) -> None:
        """Note that the chunks' keys and values are in the cache."""
        for chunk in chunks:
            chunk.sequence.num_computed_tokens += chunk.num_tokens

    def schedule(self) -> list[ScheduledChunk]:
        """The next step; empty only if there is nothing to do."""
        chunks, budget = self._decodes()
        prefills = [s for s in self.running if not _decoding(s)]
        while budget > 0:
            sequence = prefills.pop(0) if prefills else self._admit()
            if sequence is None:
                break
            num_tokens = min(budget, len(sequence.token_ids) - sequence.num_computed_tokens)
            chunks.append(ScheduledChunk(sequence, num_tokens))
            budget -= num_tokens
        return chunks

    def _decodes(self) -> tuple[list[ScheduledChunk], int]:
        """A token for every decoding sequence, and what the step may compute besides."""
        for sequence in list(self.running):
            if sequence in self.running and _decoding(sequence):
                self._grow(sequence)
        decoding = [s for s in self.running if _decoding(s)]
        budget = self._max_num_batched_tokens
        if decoding:
            budget = max(1, budget // _DECODE_SHARE - len(decoding))
        return [ScheduledChunk(s, 1) for s in decoding], budget

    def _grow(self, sequence: Sequence) -> None:
        """Give a decoding sequence the block its last token needs, preempting the youngest if there is none."""
        needed = self._blocks_of(sequence) - len(sequence.block_table)
        while not self._allocator.can_allocate(needed):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return
        sequence.block_table += self._allocator.allocate(needed)

    def _admit(self) -> Sequence | None:
        """Start the first waiting sequence if there is room for all of it; a block to spare keeps it from being preempted at once."""
        if not self.waiting or len(self.running) >= self._max_num_seqs:
            return None
        sequence = self.waiting[0]
        needed = self._blocks_of(sequence)
        spare = 1 if self.running else 0
        if not self._allocator.can_allocate(needed + spare):
            return None
        self.running.append(self.waiting.popleft())
        sequence.block_table = self._allocator.allocate(needed)
        return sequence

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_blocks(sequence)
        self.waiting.appendleft(sequence)
        self._preemptions += 1

    def _free_blocks(self, sequence: Sequence) -> None:
        self._allocator.free(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0

    def _blocks_of(self, sequence: Sequence) -> int:
        return -(-len(sequence.token_ids) // self._block_size)

    def statistics(self) -> SchedulerStatistics:
        """How many run and wait."""
        return SchedulerStatistics(
            len(self.running), len(self.waiting), self._preemptions, self._allocator.statistics()
        )

    def check_integrity(self) -> None:
        """Raise RuntimeError unless blocks and queues agree."""
        self._allocator.check_integrity([block for sequence in self.running for block in sequence.block_table])
        for sequence in self.waiting:
            if sequence.block_table or sequence.num_computed_tokens:
                raise RuntimeError(f"waiting sequence {sequence.request_id} holds blocks")
        for sequence in self.running:
            if len(sequence.block_table) * self._block_size < sequence.num_computed_tokens:
                raise RuntimeError(f"sequence {sequence.request_id} has computed past its blocks")


def _decoding(sequence: Sequence) -> bool:
    """Whether only the last token is left to compute."""
    return sequence.num_computed_tokens == len(sequence.token_ids) - 1 and sequence.num_output_tokens > 0
