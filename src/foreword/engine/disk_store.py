"""Blocks of KV on disk: kept for a day, within a budget of bytes, through restarts and kill -9."""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import structlog

from foreword.engine.block_file import HEADER_BYTES, read_block, write_block
from foreword.engine.block_files import BlockFile, BlockFiles, belongs
from foreword.generation import DiskTierStatistics

log = structlog.get_logger(__name__)

MAX_QUEUED_BYTES = 256 << 20
"""Blocks that wait to be written hold no more memory than this; further ones are refused."""
SWEEP_SECONDS = 60.0
"""Blocks whose day is over are deleted this soon, whether anybody asks or not."""
CLOSE_SECONDS = 30.0
"""How long closing waits for the blocks that are still to be written."""
DEPTH_SECONDS = 1e-6
"""How much earlier a block counts as used than the one before it, so that a chain loses its tail before its head."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A block to be written to ``path``."""

    block_hash: bytes
    path: str
    block: memoryview
    used: float
    kept: float


class DiskStore:
    """The blocks of one model, by hash, in a folder that this process has to itself.

    One thread calls everything here; another, the store's own, writes. ``_lock`` guards what both know; it is held while
    files are renamed and deleted, not while a block is written. Disk errors cost hits and one warning.

    Args:
        folder: made if it is not there.
        model: what the bytes of a block depend on besides its hash: weights, data type, layout.
        block_bytes: of every block.
        max_bytes: of all files together; files of other models count.
        clock: the time of day in seconds; blocks age by it, also while no process has the folder.

    Raises:
        OSError: the folder cannot be made or read; BlockingIOError when another process has it.
    """

    def __init__(
        self, folder: Path, *, model: str, block_bytes: int, max_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._model, self._block_bytes, self._clock = model, block_bytes, clock
        self._lock_file = _lock_folder(folder)
        self._writing = folder / "writing"
        self._writing.unlink(missing_ok=True)
        self._files = BlockFiles(folder, max_bytes, model)
        self._files.scan(clock())
        self._num_found = self._files.num_added
        self._num_reset = self._num_damaged = self._num_read = self._num_failed = 0
        self._queue: dict[bytes, _Job] = {}
        self._closing = self._warned = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._writer = threading.Thread(target=self._write_forever, name="foreword-disk", daemon=True)
        self._writer.start()

    # Finding

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether the block was written; it may still turn out to be damaged."""
        return self._files.find(block_hash) is not None

    def get(self, block_hash: bytes, depth: int) -> memoryview | None:
        """Read the block, which is ``depth`` blocks behind its prompt's first; None when it is absent or damaged."""
        with self._lock:
            self._files.expire(self._clock())
            file = self._files.find(block_hash)
        block = self._read(file, block_hash) if file is not None else None
        with self._lock:
            if block is not None and self._touch(block_hash, depth):
                self._num_read += 1
            elif (file := self._files.find(block_hash)) is not None:
                self._files.drop(file)
                self._num_damaged += 1
        return block

    # Keeping

    def keep(self, block_hash: bytes, depth: int) -> bool:
        """Give a block that is here, or on its way, another day; False when it should be ``put``."""
        with self._lock:
            return block_hash in self._queue or self._touch(block_hash, depth, kept=self._clock())

    def put(self, block_hash: bytes, cache_salt: str | None, block: memoryview, depth: int) -> bool:
        """Have a block written soon, and kept for a day; False when too many wait. Nobody may change the bytes any more."""
        now, path = self._clock(), self._files.path_of(block_hash, cache_salt)
        with self._lock:
            if (len(self._queue) + 1) * self._block_bytes > MAX_QUEUED_BYTES or self._closing:
                return False
            self._queue[block_hash] = _Job(block_hash, path, block, now - depth * DEPTH_SECONDS, now)
            self._changed.notify_all()
        return True

    # Forgetting

    def reset(self, *, organisation: str | None = None, cache_salt: str | None = None) -> int:
        """Delete everything, or what belongs to an organisation, a salt, or both; returns how many blocks that was.

        Blocks that still wait to be written, and blocks of other models, go too.
        """
        with self._lock:
            waiting = [job for job in self._queue.values() if belongs(job.path, organisation, cache_salt)]
            for job in waiting:
                del self._queue[job.block_hash]
            dropped = self._files.reset(organisation, cache_salt)
            self._num_reset += dropped
            self._changed.notify_all()
        return dropped + len(waiting)

    # Ending

    def flush(self) -> None:
        """Return when nothing waits to be written."""
        with self._lock:
            self._changed.wait_for(lambda: not self._queue)

    def close(self) -> None:
        """Write what waits, end the thread and let go of the folder."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(CLOSE_SECONDS)
        self._lock_file.close()

    # Watching

    def statistics(self) -> DiskTierStatistics:
        """Counts since the start and the state now; waits for nobody."""
        files = self._files
        return DiskTierStatistics(
            held=len(files),
            bytes=files.bytes,
            max_bytes=files.max_bytes,
            found=self._num_found,
            stored=files.num_added - self._num_found,
            evicted=files.num_dropped,
            expired=files.num_expired,
            reset=self._num_reset,
            damaged=self._num_damaged,
            read=self._num_read,
            failed=self._num_failed,
            queued=len(self._queue),
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError unless index, files, budget and counts agree."""
        with self._lock:
            self._files.check_integrity()

    # Steps

    def _read(self, file: BlockFile, block_hash: bytes) -> memoryview | None:
        try:
            return read_block(self._files.folder / file.path, self._block_bytes, self._model, block_hash)
        except FileNotFoundError:  # the writer has just made room of it
            return None
        except OSError as error:
            self._warn(error)
            return None

    def _touch(self, block_hash: bytes, depth: int, kept: float | None = None) -> bool:
        """Note a use; False when the block is not there. The lock is held."""
        file = self._files.find(block_hash)
        if file is None:
            return False
        used = self._clock() - depth * DEPTH_SECONDS
        try:
            self._files.touch(file, used, file.kept if kept is None else kept)
        except OSError as error:
            self._warn(error)
            self._files.drop(file)
            self._num_damaged += 1
            return False
        return True

    def _warn(self, error: OSError) -> None:
        """Say once that the disk gives trouble; the counts say how much."""
        if not self._warned:
            self._warned = True
            log.warning("prompt_cache_disk.failing", folder=str(self._files.folder), error=str(error))

    # The writer's thread

    def _write_forever(self) -> None:
        while (job := self._next_job()) is not None:
            error = self._write(job)
            with self._lock:
                if self._queue.get(job.block_hash) is job:
                    error = error or self._publish(job)
                    del self._queue[job.block_hash]
                    self._num_failed += error is not None
                with contextlib.suppress(OSError):
                    self._writing.unlink(missing_ok=True)  # of a block that failed, or was reset meanwhile
                self._changed.notify_all()
            if error is not None:
                self._warn(error)

    def _next_job(self) -> _Job | None:
        """Wait for a block to write; None when the store is closed and nothing is left."""
        with self._lock:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait(SWEEP_SECONDS)
                self._files.expire(self._clock())
            return next(iter(self._queue.values()))

    def _write(self, job: _Job) -> OSError | None:
        """Write a block beside its place."""
        try:
            write_block(self._writing, job.block, self._model, job.block_hash)
        except OSError as error:
            return error
        return None

    def _publish(self, job: _Job) -> OSError | None:
        """Rename what was written into its place, where others have made room. The lock is held."""
        size = HEADER_BYTES + self._block_bytes
        path = self._files.folder / job.path
        try:
            self._files.make_room(size)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writing.replace(path)
            file = BlockFile(job.path, size, job.used, job.kept)
            self._files.add(file)
            self._files.touch(file, job.used, job.kept)
        except OSError as error:
            return error
        return None


def _lock_folder(folder: Path) -> IO[str]:
    """Take the folder for this process, until the file is closed or the process ends."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
