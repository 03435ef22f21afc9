"""Trace readers give records, or say which line is wrong."""

from pathlib import Path

import pytest

from foreword.errors import ConfigError
from foreword.trace.readers import read_mooncake

TRACE = Path(__file__).parents[2] / "benchmarks" / "data" / "mooncake_conversation.jsonl"


def test_the_mooncake_trace_adds_up() -> None:
    """12,031 requests, 288,500 block references, 182,790 distinct, 144,793,823 input tokens."""
    requests = list(read_mooncake(TRACE))
    blocks = [block for request in requests for block in request.blocks]
    assert (len(requests), len(blocks), len(set(blocks))) == (12_031, 288_500, 182_790)
    assert sum(request.input_tokens for request in requests) == 144_793_823
    assert requests[0].time == 0.0
    assert requests[-1].time == pytest.approx(3536, abs=1)


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "Line 2 .* is not a Mooncake record"),
        ('{"timestamp": 1}', "missing required field `input_length`"),
        ('{"timestamp": 0, "input_length": "9", "output_length": 1, "hash_ids": []}', "Expected `int`, got `str`"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}', "prompt of 0 tokens"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1, 2]}', "names 2 blocks"),
        ('{"timestamp": 0, "input_length": 5000000000, "output_length": 1, "hash_ids": []}', "<= 2147483648"),
        ('{"timestamp": 0, "input_length": 5, "output_length": -1, "hash_ids": []}', ">= 0"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": []}', "Line 2 .* earlier than the one"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    """The error has the line's number and what is wrong with it."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message):
        list(read_mooncake(path))


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    """No traceback for a wrong path."""
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_mooncake(tmp_path / "none.jsonl"))
