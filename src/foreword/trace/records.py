"""What a trace says of one request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace that names its blocks.

    Attributes:
        time: arrival, in seconds since the trace began.
        input_tokens: prompt length.
        output_tokens: answer length.
        blocks: chained block ids, the prompt's first block first: equal ids mean an equal block and an equal prefix. The
            last block may be partial.
    """

    time: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]

    def cached_tokens(self, num_blocks: int, block_size: int) -> int:
        """Prompt tokens skipped when the first ``num_blocks`` blocks hit: full blocks, and never the last token."""
        return min(num_blocks, (self.input_tokens - 1) // block_size) * block_size
