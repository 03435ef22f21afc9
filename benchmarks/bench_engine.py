"""The embedded engine: decode speed in one stream, and what a prefill costs beside vLLM's CPU build.

The prefill row appears where vLLM is installed (``python -m benchmarks.vllm install``).
"""

from __future__ import annotations

import statistics
import time

from benchmarks.table import Row, compare
from benchmarks.vllm import VERSION, VLLMWorker, model_folder, small_model, vllm_installed, vllm_workers
from foreword.engine import LLM
from foreword.generation import SamplingParams

DECODE_PROMISED = 35.0
ROUNDS = 5


def rows() -> list[Row]:
    """Decode against the speed promised; prefill in CPU seconds against vLLM."""
    weights = small_model().weights
    assert weights is not None
    with LLM(weights) as llm:
        decode = decode_row(llm)
    return [decode, *map(prefill_row, ("bfloat16", "float32"))] if vllm_installed() else [decode]


def decode_row(llm: LLM) -> Row:
    """Tokens a second of one greedy stream after a short prompt."""
    rates = [decode_rate(llm) for _ in range(ROUNDS + 1)][1:]
    ratios = [rate / DECODE_PROMISED for rate in rates]
    return Row(
        "decode, one stream", statistics.median(rates), DECODE_PROMISED, "promised", "tokens/s",
        statistics.median(ratios), (min(ratios), max(ratios)), 1,
    )  # fmt: skip


def decode_rate(llm: LLM, count: int = 64) -> float:
    """Tokens a second, the prompt's own step left out."""
    prompt = list(range(100, 130))
    one, many = (SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (1, count + 1))
    start = time.perf_counter()
    llm.generate([prompt], one)
    first = time.perf_counter() - start
    start = time.perf_counter()
    llm.generate([prompt], many)
    return count / (time.perf_counter() - start - first)


def prompt_of(number: int, length: int = 2000) -> list[int]:
    """Token ids that share no prefix with another number's."""
    return [(number * 7919 + index * 31) % 40_000 + 100 for index in range(length)]


def cpu_seconds_of_prefill(llm: LLM, number: int) -> float:
    """Ours, to the first token."""
    before = time.process_time()
    llm.generate([prompt_of(number)], SamplingParams(temperature=0, max_tokens=1))
    return time.process_time() - before


def cpu_seconds_of_vllm(worker: VLLMWorker, number: int) -> float:
    """The server's, to the first token."""
    before = worker.cpu_seconds()
    worker.call("/v1/completions", {"prompt": prompt_of(number), "max_tokens": 1, "temperature": 0})
    return worker.cpu_seconds() - before


def prefill_row(dtype: str) -> Row:
    """CPU seconds of 2,000-token prompts, taken in turn.

    Ours are float32. A processor with AMX has several times as many bfloat16 products in a second, so the peer's own
    float32 stands beside its bfloat16.
    """
    with vllm_workers(1, "--dtype", dtype) as (worker,), LLM(model_folder()) as llm:
        pairs = [(cpu_seconds_of_prefill(llm, n), cpu_seconds_of_vllm(worker, n)) for n in range(ROUNDS + 1)][1:]
    ours, theirs = zip(*pairs, strict=True)
    return compare(
        "prefill of 2,000 tokens, CPU time",
        ours,
        theirs,
        peer_name=f"vLLM {VERSION} CPU, {dtype}",
        target=0.5,
        unit="s",
    )
