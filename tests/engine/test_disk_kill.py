"""kill -9 at random points: the next life starts clean, keeps the budget, and never serves wrong KV."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.engine.disk_writer import BUDGET, PROMPTS, answer, engine


def live(model: Path, disk: Path, seed: int, seconds: float) -> list[list[int]]:
    """One life: what it answered until it was killed."""
    command = [sys.executable, "-m", "tests.engine.disk_writer", str(model), str(disk), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)  # the moment of death is what is tested
        process.kill()
        lines = process.stdout.read().splitlines(keepends=True)
    return [list(map(int, line.split())) for line in lines if line.endswith("\n")]


def die_often(model: Path, disk: Path, times: int) -> int:
    """Many lives, each looked at after its end; returns how many tokens they found on disk at the start."""
    cold = engine(model, None)
    right = [answer(cold, number)[1] for number in range(PROMPTS)]
    cold.close()
    chance, found = random.Random(times), 0
    for seed in range(times):
        for number, cached, *tokens in live(model, disk, seed, chance.uniform(0, 0.25)):
            assert tokens == right[number]
            found += cached
        heir = engine(model, disk)
        assert heir.disk is not None
        assert not (disk / "writing").exists()
        assert heir.disk.store.statistics().bytes <= BUDGET
        heir.disk.store.check_integrity()
        number = chance.randrange(PROMPTS)
        cached, tokens = answer(heir, number)
        assert tokens == right[number]
        assert heir.disk.store.statistics().damaged == 0
        found += cached
        heir.close()
    return found


def test_killed_five_times(tiny: Any, tmp_path: Path) -> None:
    """Five deaths: every answer is a cold engine's, and what was written before a death is used after it."""
    assert die_often(tiny.path, tmp_path / "disk", 5) > 0


@pytest.mark.slow
def test_killed_a_hundred_times(tiny: Any, tmp_path: Path) -> None:
    """A hundred deaths."""
    assert die_often(tiny.path, tmp_path / "disk", 100) > 1000
