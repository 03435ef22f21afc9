"""All cases, and how each is put to Foreword."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cases import encoding, history, order, outside, volatile
from tests.cases.build import CASES, Case

from foreword.diagnose.captures import capture_of, read_captures
from foreword.diagnose.diff import Diff, diff_ids, diff_prompts
from foreword.diagnose.sequence import Finding, explain_requests
from foreword.testing.words import WordTokenizer
from foreword.tokens.tokenizer import Tokenizer

__all__ = ["all_cases", "encoding", "history", "order", "outside", "run_log", "run_pair", "volatile"]


def all_cases() -> list[Case]:
    """Every case, by number."""
    return sorted((build() for build in CASES), key=lambda case: (not case.number[0].isdigit(), case.number.zfill(4)))


def run_pair(case: Case, tokenizer: Tokenizer) -> Diff:
    """The verdict on a case of two requests."""
    if "bos" in case.extra or "retokenise" in case.extra:
        return diff_ids(*logged_ids(case, tokenizer), tokenizer)
    other = WordTokenizer("other") if case.extra.get("other_tokenizer") else None
    if other:
        other.encode("a few words that shift every id")
    layout, second = case.layouts
    return diff_prompts(
        case.a, case.b, tokenizer, layout=layout, other_tokenizer=other,
        other_layout=second if second is not layout else None, same_session=case.same_session,
    )  # fmt: skip


def logged_ids(case: Case, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids as a log would have kept them."""
    ids = list(tokenizer.encode("You are a careful assistant. " * 20))
    if "retokenise" in case.extra:
        whole, parts = list(tokenizer.encode("token")), list(tokenizer.encode("to")) + list(tokenizer.encode("ken"))
        return [*ids, *whole, *ids], [*ids, *parts, *ids]
    bos = list(tokenizer.encode("<"))[:1]
    first, second = case.extra["bos"]
    return bos * int(first) + ids, bos * int(second) + ids


def run_log(case: Case, tokenizer: Tokenizer, folder: Path) -> list[Finding]:
    """The findings on a case that is a log, read from a file as a user's would be."""
    if case.extra.get("har"):
        file = folder / "log.har"
        file.write_text(json.dumps({"log": {"version": "1.2", "entries": list(case.log)}}))
        return explain_requests(read_captures(str(file)), tokenizer)
    return explain_requests([capture_of(_plain(line), f"log#{n}") for n, line in enumerate(case.log)], tokenizer)


def _plain(line: Any) -> Any:
    """Through JSON, as every log line has been."""
    return json.loads(json.dumps(line))
