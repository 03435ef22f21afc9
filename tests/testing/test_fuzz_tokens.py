"""The fuzzer finds what is wrong, shrinks it, and says so."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from foreword.testing import fuzz_tokens
from foreword.testing.crafted import RECIPES, random_recipe, write
from foreword.testing.fuzz_tokens import draw_history, fuzz, main, shrink
from foreword.testing.reference import load_reference
from foreword.tokens.tokenizer import CacheableTokenizer


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """The command configures the process's log."""
    yield
    structlog.reset_defaults()


class ForgetfulCache:
    """Wrong on any text it has seen a beginning of, when that ends in a token."""

    def __init__(self, tokenizer: CacheableTokenizer, **_: object) -> None:
        self._tokenizer = tokenizer
        self._seen: set[str] = set()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encode the rest after a seen beginning on its own."""
        for seen in sorted(self._seen, key=len, reverse=True):
            if text.startswith(seen) and seen.endswith("<|im_end|>"):
                head = self._tokenizer.encode(seen, add_special_tokens=add_special_tokens)
                return [*head, *self._tokenizer.encode(text[len(seen) :])]
        self._seen.add(text)
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def clear(self) -> None:
        """Forget."""
        self._seen.clear()

    def check_integrity(self) -> None:
        """Nothing to check."""


def test_it_finds_nothing_in_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """The command exits 0 and says how much it compared, without lines of the library's log."""
    assert main(["--seconds", "2", "--seed", "11"]) == 0
    printed = capsys.readouterr().out
    assert "answers compared, no difference" in printed
    assert "tokenizer.encoder_refused" not in printed


def test_it_finds_and_shrinks_a_wrong_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache that forgets what follows a token is found, and the reproduction is two short requests."""
    monkeypatch.setattr(fuzz_tokens, "CachedTokenizer", ForgetfulCache)
    reference = load_reference(write(RECIPES["contained-tokens"], tmp_path), "contained")
    _, finding = fuzz(iter([reference] * 40), random.Random(1), lambda: False)
    assert finding is not None
    assert len(finding.history) == 2
    assert sum(len(step[0]) for step in finding.history if step) < 60
    assert "from foreword import" in str(finding)


def test_shrinking_keeps_what_fails() -> None:
    """Requests and letters that do not matter go, those that matter stay."""
    history = (("hello world", False), None, ("a" * 50 + "needle" + "b" * 50, True), ("x", False))
    shortest = shrink(history, lambda steps: any(step and "needle" in step[0] for step in steps))
    assert shortest == (("needle", True),)


def test_histories_come_back_with_their_seed() -> None:
    """One seed, one history and one recipe."""
    assert draw_history(random.Random(3), ("<s>",)) == draw_history(random.Random(3), ("<s>",))
    assert random_recipe(random.Random(3)) == random_recipe(random.Random(3))


def test_a_missing_tokenizer_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence."""
    with pytest.raises(SystemExit) as stopped:
        main(["--tokenizer", "/nowhere", "--seconds", "1"])
    assert stopped.value.code == 2
    assert "/nowhere" in capsys.readouterr().err
