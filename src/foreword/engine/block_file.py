"""One block of KV as a file, which is believed only if it is, to the byte, what was written under its name.

A file is 8 bytes of magic that end with the format's version, a SHA-256, and the block's bytes. The digest also takes in
the model's identity and the block's hash: a file that was cut, changed, renamed or brought from another model fails.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

MAGIC = b"FWDKV\0\0\1"
HEADER_BYTES = len(MAGIC) + hashlib.sha256().digest_size


def write_block(path: Path, block: memoryview, identity: str, block_hash: bytes) -> None:
    """Write the file and have the disk take it; raises OSError. Rename it to its place afterwards: that is atomic.

    Only its owner may read it: KV gives away the prompt that it was computed from.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(MAGIC + _digest(block, identity, block_hash))
        file.write(block)
        file.flush()
        os.fsync(file.fileno())


def read_block(path: Path, block_bytes: int, identity: str, block_hash: bytes) -> memoryview | None:
    """The block, or None when this is not the file that was written; raises OSError when it cannot be read."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != HEADER_BYTES + block_bytes:
            return None
        content = memoryview(file.read(HEADER_BYTES + block_bytes))
    head, block = content[:HEADER_BYTES], content[HEADER_BYTES:]
    return block if head == MAGIC + _digest(block, identity, block_hash) else None


def _digest(block: memoryview, identity: str, block_hash: bytes) -> bytes:
    digest = hashlib.sha256(f"{identity}/{block_hash.hex()}/".encode())
    digest.update(block)
    return digest.digest()
