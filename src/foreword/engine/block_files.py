"""Which block files a folder holds, in order of their use, within a budget of bytes.

A block is the file ``MODEL/ORGANISATION/SALT/HASH.kv``; the first three are digests. All that is known of a block is in its
file: mtime is when it was last asked to be kept, and atime when it was last used. Whatever else is in the folder is left
alone. Blocks of other models are not found, but they count in the budget and age like all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path

from foreword.core.extra_keys import parse_salt
from foreword.core.retention import DAY
from foreword.errors import IntegrityError

_PATH = re.compile(r"([0-9a-f]{32})/[0-9a-f]{32}/[0-9a-f]{32}/([0-9a-f]{32,64})\.kv")


@dataclass(slots=True)
class BlockFile:
    """A file in the folder.

    Attributes:
        path: below the folder.
        size: in bytes.
        used: time of its last use.
        kept: time of the last wish to keep it; its life ends a day later.
    """

    path: str
    size: int
    used: float
    kept: float

    @property
    def key(self) -> str:
        """The model's digest and the block's hash: who it belongs to is in the hash."""
        return self.path[:33] + Path(self.path).stem


class BlockFiles:
    """The index of a folder: every block in it, and which goes first. Deletes files and sets their times; writes none.

    Not thread-safe. A file that somebody else deleted is noticed when it is touched.
    """

    def __init__(self, folder: Path, max_bytes: int, model: str) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.bytes = 0
        self.num_added = self.num_dropped = self.num_expired = 0
        self._model = digest(model)
        self._files: dict[str, BlockFile] = {}
        self._by_use: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._files)

    def find(self, block_hash: bytes) -> BlockFile | None:
        """The file of one of this model's blocks."""
        return self._files.get(f"{self._model}/{block_hash.hex()}")

    def path_of(self, block_hash: bytes, cache_salt: str | None) -> str:
        """Where one of this model's blocks belongs."""
        organisation, salt = parse_salt(cache_salt)
        return f"{self._model}/{digest(organisation)}/{digest(salt)}/{block_hash.hex()}.kv"

    def scan(self, now: float) -> None:
        """Learn what is there, and bring it within life and budget; times to come are wrong, and count as now."""
        for path, found in files_in(self.folder):
            used, kept = (min(ns // 1000 / 1_000_000, now) for ns in (found.st_atime_ns, found.st_mtime_ns))
            self.add(BlockFile(path, found.st_size, used, kept))
        self.expire(now)
        self.make_room(0)

    def add(self, file: BlockFile) -> None:
        """Note a file that is there now; a second one of the same block is one too many."""
        if (twin := self._files.get(file.key)) is not None:
            self.drop(twin)
        self._files[file.key] = file
        self.bytes += file.size
        self.num_added += 1
        heappush(self._by_use, (file.used, file.key))

    def touch(self, file: BlockFile, used: float, kept: float) -> None:
        """Note a use, and perhaps a wish to keep, here and in the file; raises OSError.

        Times are whole microseconds, so that they are the same when they are read again.
        """
        microseconds = round(used * 1_000_000), round(kept * 1_000_000)
        os.utime(self.folder / file.path, ns=(1000 * microseconds[0], 1000 * microseconds[1]))
        file.used, file.kept = (time / 1_000_000 for time in microseconds)
        heappush(self._by_use, (file.used, file.key))
        if len(self._by_use) > 2 * len(self._files) + 64:
            self._by_use = [(file.used, key) for key, file in self._files.items()]
            heapify(self._by_use)

    def drop(self, file: BlockFile) -> None:
        """Delete a file, and the folders that are empty without it."""
        del self._files[file.key]
        self.bytes -= file.size
        self.num_dropped += 1
        path = self.folder / file.path
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            for parent in path.parents[:3]:
                parent.rmdir()

    def make_room(self, size: int) -> None:
        """Delete the least recently used blocks until so many bytes more are within the budget; OSError if they never are."""
        if size > self.max_bytes:
            raise OSError(errno.EDQUOT, f"A block of {size} bytes is over the budget of {self.max_bytes}")
        while self._files and self.bytes + size > self.max_bytes:
            used, key = heappop(self._by_use)
            file = self._files.get(key)
            if file is not None and file.used == used:
                self.drop(file)

    def expire(self, now: float) -> None:
        """Delete the blocks whose day is over."""
        for file in [file for file in self._files.values() if file.kept + DAY <= now]:
            self.drop(file)
            self.num_expired += 1

    def reset(self, organisation: str | None, cache_salt: str | None) -> int:
        """Delete every model's blocks that belong to an organisation, a salt, or both; all for None. Returns how many."""
        wanted = [file for file in self._files.values() if belongs(file.path, organisation, cache_salt)]
        for file in wanted:
            self.drop(file)
        return len(wanted)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless index, folder, budget and counts agree."""
        held = {file.path: file.size for file in self._files.values()}
        there = {path: found.st_size for path, found in files_in(self.folder)}
        if held != there:
            raise IntegrityError(f"Folder and index differ in {sorted(held.items() ^ there.items())}.")
        if self.bytes != sum(held.values()) or self.bytes > self.max_bytes:
            raise IntegrityError(f"{self.bytes} bytes are counted, with a budget of {self.max_bytes}.")
        if self.num_added - self.num_dropped != len(held):
            raise IntegrityError(f"{self.num_added} added - {self.num_dropped} dropped != {len(held)} held.")
        if not {(file.used, key) for key, file in self._files.items()} <= set(self._by_use):
            raise IntegrityError("A block is missing in the order of use.")


def files_in(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The paths of the block files below a folder."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(root, name), folder)  # noqa: PTH118  thousands of them
            if _PATH.fullmatch(path):
                yield path, os.stat(os.path.join(root, name))  # noqa: PTH116,PTH118  as above


def belongs(path: str, organisation: str | None, cache_salt: str | None) -> bool:
    """Whether a path is an organisation's, a salt's, or both; None is any."""
    owners = path.split("/")[1:3]
    return all(
        name is None or digest(name) == owner for name, owner in zip((organisation, cache_salt), owners, strict=True)
    )


def digest(name: str | None) -> str:
    """A name as a folder; no two names, nor a name and none, have the same."""
    return hashlib.sha256(repr(name).encode()).hexdigest()[:32]
