"""Fingerprints of prompt prefixes: which system block a request opens with, and how many differ in five minutes."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foreword.errors import TemplateError
from foreword.gateway.metrics import Sample
from foreword.gateway.tokenizers import LoadedTokenizer

WINDOW = 300.0
"""Seconds over which distinct fingerprints are counted."""
MAX_KEPT = 100_000
MAX_MEMOS = 1024

Json = dict[str, Any]


def prefix_fingerprint(ids: Iterable[int], tokenizer: str, model: str) -> str:
    """First 16 hex digits of the sha256 of ``model|tokenizer|id,id,...``: another vocabulary is another key."""
    return _digest(f"{model}|{tokenizer}|" + ",".join(map(str, ids)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Segments:
    """Fingerprints of a chat prompt's parts: of the ids of its system block, and of the text of each segment."""

    prefix_fp: str | None
    tools_fp: str | None
    system_fp: str | None
    history_fp: str | None

    def as_log(self) -> Json:
        """The fields of the request's log line."""
        segments = {"tools_fp": self.tools_fp, "system_fp": self.system_fp, "history_fp": self.history_fp}
        return {"prefix_fp": self.prefix_fp, "segments": segments}


class SegmentFingerprints:
    """Fingerprints chat prompts. The system block's is remembered by its text: it repeats, which is the point of it."""

    def __init__(self) -> None:
        self._memos: OrderedDict[tuple[str, str, str], str | None] = OrderedDict()

    def of(self, loaded: LoadedTokenizer, messages: Sequence[Json], tools: Sequence[Json], prompt: str) -> Segments:
        """The fingerprints of one rendered prompt."""
        system = _leading_system(messages)
        tools_text = _canonical(tools) if tools else ""
        system_text = _canonical(system) if system else ""
        history = messages[len(system) : -1]
        return Segments(
            self._prefix(loaded, system, tools, (loaded.name, tools_text, system_text), prompt),
            _digest(tools_text) if tools else None,
            _digest(system_text) if system else None,
            _digest(_canonical(history)) if history else None,
        )

    def _prefix(
        self,
        loaded: LoadedTokenizer,
        system: Sequence[Json],
        tools: Sequence[Json],
        key: tuple[str, str, str],
        prompt: str,
    ) -> str | None:
        if key in self._memos:
            self._memos.move_to_end(key)
            return self._memos[key]
        block = _system_block(loaded, system, tools, prompt)
        found = prefix_fingerprint(loaded.tokenizer.encode(block), loaded.name, loaded.name) if block else None
        self._memos[key] = found
        if len(self._memos) > MAX_MEMOS:
            self._memos.popitem(last=False)
        return found


def _leading_system(messages: Sequence[Json]) -> Sequence[Json]:
    count = next((i for i, m in enumerate(messages) if m["role"] not in ("system", "developer")), len(messages))
    return messages[:count]


def _system_block(loaded: LoadedTokenizer, system: Sequence[Json], tools: Sequence[Json], prompt: str) -> str | None:
    """What the prompt opens with whatever the user says; None when the template cannot say."""
    if loaded.template is None or not (system or tools):
        return None
    try:
        block = loaded.template.render(system, tools=list(tools) or None, add_generation_prompt=False)
    except TemplateError:
        return None
    return block if block and prompt.startswith(block) else None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


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
