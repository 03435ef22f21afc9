"""The diagnosing commands as a user runs them: output, formats, exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cases.build import assistant, chat, prose, system, talk, tools, user

from foreword.cli import reading
from foreword.cli.main import main
from foreword.diagnose.captures import capture_of
from foreword.diagnose.causes import all_causes
from foreword.diagnose.layout import neutral_layout
from foreword.report.layers import dive
from foreword.testing.words import WordTokenizer


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read every prompt by words."""
    reader = reading.Reader(WordTokenizer(), neutral_layout, "neutral", "Tokenizer: words.")
    for name in ("diff", "fingerprint", "lint", "dive"):
        monkeypatch.setattr(f"foreword.cli.{name}.open_reader", lambda *_, **__: reader)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """Two requests that part at a clock and, behind it, at a path."""
    for name, clock, home in (("a", "10:00:01", "/home/ann/x"), ("b", "10:00:02", "/home/bob/x")):
        body = chat(system(f"Now {clock}\n{prose(40)}\nDirectory: {home}\n{prose(40, 2)}"), user("Why?"))
        (tmp_path / f"{name}.json").write_text(json.dumps(body))
    return [str(tmp_path / "a.json"), str(tmp_path / "b.json")]


def run(*arguments: str) -> Result:
    """One command; what it raises is raised."""
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_the_full_verdict(pair: list[str]) -> None:
    """Headline, then the finding from the third line on: place, chips with a caret, cause, owner, edit, gains."""
    result = run("diff", *pair)
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[0] == "Seam at token 14. Shared: 14 of 157 tokens (8.9%), 0 blocks of 16."
    assert lines[2:9] == [
        "1. A1 clock or date ahead of stable text",
        "   --> messages[0].content char 11 (system), token 14",
        "    A | ':' 10  '00' 11  ':' 10  '01' 12  '\\n' 7  'be' 13",
        "    B | ':' 10  '00' 11  ':' 10  '02' 68  '\\n' 7  'be' 13",
        "      |                          ^^^^^^^",
        "    was '10:00:01', is '10:00:02'",
        "    seen:  clock '10:00:01' -> '10:00:02', to the seconds",
    ]
    assert "2. A4 user, session or machine identity in the head" in lines
    assert lines[-1].endswith("Tokenizer: words.")


def test_json_has_the_documented_keys(pair: list[str]) -> None:
    """The keys of the documentation, seams included."""
    verdict = json.loads(run("diff", *pair, "--format", "json").stdout)
    assert {
        "identical",
        "shared_tokens",
        "shared_fraction",
        "shared_blocks",
        "a_tokens",
        "b_tokens",
        "confidence",
        "seams",
        "outside_causes",
    } <= verdict.keys()
    keys = (
        "index code name layer path char a_text b_text owner edit lost_tokens recovered_alone recovered_together cost"
    )
    assert set(keys.split()) <= verdict["seams"][0].keys()
    assert [seam["code"] for seam in verdict["seams"]] == ["A1", "A4"]


def test_the_other_formats(pair: list[str]) -> None:
    """A line a seam, workflow annotations, SARIF."""
    concise = run("diff", *pair, "--format", "concise").stdout.splitlines()
    assert [line.split(": ")[1].split()[0] for line in concise] == ["A1", "A4"]
    assert run("diff", *pair, "--format", "github").stdout.startswith("::warning file=")
    sarif = json.loads(run("diff", *pair, "--format", "sarif").stdout)
    assert (sarif["version"], [r["ruleId"] for r in sarif["runs"][0]["results"]]) == ("2.1.0", ["A1", "A4"])


def test_repaired_requests_have_no_seam(pair: list[str], tmp_path: Path) -> None:
    """``--fix`` writes both, and they share what was promised."""
    before = json.loads(run("diff", *pair, "--format", "json", "--fix", str(tmp_path / "out")).stdout)
    after = json.loads(
        run("diff", str(tmp_path / "out/a.json"), str(tmp_path / "out/b.json"), "--format", "json").stdout
    )
    assert after["seams"] == []
    assert after["shared_tokens"] == before["shared_tokens"] + before["unreachable_tokens"]


def test_what_the_provider_says_stands_beside_ours(tmp_path: Path) -> None:
    """Its category is shown with the verdict, in JSON, and in a log's findings."""
    said = {"type": "tools_changed", "cache_missed_input_tokens": 900}
    lines = [{"time": 0, "body": chat(system(f"Now 10:00:01\n{prose(60)}"), user("Why?"))}]
    lines += [{"time": 9, "body": chat(system(f"Now 10:00:02\n{prose(60)}"), user("Why?"))}]
    lines[1]["response"] = {"usage": {"input_tokens": 1000}, "diagnostics": {"cache_miss_reason": said}}
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    verdict = run("diff", f"{log}#0", f"{log}#1").stdout
    assert f"The provider says: {json.dumps(said)}" in verdict
    as_json = json.loads(run("diff", f"{log}#0", f"{log}#1", "--format", "json").stdout)
    assert json.loads(as_json["provider_reason"]) == said
    assert "the provider says" in run("lint", "--requests", str(log), "--select", "A1").stdout


def test_json_nested_without_end_is_a_text(tmp_path: Path) -> None:
    """Whatever stands in a file, there is a verdict and no traceback."""
    for name, depth in (("a.json", 5000), ("b.json", 6000)):
        (tmp_path / name).write_text('{"messages":' + "[" * depth + "]" * depth + "}")
    assert run("diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")).exit_code in {0, 1}


def test_exit_status(pair: list[str], tmp_path: Path) -> None:
    """0 identical or appended, 1 a seam, 2 an error in one line."""
    longer = json.loads(Path(pair[0]).read_text())
    longer["messages"] += [assistant("So."), user("And?")]
    (tmp_path / "c.json").write_text(json.dumps(longer))
    assert run("diff", pair[0], pair[0]).exit_code == 0
    assert run("diff", pair[0], str(tmp_path / "c.json")).exit_code == 0
    missing = run("diff", pair[0], "none.json")
    assert (missing.exit_code, missing.stderr) == (2, "foreword: Cannot read none.json: No such file or directory.\n")


@pytest.mark.parametrize("code", list(all_causes()))
def test_every_code_is_explained(code: str) -> None:
    """Name, place, reason, owner, edit, example."""
    result = run("explain", code.lower())
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{code} {all_causes()[code].name}\n")


def test_an_unknown_code_says_which_was_meant() -> None:
    """A typed error with near codes."""
    result = run("explain", "A9")
    assert result.exit_code == 2
    assert "Did you mean A" in result.stderr


def test_savings_prints_the_arithmetic() -> None:
    """The specification's example line by line, and as JSON."""
    text = run("savings", "--prefix-tokens", "8000", "--suffix-tokens", "60", "--requests", "100").stdout
    assert "= 0.9 x 8,000 / 8,060 = 89.3%" in text
    assert "saved over 100 requests: 88.2%" in text
    values = json.loads(
        run("savings", "--prefix-tokens", "8000", "--suffix-tokens", "60", "--requests", "2", "--format", "json").stdout
    )
    assert values["saved"].startswith("0.3225")
    assert values["break_even_requests"] == 2


def test_savings_knows_a_provider_s_minimum_and_step() -> None:
    """Under the minimum nothing is saved; above, whole steps."""
    text = run("savings", "--prefix-tokens", "1100", "--suffix-tokens", "60", "--provider", "openai").stdout
    assert "minimum 1,024, step 128: 1,024 of 1,100 tokens can be cached" in text
    assert run("savings", "--prefix-tokens", "1", "--suffix-tokens", "1", "--provider", "opanai").exit_code == 2


def _log(path: Path, count: int, clock: Any) -> str:
    lines = [
        {"time": 60 * n, "body": chat(system(f"Now {clock(n)}\n{prose(60)}"), *talk(n + 1)[:-1])} for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_lint_requests_ranks_causes(tmp_path: Path) -> None:
    """A log with a clock has one finding; the same log without is clean."""
    found = run("lint", "--requests", _log(tmp_path / "a.jsonl", 5, lambda n: f"10:{n:02}:01"), "--format", "json")
    assert [row["code"] for row in json.loads(found.stdout)] == ["A1"]
    assert found.exit_code == 1
    clean = run("lint", "--requests", _log(tmp_path / "b.jsonl", 5, lambda _: "noon"))
    assert (clean.exit_code, clean.stdout) == (0, "No findings.\n")


def test_lint_source_baseline_and_fix(tmp_path: Path) -> None:
    """A baseline hides what is known; ``--fix`` makes the safe edit and leaves the rest."""
    file = tmp_path / "app.py"
    file.write_text("import json, uuid\nsystem_prompt = json.dumps(schema) + str(uuid.uuid4())\n")
    assert run("lint", str(file), "--format", "concise").exit_code == 1
    assert [
        line.split(": ")[1][:2] for line in run("lint", str(tmp_path), "--format", "concise").stdout.splitlines()
    ] == ["B2", "A2"]
    assert run("lint", str(file), "--ignore", "A", "--select", "A2").exit_code == 0
    run("lint", str(file), "--write-baseline", str(tmp_path / "known.json"))
    assert run("lint", str(file), "--baseline", str(tmp_path / "known.json")).exit_code == 0
    run("lint", str(file), "--fix")
    assert (
        file.read_text()
        == "import json, uuid\nsystem_prompt = json.dumps(schema, sort_keys=True) + str(uuid.uuid4())\n"
    )


UNSTABLE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
DATED = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
STABLE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.mark.parametrize("source, codes", [(UNSTABLE, {"E1"}), (DATED, {"A1"}), (STABLE, set())])
def test_lint_templates(tmp_path: Path, source: str, codes: set[str]) -> None:
    """An opening the history has not, a date, and nothing."""
    (tmp_path / "chat_template.jinja").write_text(source)
    result = run("lint", "--templates", str(tmp_path / "chat_template.jinja"), "--format", "json")
    assert {row["code"] for row in json.loads(result.stdout)} == codes
    assert result.exit_code == bool(codes)


def test_fingerprints_date_a_change(tmp_path: Path) -> None:
    """Rows for every request, counts by window, and the onset of the segment that moves."""
    path = _log(tmp_path / "a.jsonl", 20, lambda n: "noon" if n < 10 else f"10:{n}:00")
    found = json.loads(run("fingerprint", path, "--format", "json").stdout)
    assert len(found["requests"]) == 20
    assert [(o["segment"], o["window"], o["before"]) for o in found["onsets"]] == [
        ("prefix_fp", 600, 1),
        ("system_fp", 600, 1),
    ]
    assert len(run("fingerprint", path).stdout.splitlines()) == 22


def test_dive_shows_layers_and_keeps_text_out_of_the_page(tmp_path: Path) -> None:
    """Layers as lines; the page has no prompt text unless asked, and never a script."""
    path = _log(tmp_path / "a.jsonl", 3, lambda n: f"10:0{n}:01")
    lines = run("dive", path, "--plain").stdout
    assert "lost" in lines
    page = tmp_path / "page.html"
    run("dive", path, "--html", str(page))
    assert "Question" not in page.read_text()
    run("dive", path, "--html", str(page), "--no-redact")
    assert "Question" in page.read_text()
    assert "<script" not in page.read_text()


SECRETS = ("sk-live-4f9a", "ann@example.org", "Merger with Initech", "internal_price_tool", "10:00:01")


def test_a_page_to_be_shared_has_no_secret_in_it(tmp_path: Path) -> None:
    """Whatever part of the request it stands in and whatever became of it: nothing of it is on the default page."""
    rows = []
    for n in range(3):
        head = f"Key {SECRETS[0]}.\n{prose(40)}\nIt is 10:00:0{n}.\nUser: {SECRETS[1]}\n{prose(40, 2)}"
        body = chat(system(head), user(f"{SECRETS[2]}?"), assistant("No."), user("Why?"), tools=tools(2))
        body["tools"][0]["function"]["description"] = f"{SECRETS[3]} {n}"
        body["metadata"] = {"user": SECRETS[1]}
        rows.append(json.dumps(body))
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    run("dive", "log.jsonl", "--html", "page.html")
    page = Path("page.html").read_text()
    assert "A1" in page
    assert [secret for secret in SECRETS if secret in page] == []
    run("dive", "log.jsonl", "--html", "page.html", "--no-redact")
    page = Path("page.html").read_text()
    assert [secret for secret in SECRETS if secret not in page] == []


def test_layers_of_what_no_template_renders_count_nothing(tmp_path: Path) -> None:
    """Tools that the template leaves out are shown and have no tokens; the layers add up to what is rendered."""
    body = chat(system(prose(40)), user("Why?"), tools=tools(3))
    tokenizer = WordTokenizer()
    for layout, is_read in ((neutral_layout, True), (lambda d: neutral_layout({**d, "tools": None}), False)):
        for earlier in (None, capture_of(body)):
            shown = dive(capture_of(body), earlier, tokenizer, layout)
            assert sum(layer.tokens for layer in shown.layers) == shown.tokens == len(tokenizer.encode(layout(body)))
            assert {layer.state == "unread" for layer in shown.layers if layer.path.startswith("tools")} == {
                not is_read
            }
            assert [layer.tokens > 0 for layer in shown.layers[:3]] == [is_read] * 3
            if shown.diff:
                assert shown.diff.shared_tokens == shown.tokens


async def test_the_viewer_follows_the_cursor(tmp_path: Path) -> None:
    """The content of the layer under the cursor is shown on the right."""
    from textual.widgets import Static

    from foreword.cli.dive_viewer import make_app

    shown = dive(capture_of(chat(system("Be kind."), user("Why?"))), None, WordTokenizer(), neutral_layout)
    app = make_app([shown])
    async with app.run_test() as pilot:
        await pilot.press("down")
        assert str(app.query_one("#content", Static).render()) == "Why?"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["diff", "a.json", "b.json", "--fix", "/dev/null/x"], "Cannot use /dev/null/x"),
        (["diff", "a.json", "b.json", "--fix", "."], "would overwrite a.json, which was read"),
        (["diff", "a.json", "b.json", "--provider", "openai"], "give --model too"),
        (["dive", "a.json", "--html", "/dev/null/x.html"], "Cannot use /dev/null/x.html"),
        (["lint", ".", "--write-baseline", "/dev/null/x"], "Cannot use /dev/null/x"),
        (["lint", ".", "--select", "ZZ"], "begins with 'ZZ'"),
        (["lint", ".", "--ignore", ""], "begins with ''"),
        (["lint", ".", "--unsafe-fixes"], "give both"),
        (["lint", "a.json", "--requests", "--templates"], "give one"),
        (["lint", "a.json", "--requests", "--fix"], "--fix edits Python source"),
        (["lint", "a.json", "--templates"], "There is no chat template at a.json"),
        (["savings", "--prefix-tokens", "9", "--suffix-tokens", "1", "--read-multiplier", "nan"], "'nan' is no number"),
        (["savings", "--prefix-tokens", "9", "--suffix-tokens", "1", "--write-multiplier", "inf"], "is no number"),
        (["watch", "http://127.0.0.1:9", "--interval", "nan"], "'nan' is no number"),
        (["watch", "http://[::1", "--once"], "does not answer: Invalid IPv6 URL"),
    ],
)
def test_a_mistake_ends_it_with_a_sentence(pair: list[str], arguments: list[str], said: str) -> None:
    """What cannot be written, read or meant is told on stderr with exit status 2, and nothing that was read is touched."""
    before = [Path(name).read_text() for name in pair]
    result = run(*arguments)
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert said in result.stderr
    assert [Path(name).read_text() for name in pair] == before
