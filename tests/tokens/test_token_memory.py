"""Memory as the system sees it, not as our counters tell it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from foreword.testing.material import tokenizer_path

pytestmark = [pytest.mark.material("qwen3"), pytest.mark.slow]

PROBE = Path(__file__).with_name("memory_probe.py")
MB = 1_000_000


def probe(scenario: str) -> dict[str, int]:
    """Run one scenario in a process of its own."""
    command = [sys.executable, str(PROBE), scenario, str(tokenizer_path("qwen3"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=280)
    measured: dict[str, int] = json.loads(done.stdout)
    return measured


@pytest.mark.parametrize("scenario", ["conversations", "conversations-han"])
def test_a_conversation_costs_three_bytes_per_byte_of_text(scenario: str) -> None:
    """Ten conversations of 100 turns and 200 KB grow the process by at most 3 bytes per byte, and the counter is honest."""
    measured = probe(scenario)
    assert measured["l1_evictions"] == 0
    assert measured["grown"] <= 3 * 10 * 200_000
    assert 0.6 * measured["grown"] <= measured["l1_bytes"] <= 1.5 * measured["grown"]


def test_a_flood_of_boundaries_costs_three_megabytes_at_most() -> None:
    """One prompt of 200 KB of "<|im_end|>a" (a peer's process grew by 1,371 MB)."""
    assert probe("flood")["grown"] <= 3 * MB


def test_ten_thousand_prompts_stay_inside_the_bounds() -> None:
    """200 MB of distinct prompts through 72 MiB of cache: the process never grows past the two bounds and a little."""
    measured = probe("prompts")
    bound = (48 + 24) << 20
    assert measured["l0_bytes"] <= 48 << 20
    assert measured["l1_bytes"] <= 24 << 20
    assert measured["peak"] <= bound + 4 * MB
    assert 0.6 * measured["grown"] <= measured["l0_bytes"] + measured["l1_bytes"]
