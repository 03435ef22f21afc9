"""Prefixes kept for a day: on disk, through eviction and restart, damaged in every way, and never wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.engine.test_prefix_caching import GREEDY, ONE, Counting, ids, tokens

from foreword.core.extra_keys import frame_salt
from foreword.core.retention import IN_MEMORY
from foreword.engine import disk_store
from foreword.engine.block_file import HEADER_BYTES
from foreword.engine.disk_store import DiskStore
from foreword.engine.llm import LLMEngine
from foreword.generation import DiskTierStatistics

DAY: dict[str, Any] = {"retention": "24h"}
BUDGET = 10_000_000


class Lives:
    """Engines over the tiny model that follow each other on one folder, under one wall clock."""

    def __init__(self, make_tiny: Callable[..., Any], folder: Path) -> None:
        self.tiny = make_tiny()
        self.folder = folder
        self.wall = 1_000_000.0
        self.running: Counting | None = None

    def start(self, **changes: Any) -> Counting:
        """End the last one, if it still runs, and start the next."""
        self.stop()
        settings = {"prompt_cache_disk": self.folder, "prompt_cache_disk_max_bytes": BUDGET, "retention": IN_MEMORY}
        self.running = Counting(self.tiny, wall_clock=lambda: self.wall, **{**settings, **changes})
        return self.running

    def stop(self) -> None:
        """End it in good order."""
        if self.running is not None:
            self.running.engine.close()
        self.running = None

    def files(self) -> list[Path]:
        """The blocks on disk."""
        return sorted(self.folder.rglob("*.kv"))


def store_of(counting: Counting) -> DiskStore:
    """The disk tier's store."""
    assert counting.engine.disk is not None
    return counting.engine.disk.store


def seen(counting: Counting) -> DiskTierStatistics:
    """What the store counts once everything is written."""
    store_of(counting).flush()
    return store_of(counting).statistics()


def cached(counting: Counting, prompt: list[int], **more: Any) -> int:
    """Cached tokens of a request for one token."""
    return counting.ask(prompt, ONE, **more)[0].num_cached_tokens


@pytest.fixture
def lives(make_tiny: Callable[..., Any], tmp_path: Path) -> Iterator[Lives]:
    """Engines on a folder of their own."""
    made = Lives(make_tiny, tmp_path / "disk")
    yield made
    made.stop()


def test_a_day_survives_a_restart(lives: Lives) -> None:
    """After a restart every full block of prompt and answer is found, and the answer is the same."""
    first = tokens(lives.start().ask(ids(45), **DAY))
    counting = lives.start()
    outputs = counting.ask(ids(45))
    assert outputs[0].num_cached_tokens == 44
    assert tokens(outputs) == first
    assert counting.computed == 1 + len(first) - 1
    statistics = counting.engine.statistics().prefix_cache
    assert (statistics.queries, statistics.hits, statistics.restored) == (45, 44, 44)
    assert cached(counting, ids(45) + first + [5]) == 52


def test_logprobs_are_those_of_the_first_life(lives: Lives) -> None:
    """KV from disk is the same to the bit, so log probabilities differ only by the order of sums."""
    without = lives.start().ask(ids(150), **DAY)
    with_hit = lives.start().ask(ids(150))
    for a, b in zip(without, with_hit, strict=True):
        assert a.logprobs is not None
        assert b.logprobs is not None
        assert dict(a.logprobs[0].top) == pytest.approx(dict(b.logprobs[0].top), abs=1e-4)


def test_the_in_memory_life_is_no_day(lives: Lives) -> None:
    """What was not asked for a day is gone after a restart, and after ten minutes; what was comes back from disk."""
    counting = lives.start()
    cached(counting, ids(45))
    cached(counting, ids(45, seed=1), **DAY)
    store_of(counting).flush()
    counting.now = 601.0
    assert (cached(counting, ids(45)), cached(counting, ids(45, seed=1))) == (0, 44)
    counting = lives.start()
    assert (cached(counting, ids(45)), cached(counting, ids(45, seed=1))) == (0, 44)


def test_a_day_survives_eviction(lives: Lives) -> None:
    """In a cache that has room for one prompt only, an evicted prefix comes back from disk."""
    counting = lives.start(num_blocks=16)
    for seed in range(4):
        assert cached(counting, ids(45, seed), **DAY) == 0
        store_of(counting).flush()
    assert [cached(counting, ids(45, seed)) for seed in range(4)] == [44] * 4
    assert counting.engine.statistics().prefix_cache.evicted > 0


def test_it_ends_after_a_day(lives: Lives) -> None:
    """A block lives for 24 hours from the last request that asked for them; other hits do not prolong it."""
    cached(lives.start(), ids(45), **DAY)
    lives.wall += 86_399
    assert cached(lives.start(), ids(45)) == 44
    lives.wall += 1
    assert cached(lives.start(), ids(45), **DAY) == 0
    lives.wall += 80_000
    assert cached(lives.start(), ids(45), **DAY) == 44
    lives.wall += 80_000
    assert cached(lives.start(), ids(45)) == 44
    lives.stop()
    lives.wall += 10_000
    lives.start()
    assert lives.files() == []


def test_what_was_only_found_is_kept_too(lives: Lives) -> None:
    """A request for a day writes the blocks that earlier requests left in memory alone."""
    counting = lives.start()
    cached(counting, ids(45))
    assert cached(counting, ids(45), **DAY) == 44
    assert cached(lives.start(), ids(45)) == 44


def test_only_full_blocks_are_found_and_never_the_last_token(lives: Lives) -> None:
    """The same rule as in memory: at most one token less than there are."""
    cached(lives.start(), ids(44), **DAY)
    counting = lives.start()
    assert [cached(counting, ids(length)) for length in (44, 43, 45)] == [40, 40, 44]


def test_salts_and_organisations_share_nothing(lives: Lives) -> None:
    """After a restart each finds its own blocks only."""
    salts = [None, frame_salt("org_1"), frame_salt("org_1", "2345"), frame_salt("org_12345"), "2345"]
    counting = lives.start()
    assert [cached(counting, ids(45), cache_salt=salt, **DAY) for salt in salts[:-1]] == [0] * 4
    counting = lives.start()
    assert [cached(counting, ids(45), cache_salt=salt) for salt in salts] == [44, 44, 44, 44, 0]


@pytest.mark.parametrize(
    "organisation,cache_salt,left",
    [
        (None, None, [0, 0, 0, 0]),
        ("a", None, [44, 0, 0, 44]),
        (None, "s", [44, 44, 0, 0]),
        ("a", "s", [44, 44, 0, 44]),
        ("none", None, [44, 44, 44, 44]),
    ],
)
def test_reset_empties_the_disk_too(
    lives: Lives, organisation: str | None, cache_salt: str | None, left: list[int]
) -> None:
    """All, an organisation's, a salt's, or both; a restart brings nothing of it back."""
    salts = [None, frame_salt("a"), frame_salt("a", "s"), frame_salt("b", "s")]
    counting = lives.start()
    for salt in salts:
        cached(counting, ids(45), cache_salt=salt, **DAY)
    store_of(counting).flush()
    emptied = counting.engine.reset_prefix_cache(organisation, cache_salt)
    assert emptied.num_blocks == emptied.num_disk_blocks == 11 * left.count(0)
    assert [cached(counting, ids(45), cache_salt=salt) for salt in salts] == left
    counting = lives.start()
    assert [cached(counting, ids(45), cache_salt=salt) for salt in salts] == left


def test_what_is_being_written_is_reset_as_well(lives: Lives) -> None:
    """A block that waits to be written when its organisation is emptied never gets to disk."""
    counting = lives.start()
    store = store_of(counting)
    with store._lock:  # the writer cannot publish meanwhile
        block = memoryview(bytes(store._block_bytes))
        path = store._files.path_of(bytes(32), None)
        store._queue[bytes(32)] = disk_store._Job(bytes(32), path, block, 0, lives.wall)
        store._changed.notify_all()
    store.reset()
    store.flush()
    assert lives.files() == []
    store.check_integrity()


def flip(path: Path) -> None:
    """One bit in the middle is another."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swap_head(path: Path) -> None:
    """A later version of the format."""
    path.write_bytes(b"FWDKV\0\0\2" + path.read_bytes()[8:])


def impersonate(path: Path) -> None:
    """The whole and sound file of another block."""
    other = next(file for file in sorted(path.parent.iterdir()) if file != path)
    path.write_bytes(other.read_bytes())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "headless": lambda path: os.truncate(path, HEADER_BYTES - 1),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "version": swap_head,
    "impostor": impersonate,
    "gone": lambda path: path.unlink(),
    "text": lambda path: path.write_text("What should I cook for dinner?"),
}


@pytest.mark.parametrize("while_running", [True, False])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_a_miss(lives: Lives, kind: str, *, while_running: bool) -> None:
    """What is not, to the byte, what was written is deleted and computed anew; the answer does not change."""
    answer = tokens(lives.start().ask(ids(45), **DAY))
    if while_running:
        counting = lives.start()
        DAMAGE[kind](path_of_block(lives, counting, 5))
    else:
        path = path_of_block(lives, lives.start(), 5)
        lives.stop()
        DAMAGE[kind](path)
        counting = lives.start()
    outputs = counting.ask(ids(45), **DAY)
    assert (outputs[0].num_cached_tokens, tokens(outputs)) == (20, answer)
    assert seen(counting).damaged == (kind != "gone" or while_running)
    assert cached(lives.start(), ids(45)) == 44
    assert lives.running is not None
    store_of(lives.running).check_integrity()


def path_of_block(lives: Lives, counting: Counting, depth: int) -> Path:
    """Where a block of the usual prompt is."""
    block_hash = counting.engine.prefix_cache.hasher.hash_tokens(ids(45))[depth]
    return lives.folder / store_of(counting)._files.path_of(block_hash, None)


def test_another_model_finds_nothing(lives: Lives, make_tiny: Callable[..., Any]) -> None:
    """Other weights, another block size or hash seed: nothing is found, and the files of the first model stay."""
    cached(lives.start(), ids(45), **DAY)
    first = lives.tiny
    assert cached(lives.start(hash_seed="7"), ids(45)) == 0
    lives.tiny = make_tiny(rms_norm_eps=1e-6)
    assert cached(lives.start(), ids(45)) == 0
    lives.tiny = first
    assert cached(lives.start(), ids(45)) == 44


def test_files_of_another_model_are_not_believed(lives: Lives) -> None:
    """A sound file that was moved into this model's folder fails its checksum."""
    cached(lives.start(hash_seed="7"), ids(45), **DAY)
    foreign = path_of_block(lives, lives.start(hash_seed="7"), 0)
    cached(lives.start(), ids(45), **DAY)
    own = path_of_block(lives, lives.start(), 0)
    lives.stop()
    own.write_bytes(foreign.read_bytes())
    counting = lives.start()
    assert cached(counting, ids(45)) == 0
    assert seen(counting).damaged == 1


def test_what_is_not_ours_is_left_alone(lives: Lives) -> None:
    """A folder with other things in it keeps them."""
    (lives.folder / "a" / "b").mkdir(parents=True)
    (lives.folder / "a" / "b" / "letter.kv").write_text("Dear Anna")
    cached(lives.start(prompt_cache_disk_max_bytes=30_000), ids(45), **DAY)
    lives.start().engine.reset_prefix_cache()
    assert [path.name for path in lives.files()] == ["letter.kv"]


def test_the_budget_holds_and_a_chain_loses_its_tail_first(lives: Lives) -> None:
    """With room for 12 blocks, the least recently used prompt loses its last blocks; a restart with less room goes on so."""
    counting = lives.start()
    size = HEADER_BYTES + store_of(counting)._block_bytes
    counting = lives.start(prompt_cache_disk_max_bytes=12 * size)
    for seed in range(2):
        lives.wall += 10
        cached(counting, ids(29, seed), **DAY)
    assert (seen(counting).held, seen(counting).bytes, seen(counting).evicted) == (12, 12 * size, 2)
    counting = lives.start(prompt_cache_disk_max_bytes=12 * size)
    assert cached(counting, ids(29, 0)) == 20
    lives.wall += 10
    assert cached(counting, ids(29, 1)) == 28
    counting = lives.start(prompt_cache_disk_max_bytes=9 * size)
    assert seen(counting).held == 9
    assert [cached(counting, ids(29, seed)) for seed in range(2)] == [8, 28]
    store_of(counting).check_integrity()


def test_a_budget_below_one_block_keeps_nothing(lives: Lives) -> None:
    """It is said once, and requests go on."""
    counting = lives.start(prompt_cache_disk_max_bytes=100)
    with structlog.testing.capture_logs() as logs:
        cached(counting, ids(45), **DAY)
        assert (seen(counting).held, seen(counting).failed) == (0, 11)
    assert [entry["event"] for entry in logs] == ["prompt_cache_disk.failing"]


def test_a_full_disk_is_one_warning(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write fails: one warning, answers as always; when there is room again blocks are written."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    counting = lives.start()
    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(disk_store, "write_block", full)
        for seed in range(3):
            assert cached(counting, ids(45, seed), **DAY) == 0
        assert (seen(counting).failed, seen(counting).held) == (33, 0)
    assert [entry["event"] for entry in logs] == ["prompt_cache_disk.failing"]
    assert cached(counting, ids(45), **DAY) == 44
    assert seen(counting).held == 11


@pytest.mark.parametrize("trouble", ["file", "in use"])
def test_a_folder_that_cannot_be_had_is_one_warning(lives: Lives, trouble: str, tmp_path: Path) -> None:
    """Without its folder the engine keeps what it can in memory, as long as it can."""
    if trouble == "file":
        lives.folder.write_text("no folder")
    else:
        owner = Counting(lives.tiny, prompt_cache_disk=lives.folder)
    with structlog.testing.capture_logs() as logs:
        counting = lives.start()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("prompt_cache_disk.off", "warning")]
    cached(counting, ids(45), **DAY)
    cached(counting, ids(45, seed=1))
    counting.now = 86_399.0
    assert (cached(counting, ids(45)), cached(counting, ids(45, seed=1))) == (44, 0)
    if trouble == "in use":
        owner.engine.close()


def test_too_many_waiting_blocks_are_offered_again(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is behind, blocks wait in memory up to a bound; the rest is written by later steps and requests."""
    counting = lives.start()
    store = store_of(counting)
    monkeypatch.setattr(disk_store, "MAX_QUEUED_BYTES", 4 * store._block_bytes)
    while seen(counting).held < 11:
        before = seen(counting).held
        cached(counting, ids(45), **DAY)
        assert seen(counting).held > before


def test_waiting_companions_are_restored_once(lives: Lives) -> None:
    """Requests that arrive together for one prefix on disk read it once, and one that is aborted leaves no harm."""
    cached(lives.start(), ids(160), **DAY)
    counting = lives.start()
    for index in range(3):
        counting.add(str(index), ids(160) + ids(6, seed=index + 1), ONE)
    counting.engine.step()
    counting.engine.abort("0")
    outputs = counting.run()
    assert [outputs[str(index)][0].num_cached_tokens for index in (1, 2)] == [160, 160]
    assert seen(counting).read == 40
    store_of(counting).check_integrity()


def test_decoding_goes_on_beside_a_restore(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt comes back a piece a step, and a sequence that decodes gets a token in each of them."""
    cached(lives.start(), ids(160), **DAY)
    counting = lives.start()
    monkeypatch.setattr("foreword.engine.disk_tier.RESTORE_BYTES", 1)
    counting.add("decodes", ids(9, seed=5), replace(GREEDY, max_tokens=60))
    counting.engine.step()
    counting.add("comes back", ids(160), ONE)
    counting.engine.step()
    for _ in range(38):
        assert [output.request_id for output in counting.engine.step()] == ["decodes"]
    assert {output.request_id for output in counting.engine.step()} == {"decodes", "comes back"}


def test_files_are_their_owners_alone(lives: Lives) -> None:
    """KV gives away the prompt: nobody else may read it."""
    cached(lives.start(), ids(45), **DAY)
    lives.stop()
    assert {path.stat().st_mode & 0o777 for path in lives.files()} == {0o600}
    assert lives.folder.stat().st_mode & 0o777 == 0o700


def test_engine_without_a_folder_has_no_tier(tiny: Any) -> None:
    """The library writes nothing unless told where."""
    counting = Counting(tiny)
    assert isinstance(counting.engine, LLMEngine)
    assert counting.engine.disk is None
    counting.engine.close()
