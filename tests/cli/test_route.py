"""``foreword route``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from foreword.cli import main

TRACE = str(Path(__file__).parents[2] / "benchmarks" / "data" / "mooncake_conversation.jsonl")


def test_json_has_what_a_script_needs() -> None:
    """One object: tokens hit, load spread, time to first token, each worker's share."""
    result = CliRunner().invoke(main, ["route", "--trace", TRACE, "--workers", "4", "--blocks", "6000", "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (report["policy"], report["workers"], report["requests"]) == ("cache_aware", 4, 12_031)
    assert report["hit_ratio"] == pytest.approx(report["hit_tokens"] / report["input_tokens"], abs=1e-6)
    assert sum(worker["requests"] for worker in report["per_worker"]) == 12_031
    assert report["ttft_seconds"]["p50"] <= report["ttft_seconds"]["p99"]


def test_the_text_names_policy_and_hits() -> None:
    """The default output is for a reader."""
    result = CliRunner().invoke(main, ["route", "--trace", TRACE, "--policy", "round_robin"])
    assert "round_robin: 12,031 requests over 8 workers x 6,000 blocks" in result.stdout
    assert "tokens hit   11.63%" in result.stdout


def test_the_how_to_shows_what_is_printed() -> None:
    """The page's example and its row for the policy are today's output."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "compare-routing-policies.md").read_text()
    result = CliRunner().invoke(main, ["route", "--trace", TRACE, "--workers", "8", "--blocks", "6000"])
    assert result.stdout in page
    report = json.loads(CliRunner().invoke(main, ["route", "--trace", TRACE, "--json"]).stdout)
    assert f"| `cache_aware` | {report['hit_ratio']:.2%} | {report['load_spread']:.3f} |" in page


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--policy", "nearest"], "no routing policy"),
        (["--policy", "builtins:list"], "has no method choose"),
        (["--policy", "tests.gateway.test_policies:Astray"], "Astray chose -1 of 8 workers"),
        (["--policy", "tests.gateway.test_policies:Faulty"], "Faulty failed: KeyError: 'no such worker'"),
        (["--workers", "0"], "1<=x<=1024"),
        (["--workers", "1000000000"], "1<=x<=1024"),
        (["--prefill-rate", "0"], "x>0"),
        (["--prefill-rate", "nan"], "no number"),
        (["--trace", "/dev/null"], "holds no request"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    """No traceback."""
    result = CliRunner().invoke(main, ["route", "--trace", TRACE, *arguments])
    assert result.exit_code == 2
    assert message in result.output
