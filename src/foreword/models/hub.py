"""The Hugging Face hub, through its own library: what a repository holds, and the cache other tools share."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from foreword.errors import ModelFetchError
from foreword.models.digest import Digest

REACH_SECONDS = 4.0
"""How long the hub is given to answer before it counts as out of reach."""

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "*.tiktoken",
    "*.jinja",
    "chat_template.json",
    "config.json",
)
MODEL_FILES = (*TOKENIZER_FILES, "generation_config.json", "*.safetensors", "model.safetensors.index.json")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: where it is and what it must be."""

    name: str
    url: str
    size: int
    digest: Digest


def list_hub_files(hub_id: str) -> list[HubFile]:
    """The files of a repository's main branch, pinned to its commit; raises ModelFetchError within seconds."""
    from huggingface_hub import HfApi, hf_hub_url  # noqa: PLC0415 - half a second to import

    api = HfApi()
    info = _ask(hub_id, lambda: api.model_info(hub_id, files_metadata=True, timeout=REACH_SECONDS))
    return [
        HubFile(
            name=file.rfilename,
            url=hf_hub_url(hub_id, file.rfilename, revision=info.sha, endpoint=api.endpoint),
            size=file.size or 0,
            digest=Digest("sha256", file.lfs.sha256) if file.lfs else Digest("git", file.blob_id or ""),
        )
        for file in info.siblings or ()
    ]


def hub_headers() -> dict[str, str]:
    """The header that carries the user's hub token, if there is one."""
    from huggingface_hub import get_token  # noqa: PLC0415 - half a second to import

    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def cached_snapshot(hub_id: str) -> Path | None:
    """The folder of a repository in the hub's own cache (HF_HOME), or None; asks no network."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - half a second to import

    try:
        return Path(snapshot_download(hub_id, local_files_only=True))
    except Exception:  # noqa: BLE001 - the library raises errors of several libraries for "not there"
        return None


def fetch_snapshot(hub_id: str, patterns: tuple[str, ...]) -> Path:
    """Bring the files of a repository into the hub's own cache and check them; raises ModelFetchError."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - half a second to import
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415 - as above

    listed = {file.name: file for file in list_hub_files(hub_id)}
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=list(patterns)))
    except Exception as error:  # the library raises its HTTP client's errors too
        raise ModelFetchError(f"The Hugging Face hub does not give {hub_id} ({_first_line(error)}).") from error
    for name, file in listed.items():
        path = folder / name
        if path.is_file() and file.digest.of(path) != file.digest.value:
            path.resolve().unlink()
            raise ModelFetchError(f"{name} of {hub_id} has the wrong digest.", hint="It was removed; try again.")
    return folder


def _ask(hub_id: str, call: Callable[[], _Result]) -> _Result:
    """The call's result within REACH_SECONDS, name look-ups included; raises ModelFetchError."""
    answers: queue.SimpleQueue[_Result | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(call())
        except Exception as error:  # noqa: BLE001 - handed to the caller's thread
            answers.put(error)

    threading.Thread(target=run, daemon=True, name="hub").start()
    try:
        answer = answers.get(timeout=REACH_SECONDS)
    except queue.Empty:
        raise ModelFetchError(f"The Hugging Face hub does not answer within {REACH_SECONDS:.0f} seconds.") from None
    if isinstance(answer, Exception):
        raise ModelFetchError(f"The Hugging Face hub does not give {hub_id} ({_first_line(answer)}).") from answer
    return answer


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
