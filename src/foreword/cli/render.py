"""Renderers of findings: pure functions from rows to text. Codes, names and messages are the same in every format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from decimal import Decimal
from typing import Any, Literal

from foreword import __version__
from foreword.diagnose.diff import Diff

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Row:
    """One finding in one place. Lines and columns count from 1; 0 where there is none."""

    code: str
    name: str
    message: str
    file: str
    line: int = 0
    column: int = 0
    level: Level = "warning"
    edit: str = ""


def rows_of_diff(diff: Diff, file: str) -> list[Row]:
    """A verdict as rows; the place within the body is in the message."""
    rows = [
        Row(
            seam.code, seam.name,
            f"{seam.path or 'text'} char {seam.char}, token {seam.index}: {seam.evidence}; lost {seam.lost_tokens} tokens, "
            f"fixed alone +{seam.recovered_alone}, with all above +{seam.recovered_together}",
            file, edit=seam.edit,
        )
        for seam in diff.seams
    ]  # fmt: skip
    causes = (
        Row(c.code, c.name, c.evidence, file, level="note" if c.is_expected else "warning", edit=c.edit)
        for c in diff.outside_causes
    )
    return [*rows, *causes]


def concise(rows: Iterable[Row]) -> str:
    """``file:line:column: CODE message``, a line each."""
    lines = []
    for row in rows:
        place = ":".join(str(part) for part in (row.file, row.line, row.column) if part)
        lines.append(f"{place}: {row.code} {row.name}: {row.message}")
    return "\n".join(lines)


def github(rows: Iterable[Row]) -> str:
    """GitHub workflow annotations."""
    lines = []
    for row in rows:
        level = {"error": "error", "warning": "warning", "note": "notice"}[row.level]
        place = f"file={_property(row.file)}" + (f",line={row.line},col={row.column}" if row.line else "")
        title = _property(f"{row.code} {row.name}")
        text = f"{row.message}. {row.edit}".replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        lines.append(f"::{level} {place},title={title}::{text}")
    return "\n".join(lines)


def _property(text: str) -> str:
    for character, escape in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(character, escape)
    return text


def sarif(rows: Sequence[Row]) -> str:
    """A SARIF 2.1.0 log of one run."""
    rules = {row.code: row for row in rows}
    driver = {
        "name": "foreword",
        "version": __version__,
        "rules": [
            {
                "id": code,
                "name": row.name,
                "shortDescription": {"text": row.name},
                "help": {"text": row.edit or row.name},
            }
            for code, row in sorted(rules.items())
        ],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [_result(row) for row in rows]}
    return dump({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]})


def _result(row: Row) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": row.file.partition("#")[0].replace("\\", "/")}}
    if row.line:
        location["region"] = {"startLine": row.line, "startColumn": row.column or 1}
    return {
        "ruleId": row.code,
        "level": row.level,
        "message": {"text": row.message},
        "locations": [{"physicalLocation": location}],
    }


def dump(value: Any) -> str:
    """JSON with two spaces; dataclasses as objects, money as strings."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(type(value).__name__)


def diff_as_json(diff: Diff, tokenizer: str) -> dict[str, Any]:
    """The verdict with the keys of the documentation."""
    fields = asdict(diff)
    del fields["repaired"]
    return {"identical": diff.identical, **fields, "tokenizer": tokenizer}
