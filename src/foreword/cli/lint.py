"""``foreword lint``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foreword.cli.reading import format_option, open_reader, tokenizer_option

if TYPE_CHECKING:
    from foreword.cli.render import Row
    from foreword.diagnose.lint.findings import LintFinding
    from foreword.diagnose.sequence import Finding


_MUCH = 100 << 20
"""Bytes of log from which loading the second encoder pays."""


@click.command("lint", short_help="Find what will break a prefix: in Python source, chat templates, request logs.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--templates", is_flag=True, help="The paths are chat templates or model folders.")
@click.option("--requests", is_flag=True, help="The paths are logs of requests: JSONL or HAR.")
@click.option("--select", "chosen", multiple=True, metavar="CODE", help="Only codes that begin so; may be given again.")
@click.option("--ignore", "ignored", multiple=True, metavar="CODE", help="No codes that begin so; may be given again.")
@click.option("--baseline", type=click.Path(dir_okay=False, path_type=Path), help="Leave out what this file knows.")
@click.option(
    "--write-baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what is found to this file and exit 0.",
)
@click.option("--fix", is_flag=True, help="Make the edits that keep what the program means.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix, also make those that change what the prompt says.")
@tokenizer_option
@format_option()
def command(paths: tuple[Path, ...], *, templates: bool, requests: bool, chosen: tuple[str, ...], ignored: tuple[str, ...], baseline: Path | None, write_baseline: Path | None, fix: bool, unsafe_fixes: bool, tokenizer_path: str | None, style: str) -> None:  # fmt: skip
    """Lint PATHS: Python files and folders, or chat templates (--templates), or logs (--requests).

    A line with `# foreword: ignore` or `# foreword: ignore[A1]` is left alone. Exit status: 0 clean, 1 findings, 2 error.
    """
    from foreword.diagnose.lint.findings import check_codes, read_baseline, select
    from foreword.diagnose.lint.findings import write_baseline as write

    _check_kinds(templates=templates, requests=requests, fix=fix, unsafe_fixes=unsafe_fixes)
    chosen, ignored = check_codes(chosen), check_codes(ignored)
    if requests:
        findings = list(_lint_requests(paths, tokenizer_path))
    elif templates:
        from foreword.diagnose.lint.templates import lint_template

        findings = [finding for path in paths for finding in lint_template(path)]
    else:
        findings = [finding for file in _python_files(paths) for finding in _lint_file(file)]
    found = select(findings, chosen, ignored)
    if write_baseline:
        write(write_baseline, found)
        click.echo(f"Wrote {len(found)} findings to {write_baseline}.", err=True)
        return
    known = read_baseline(baseline) if baseline else set()
    found = [finding for finding in found if finding.fingerprint not in known]
    if fix:
        found = _fix(found, unsafe=unsafe_fixes)
    click.echo(_render(found, style))
    sys.exit(1 if any(row.level != "note" for row in map(_row, found)) else 0)


def _check_kinds(*, templates: bool, requests: bool, fix: bool, unsafe_fixes: bool) -> None:
    """Refuse options that would be left out without a word."""
    if templates and requests:
        raise click.UsageError("--templates and --requests say different things of the same paths: give one.")
    if fix and (templates or requests):
        raise click.UsageError("--fix edits Python source, neither templates nor logs.")
    if unsafe_fixes and not fix:
        raise click.UsageError("--unsafe-fixes adds to --fix: give both.")


def _python_files(paths: tuple[Path, ...]) -> Iterator[Path]:
    skipped = {".git", ".venv", "venv", "node_modules", "__pycache__", ".tox", "build", "dist"}
    for path in paths:
        if path.is_file():
            yield path
        else:
            yield from (file for file in sorted(path.rglob("*.py")) if not skipped & set(file.relative_to(path).parts))


def _lint_file(file: Path) -> list[LintFinding]:
    from foreword.diagnose.lint.source import lint_source

    try:
        with file.open(encoding="utf-8", newline="") as stream:
            return lint_source(stream.read(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        click.echo(f"foreword: {file} is left out: {error}", err=True)
        return []


def _fix(findings: list[LintFinding], *, unsafe: bool) -> list[LintFinding]:
    """Make the edits; returns what is left when each file is linted again."""
    from foreword.diagnose.lint.findings import apply_edits

    left: list[LintFinding] = []
    for name in dict.fromkeys(finding.file for finding in findings):
        own = [finding for finding in findings if finding.file == name]
        with Path(name).open(encoding="utf-8", newline="") as stream:
            before = stream.read()
        after = apply_edits(before, own, unsafe=unsafe)
        if after != before:
            with Path(name).open("w", encoding="utf-8", newline="") as stream:
                stream.write(after)
            own = _lint_file(Path(name))
        left += own
    return left


def _lint_requests(paths: tuple[Path, ...], tokenizer_path: str | None) -> Iterator[LintFinding]:
    from foreword.diagnose.captures import read_captures
    from foreword.diagnose.lint.findings import LintFinding
    from foreword.diagnose.sequence import explain_requests

    reader = open_reader(tokenizer_path, much=sum(path.stat().st_size for path in paths) > _MUCH)
    captures = (capture for path in paths for capture in read_captures(str(path)))
    for finding in explain_requests(captures, reader.tokenizer, layout=reader.layout):
        yield LintFinding(finding.code, _message(finding), finding.source, snippet=f"{finding.lane}|{finding.path}")


def _message(finding: Finding) -> str:
    lane = f"lane {finding.lane}: " if finding.lane else ""
    place = f"{finding.path}: " if finding.path else ""
    times = f"{finding.count} time{'s' * (finding.count != 1)}"
    return f"{lane}{place}{finding.evidence}; {times}, {finding.lost_tokens:,} tokens lost"


def _row(finding: LintFinding) -> Row:
    from foreword.cli.render import Level, Row
    from foreword.diagnose.causes import explain

    cause = explain(finding.code)
    level: Level = "note" if cause.scope == "expected" else "warning"
    return Row(cause.code, cause.name, finding.message, finding.file, finding.line, finding.column, level, cause.edit)


def _render(findings: list[LintFinding], style: str) -> str:
    from foreword.cli import render

    rows = [_row(finding) for finding in findings]
    if style == "json":
        return render.dump(rows)
    if style in {"sarif", "github"}:
        return render.sarif(rows) if style == "sarif" else render.github(rows)
    if style == "concise" or not rows:
        return render.concise(rows) or "No findings."
    lines = []
    for finding, row in zip(findings, rows, strict=True):
        shown = finding.snippet.splitlines()[0][:100] if finding.line and finding.snippet else ""
        safe = {True: "safe fix", False: "unsafe fix"}.get(finding.edits[0].is_safe) if finding.edits else ""
        lines.append(
            "\n".join(
                filter(
                    None,
                    [
                        render.concise([row]),
                        f"    | {shown}" if shown else "",
                        f"    edit: {row.edit}" + (f" [{safe}]" if safe else ""),
                    ],
                )
            )
        )
    return "\n".join([*lines, f"{len(rows)} finding{'s' * (len(rows) != 1)}."])
