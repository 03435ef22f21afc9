"""The command line of ``python -m benchmarks``."""

import pytest
from benchmarks.__main__ import known, main


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence with the names there are, on stderr, and nothing is run."""
    with pytest.raises(SystemExit) as caught:
        main(["hashing", "hsahing"])
    captured = capsys.readouterr()
    assert (caught.value.code, captured.out) == (2, "")
    assert captured.err.endswith(f"There is no benchmark 'hsahing'; there are {', '.join(known())}.\n")


def test_help_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    """--help runs nothing and names them all."""
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert {"engine", "hashing", "http", "tokens"} <= set(known())
    assert all(name in said for name in known())
