"""Digests that files of models are known by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Digest:
    """A file's digest: "sha256", or "git", the SHA-1 git gives a blob, which the hub lists for small files."""

    algorithm: Literal["sha256", "git"]
    value: str

    def of(self, path: Path) -> str:
        """The digest of a file by this algorithm, in hex."""
        if self.algorithm == "sha256":
            return file_digest(path)
        content = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
