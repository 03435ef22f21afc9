"""Fingerprints of prompt prefixes: which system block a request opens with, and how many differ in five minutes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foreword.diagnose.fingerprint import fingerprint_ids, segment_fingerprints, split_request
from foreword.errors import TemplateError
from foreword.gateway.metrics import Sample
from foreword.gateway.tokenizers import LoadedTokenizer

WINDOW = 300.0
"""Seconds over which distinct fingerprints are counted."""
MAX_KEPT = 100_000
MAX_MEMOS = 1024

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Segments:
    """Fingerprints of a chat prompt's parts: of the ids of what it opens with, and of each segment."""

    prefix_fp: str | None
    tools_fp: str | None
    system_fp: str | None
    history_fp: str | None

    def as_log(self) -> Json:
        """The fields of the request's log line."""
        segments = {"tools_fp": self.tools_fp, "system_fp": self.system_fp, "history_fp": self.history_fp}
        return {"prefix_fp": self.prefix_fp, "segments": segments}


class SegmentFingerprints:
    """Fingerprints chat prompts. The system block's is remembered by its segments': it repeats, which is the point of it."""

    def __init__(self) -> None:
        self._memos: OrderedDict[tuple[str, str | None, str | None], str | None] = OrderedDict()

    def of(self, loaded: LoadedTokenizer, messages: Sequence[Json], tools: Sequence[Json], prompt: str) -> Segments:
        """The fingerprints of one rendered prompt."""
        identity = loaded.tokenizer.identity.digest
        parts = split_request({"messages": list(messages), "tools": list(tools)})
        segments = segment_fingerprints(parts, identity, loaded.name)
        key = (identity, segments["tools_fp"], segments["system_fp"])
        if key not in self._memos:
            block = _system_block(loaded, parts["system"].get("messages", ()), tools, prompt)
            ids = loaded.tokenizer.encode(block) if block else None
            self._memos[key] = None if ids is None else fingerprint_ids(ids, identity, loaded.name)
        self._memos.move_to_end(key)
        if len(self._memos) > MAX_MEMOS:
            self._memos.popitem(last=False)
        return Segments(self._memos[key], **segments)


def _system_block(loaded: LoadedTokenizer, system: Sequence[Json], tools: Sequence[Json], prompt: str) -> str | None:
    """What the prompt opens with whatever the user says; None when the template cannot say."""
    if loaded.template is None or not (system or tools):
        return None
    try:
        block = loaded.template.render(system, tools=list(tools) or None, add_generation_prompt=False)
    except TemplateError:
        return None
    return block if block and prompt.startswith(block) else None


class DistinctFingerprints:
    """Counts distinct fingerprints by model over the last five minutes; time is handed in."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], float] = OrderedDict()

    def add(self, model: str, fingerprint: str) -> None:
        """Note one request's fingerprint."""
        self._seen[model, fingerprint] = self._clock()
        self._seen.move_to_end((model, fingerprint))
        self._forget()

    def _forget(self) -> None:
        oldest = self._clock() - WINDOW
        while self._seen and (len(self._seen) > MAX_KEPT or next(iter(self._seen.values())) < oldest):
            self._seen.popitem(last=False)

    def samples(self) -> Iterator[Sample]:
        """The count of each model."""
        self._forget()
        for model, _ in list(self._seen):
            yield "distinct_prefix_fingerprints", (model,), 1
