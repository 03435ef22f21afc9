"""A program that is killed: it keeps prompts of the tiny model for a day until it is no more.

``python -m tests.engine.disk_writer MODEL DISK SEED`` says when its engine stands, and then a line for every answer.
"""

from __future__ import annotations

import random
import sys
from itertools import count
from pathlib import Path

from foreword.engine.kv_cache import KVCache
from foreword.engine.llm import EngineConfig, LLMEngine
from foreword.engine.weights import open_model
from foreword.generation import GenerateRequest, SamplingParams

BLOCK, BUDGET, PROMPTS = 4, 160_000, 12
"""About a hundred blocks on disk; the prompts need twice as many."""


def prompt(number: int) -> list[int]:
    """One of the prompts: two share each first half."""
    first, second = random.Random(number // 2), random.Random(100 + number)
    return [first.randrange(3, 97) for _ in range(40)] + [second.randrange(3, 97) for _ in range(41)]


def engine(model: Path, disk: Path | None) -> LLMEngine:
    """An engine that holds hardly more than one prompt in memory."""
    source = open_model(model)
    memory = 24 * KVCache.block_bytes(source.config, BLOCK)
    config = EngineConfig(
        block_size=BLOCK,
        kv_cache_memory=memory,
        num_threads=1,
        prompt_cache_disk=disk,
        prompt_cache_disk_max_bytes=BUDGET,
    )
    return LLMEngine(source, config)


def answer(made: LLMEngine, number: int) -> tuple[int, list[int]]:
    """Cached tokens of a prompt that asks for a day, and its greedy answer."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    made.add(GenerateRequest("r", prompt(number), params, retention="24h"))
    outputs = []
    while made.has_unfinished_requests():
        outputs += made.step()
    return outputs[0].num_cached_tokens, [output.token_ids[0] for output in outputs]  # type: ignore[union-attr]


def main() -> None:
    """Ask until killed."""
    made, chance = engine(Path(sys.argv[1]), Path(sys.argv[2])), random.Random(sys.argv[3])
    print("ready", flush=True)  # noqa: T201
    for _ in count():
        number = chance.randrange(PROMPTS)
        cached, tokens = answer(made, number)
        print(number, cached, *tokens, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
