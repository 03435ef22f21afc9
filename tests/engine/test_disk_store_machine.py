"""Random lives of a disk store against a naive twin: a dictionary that is searched from end to end."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from foreword.core.extra_keys import frame_salt, parse_salt
from foreword.engine.block_file import HEADER_BYTES
from foreword.engine.disk_store import DEPTH_SECONDS, DiskStore

BYTES, ROOM, DAY = 64, 5, 86_400.0
SALTS = [None, frame_salt("a"), frame_salt("a", "s"), frame_salt("b", "s")]
BLOCKS = st.tuples(st.integers(0, 3), st.integers(0, 2))


@dataclass
class Held:
    """What the twin knows of a block."""

    salt: str | None
    used: float
    kept: float
    damaged: bool = False


def hash_of(block: tuple[int, int]) -> bytes:
    """A block's hash: which salt's it is, and how deep."""
    return bytes(30) + bytes(block)


def content(block: tuple[int, int]) -> bytes:
    """A block's bytes."""
    return hash_of(block) * 2


class DiskStoreMachine(RuleBasedStateMachine):
    """Everything that an engine, an operator and a failing disk do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.folder = Path(tempfile.mkdtemp())
        self.twin: dict[tuple[int, int], Held] = {}
        self.store = self.open()

    def open(self) -> DiskStore:
        """A store with room for five blocks."""
        size = BYTES + HEADER_BYTES
        return DiskStore(
            self.folder, model="m", block_bytes=BYTES, max_bytes=ROOM * size + size // 2, clock=lambda: self.now
        )

    @rule(block=BLOCKS)
    def save(self, block: tuple[int, int]) -> None:
        """A request asks for a day."""
        used = self.now - block[1] * DEPTH_SECONDS
        known = self.twin.get(block)
        assert self.store.keep(hash_of(block), block[1]) == (known is not None)
        if known is not None:
            known.used, known.kept = used, self.now
            return
        assert self.store.put(hash_of(block), SALTS[block[0]], memoryview(content(block)), block[1])
        self.store.flush()
        if len(self.twin) == ROOM:
            del self.twin[min(self.twin, key=lambda other: (self.twin[other].used, hash_of(other)))]
        self.twin[block] = Held(SALTS[block[0]], used, self.now)

    @rule(block=BLOCKS)
    def load(self, block: tuple[int, int]) -> None:
        """A request finds a block, or not; what it finds is right."""
        self.expire()
        known = self.twin.get(block)
        found = self.store.get(hash_of(block), block[1])
        if known is None or known.damaged:
            assert found is None
            self.twin.pop(block, None)
        else:
            assert found is not None
            assert bytes(found) == content(block)
            known.used = self.now - block[1] * DEPTH_SECONDS

    @rule(block=BLOCKS, at=st.integers(0, BYTES + HEADER_BYTES - 1))
    def damage(self, block: tuple[int, int], at: int) -> None:
        """One byte of a file is another."""
        if block in self.twin and not self.twin[block].damaged:
            path = self.folder / self.store._files.path_of(hash_of(block), SALTS[block[0]])
            keep = path.stat()  # before the read: that is a use to some file systems
            changed = bytearray(path.read_bytes())
            changed[at] ^= 255
            path.write_bytes(changed)
            os.utime(path, ns=(keep.st_atime_ns, keep.st_mtime_ns))
            self.twin[block].damaged = True

    @rule(organisation=st.sampled_from([None, "a", "b"]), salt=st.sampled_from([None, "s"]))
    def reset(self, organisation: str | None, salt: str | None) -> None:
        """An admin empties something."""
        gone = [
            block
            for block, held in self.twin.items()
            if organisation in (None, parse_salt(held.salt)[0]) and salt in (None, parse_salt(held.salt)[1])
        ]
        assert self.store.reset(organisation=organisation, cache_salt=salt) == len(gone)
        for block in gone:
            del self.twin[block]

    @rule(seconds=st.sampled_from([1.0, 600.0, 30_000.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        assert self.store.get(bytes(32 * [255]), 0) is None  # stores forget what is over when they are asked
        self.expire()

    @rule()
    def restart(self) -> None:
        """The process ends and another begins."""
        self.store.close()
        self.store = self.open()
        self.expire()

    def expire(self) -> None:
        """Forget what is over."""
        self.twin = {block: held for block, held in self.twin.items() if held.kept + DAY > self.now}

    @invariant()
    def holds_what_the_twin_holds(self) -> None:
        """The same blocks, within the budget; counts add up."""
        self.store.check_integrity()
        blocks = [(salt, depth) for salt in range(4) for depth in range(3)]
        assert {block for block in blocks if hash_of(block) in self.store} == set(self.twin)
        seen = self.store.statistics()
        assert seen.found + seen.stored - seen.evicted == seen.held == len(self.twin)

    def teardown(self) -> None:
        """Nothing is left."""
        self.store.close()
        shutil.rmtree(self.folder)


def test_any_life_of_a_store_agrees_with_the_naive_twin() -> None:
    """Hits, order of eviction, resets, damage and restarts are the twin's after each step."""
    run_state_machine_as_test(
        DiskStoreMachine,
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_a_week_of_traffic_leaves_memory_and_folder_flat(tmp_path: Path) -> None:
    """A new prompt of a new tenant every five minutes: the seventh day holds no more than the second."""
    now = 1_000_000.0
    size = BYTES + HEADER_BYTES
    store = DiskStore(tmp_path, model="m", block_bytes=BYTES, max_bytes=50 * size, clock=lambda: now)

    def traffic(first: int, last: int) -> tuple[int, int]:
        nonlocal now
        for number in range(first, last):
            now += 300
            store.put(number.to_bytes(32, "big"), f"tenant {number}", memoryview(bytes(BYTES)), 0)
            store.get((number - number % 7).to_bytes(32, "big"), 0)
            if number % 50 == 0:
                store.flush()
        store.flush()
        store.check_integrity()
        gc.collect()
        return tracemalloc.get_traced_memory()[0], sum(1 for _ in tmp_path.rglob("*"))

    tracemalloc.start()
    early_memory, early_files = traffic(0, 576)
    late_memory, late_files = traffic(576, 2016)
    tracemalloc.stop()
    seen = store.statistics()
    store.close()
    assert late_memory - early_memory < 20_000
    assert early_files == late_files
    assert (seen.stored, seen.held) == (2016, 50)
