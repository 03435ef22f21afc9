"""What one scenario costs the process, measured at its resident set: ``python memory_probe.py SCENARIO TOKENIZER``.

Run by test_token_memory.py in a process of its own. Everything is encoded once without a cache first, so that what the
encoder keeps for itself and what the allocator has ever asked for is there before the count starts; free memory goes
back to the system before each reading.
"""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer

LIBC = ctypes.CDLL("libc.so.6")
WORDS = [
    f"{a}{b}"
    for a in ("the ", "of ", "capital ", "France ", "know", "see", "we ", "tell ")
    for b in ("a", "ing ", "s ", "er ", "12 ")
]
HAN = "机器学习是人工智能的一个分支它使计算机能够从数据中学习今天天气很好我们去公园吧"


def resident() -> int:
    """Bytes in the resident set with nothing free held back."""
    gc.collect()
    LIBC.malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def prose(size: int, salt: int, words: list[str] = WORDS) -> str:
    """Words in an order that the salt decides."""
    state, parts, length = salt + 1, [], 0
    while length < size:
        state = state * 6364136223846793005 % 2**64 + 1442695040888963407
        parts.append(words[(state >> 33) % len(words)])
        length += len(parts[-1])
    return "".join(parts)[:size]


def conversations(words: list[str], count: int = 10) -> Iterator[str]:
    """Conversations of 100 turns and 200 KB in UTF-8, each asked for at every tenth turn and at its end."""
    width = len("".join(words).encode()) / len("".join(words))
    for number in range(count):
        text = ""
        for turn in range(100):
            text += f"<|im_start|>user\n{prose(int(1_965 / width), 1000 * number + turn, words)}<|im_end|>\n"
            if turn % 10 == 9:
                yield text


def flood() -> Iterator[str]:
    """200 KB of boundaries."""
    yield ("<|im_end|>a" * 20_000)[:200_000]


def prompts() -> Iterator[str]:
    """10,000 distinct prompts of 20 KB."""
    for number in range(10_000):
        yield f"<|im_start|>system\n{prose(200, number)}<|im_end|>\n" + PAGES[number % 50] + prose(40, number)


PAGES = [prose(19_700, 7_000_000 + n) for n in range(50)]
SCENARIOS: dict[str, tuple[Callable[[], Iterator[str]], L0Config | None, L1Config]] = {
    "conversations": (lambda: conversations(WORDS), None, L1Config(max_memory=64 << 20)),
    "conversations-han": (lambda: conversations(list(HAN)), None, L1Config(max_memory=64 << 20)),
    "flood": (flood, None, L1Config()),
    "prompts": (prompts, L0Config(max_entries=10_000, max_memory=48 << 20), L1Config(max_memory=24 << 20)),
}


def main(scenario: str, path: str) -> None:
    """Print the growth, the counters and the distinct text held, as JSON."""
    make, l0, l1 = SCENARIOS[scenario]
    tokenizer = load_tokenizer(Path(path))
    warm = make() if scenario != "prompts" else (text for _, text in zip(range(300), make(), strict=False))
    for text in warm:
        tokenizer.encode(text)
    cache = CachedTokenizer(tokenizer, l0=l0, l1=l1)
    before, peak = resident(), 0
    for number, text in enumerate(make()):
        cache.encode(text)
        if number % 1000 == 999:
            peak = max(peak, resident() - before)
    statistics = cache.statistics()
    grown = resident() - before
    measured = {
        "grown": grown,
        "peak": max(peak, grown),
        "l1_bytes": statistics.l1.bytes,
        "l0_bytes": statistics.l0.bytes if l0 else 0,
        "l1_evictions": statistics.l1.evictions,
    }
    sys.stdout.write(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
