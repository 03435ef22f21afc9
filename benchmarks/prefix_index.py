"""How fast the prefix index takes events and answers lookups.

    python -m benchmarks.prefix_index

64 workers, chains of 64 blocks of 16 tokens in events of 8 blocks; every other chain is held by all workers. A lookup is of a
2,000-block prompt that all 64 hold, each to another depth. The best of five, in CPU time, so that other programs disturb less.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable

from foreword.core.events import BlockRemoved, BlockStored
from foreword.core.prefix_index import PrefixIndex

BLOCK, WORKERS, CHAIN, PER_EVENT = 16, [f"w{number}" for number in range(64)], 64, 8


def make_events(rng: random.Random) -> list[tuple[str, BlockStored]]:
    """30 chains for each worker, in its own hashes."""
    events = []
    for worker in WORKERS:
        for chain in range(30):
            shared = chain % 2 == 0
            tokens = [chain * 1000 + i % 977 if shared else rng.randrange(50_000) for i in range(CHAIN * BLOCK)]
            parent = None
            for start in range(0, CHAIN, PER_EVENT):
                hashes: list[bytes | int] = [rng.getrandbits(64) for _ in range(PER_EVENT)]
                part = tokens[start * BLOCK : (start + PER_EVENT) * BLOCK]
                events.append((worker, BlockStored(hashes, parent, part, BLOCK)))
                parent = hashes[-1]
    return events


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def apply_all(index: PrefixIndex, events: list[tuple[str, BlockStored]] | list[tuple[str, BlockRemoved]]) -> None:
    """Every event in order."""
    apply = index.apply
    for worker, event in events:
        apply(worker, event)


def measure_events(rng: random.Random) -> tuple[float, float]:
    """Blocks stored and removed a second."""
    stored = make_events(rng)
    removed = [(worker, BlockRemoved(event.block_hashes[::-1])) for worker, event in reversed(stored)]
    count = sum(len(event.block_hashes) for _, event in stored)
    index = PrefixIndex()
    for worker in WORKERS:
        index.add_worker(worker)
    return count / seconds(lambda: apply_all(index, stored)), count / seconds(lambda: apply_all(index, removed))


def measure_lookup(rng: random.Random) -> float:
    """Seconds for one lookup."""
    prompt = array("I", [rng.randrange(50_000) for _ in range(2000 * BLOCK + 5)])
    index = PrefixIndex()
    for number, worker in enumerate(WORKERS):
        index.add_worker(worker)
        depth = 2000 if number == 0 else rng.randrange(1, 2001)
        hashes: list[bytes | int] = [rng.getrandbits(64) for _ in range(depth)]
        index.apply(worker, BlockStored(hashes, None, prompt[: depth * BLOCK].tolist(), BLOCK))
    return min(seconds(lambda: index.match(prompt)) for _ in range(50))


def main() -> None:
    """Print the figures."""
    rng = random.Random(1)
    rates = [measure_events(rng) for _ in range(5)]
    stored, removed = max(rate for rate, _ in rates), max(rate for _, rate in rates)
    print(f"blocks stored   {stored / 1e6:6.2f} M/s")
    print(f"blocks removed  {removed / 1e6:6.2f} M/s")
    print(f"a cache in use  {2 / (1 / stored + 1 / removed) / 1e6:6.2f} M/s (each block stored once and removed once)")
    print(f"lookup          {min(measure_lookup(rng) for _ in range(3)) * 1e6:6.0f} us (2,000 blocks, 64 workers)")


if __name__ == "__main__":
    main()
