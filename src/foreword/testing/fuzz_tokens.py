"""Look for a text on which the tokenizer cache and the uncached reference disagree, until told to stop.

    python -m foreword.testing.fuzz_tokens [--seconds N] [--tokenizer PATH] [--seed S]

Without --tokenizer it goes through crafted tokenizers of every kind and random ones nobody thought of. A difference
is shrunk to the shortest history that still shows it and printed as a program. Exit code 0: none found; 1: found one;
2: wrong use.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.errors import ForewordError
from foreword.testing.crafted import RECIPES, random_recipe, write
from foreword.testing.histories import Oracle, Step, replay
from foreword.testing.reference import Reference, load_reference
from foreword.testing.texts import TextMaker
from foreword.tokens.tokenizer import TokenIds

History = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Levels:
    """Which levels are on, with budgets small enough to evict."""

    l0: L0Config | None
    l1: L1Config | None

    @classmethod
    def draw(cls, rng: random.Random) -> Levels:
        """Levels nobody would choose."""
        l0 = L0Config(max_entries=rng.choice((1, 4, 50)), max_memory=rng.choice((4_000, 60_000, 10_000_000)))
        l1 = L1Config(max_memory=rng.choice((3_000, 20_000, 10_000_000)))
        return rng.choice((cls(l0, l1), cls(None, l1), cls(None, l1), cls(l0, None)))


@dataclass(frozen=True, slots=True)
class Finding:
    """A shortest history that shows a difference, and what went wrong at its end."""

    reference: Reference
    levels: Levels
    history: History
    problem: str

    def __str__(self) -> str:
        lines = [
            f"# {self.reference.name}: {self.problem}",
            "from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer",
            f"tokenizer = load_tokenizer({str(self.reference.path)!r}, **{dict(self.reference.options)})",
            f"cache = CachedTokenizer(tokenizer, l0={self.levels.l0}, l1={self.levels.l1})",
        ]
        for step in self.history:
            call = "clear()" if step is None else f"encode({step[0]!r}, add_special_tokens={step[1]})"
            lines.append(f"print(cache.{call})")
        if self.history and (last := self.history[-1]) is not None:
            expected = Oracle(self.reference)(last)
            lines.append(f"# expected last: {'a TokenizerError' if expected is None else list(TokenIds(expected))}")
        return "\n".join(lines)


def fuzz(references: Iterator[Reference], rng: random.Random, until: Callable[[], bool]) -> tuple[int, Finding | None]:
    """Try histories on each reference in turn; the number of answers compared, and what was found."""
    compared = 0
    for reference in references:
        tokenizer = load_tokenizer(reference.path, **reference.options)
        oracle = Oracle(reference)
        for _ in range(6):
            if until():
                return compared, None
            levels = Levels.draw(rng)
            history = draw_history(rng, reference.added_tokens)

            def attempt(history: Sequence[Step], levels: Levels = levels) -> None:
                cache = CachedTokenizer(tokenizer, l0=levels.l0, l1=levels.l1)  # noqa: B023 - called in this turn only
                replay(cache, history, oracle)  # noqa: B023
                cache.check_integrity()

            if problem_of(attempt, history):
                shortest = shrink(history, lambda steps: problem_of(attempt, steps) is not None)
                return compared, Finding(reference, levels, shortest, problem_of(attempt, shortest) or "")
            compared += sum(step is not None for step in history)
    return compared, None


def problem_of(attempt: Callable[[Sequence[Step]], None], history: Sequence[Step]) -> str | None:
    """What goes wrong with a history, if anything does."""
    try:
        attempt(history)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a crash is a finding too, and a Rust panic is no Exception
        return f"{type(error).__name__}: {error}"
    return None


def draw_history(rng: random.Random, added_tokens: Sequence[str]) -> History:
    """Requests over a few conversations that grow, are edited, retried and mixed, with a clear() now and then."""
    maker = TextMaker(rng.randrange(2**32), added_tokens)
    pool = [maker.text() for _ in range(3)]
    steps: list[Step] = []
    for _ in range(rng.randrange(4, 40)):
        source = rng.choice(pool)
        change = rng.choice(
            (maker.grow, maker.grow, maker.edit, lambda text: text, lambda text: text[: rng.randrange(len(text) + 1)])
        )
        text = change(source)[:30_000]
        pool[rng.randrange(len(pool)) if rng.random() < 0.3 else pool.index(source)] = text
        steps.append((text, rng.random() < 0.3))
        if rng.random() < 0.01:
            steps.append(None)
    return tuple(steps)


def shrink(history: History, fails: Callable[[History], bool], seconds: float = 20) -> History:
    """A shorter history that still fails: fewer requests first, then shorter texts."""
    deadline = time.monotonic() + seconds
    kept, before = _fewer_steps(history, fails, deadline), None
    while kept != before and time.monotonic() < deadline:
        before, kept = kept, _shorter_texts(kept, fails, deadline)
    return kept


def _fewer_steps(history: History, fails: Callable[[History], bool], deadline: float) -> History:
    """Leave out ever smaller runs of requests."""
    size = max(1, len(history) // 2)
    while size and time.monotonic() < deadline:
        at = 0
        while at < len(history):
            without = history[:at] + history[at + size :]
            if fails(without):
                history = without
            else:
                at += size
        size //= 2
    return history


def _shorter_texts(history: History, fails: Callable[[History], bool], deadline: float) -> History:
    """Take ever smaller pieces of the longest text out of every text that has them."""
    longest = max((step[0] for step in history if step), key=len, default="")
    size = len(longest) // 2
    while size and time.monotonic() < deadline:
        at = 0
        while at < len(longest) and time.monotonic() < deadline:
            piece = longest[at : at + size]
            without = tuple(step and (step[0].replace(piece, "", 1), step[1]) for step in history)
            if fails(without):
                history, longest = without, longest[:at] + longest[at + size :]
            else:
                at += size
        size //= 2
    return history


def references(path: Path | None, rng: random.Random, scratch: Path) -> Iterator[Reference]:
    """The one asked for, again and again; or crafted ones in any order, and as many random ones."""
    if path is not None:
        one = load_reference(path)
        while True:
            yield one
    for number in range(2**31):
        name, recipe = rng.choice(list(RECIPES.items())) if number % 2 else ("random", random_recipe(rng))
        yield load_reference(write(recipe, scratch / f"{number}-{name}"), name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, fuzz, report."""
    parser = argparse.ArgumentParser(prog="python -m foreword.testing.fuzz_tokens", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long to look (default: %(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json folder, .tiktoken file or tekken .json file")
    parser.add_argument("--seed", type=int, default=None, help="of the random numbers (default: from the clock)")
    options = parser.parse_args(arguments)
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    os.environ["RUST_BACKTRACE"] = "0"  # tokenizers panics on some texts, which is expected and slow to explain
    rng, deadline = random.Random(seed), time.monotonic() + options.seconds
    scratch = Path(tempfile.mkdtemp(prefix="foreword-fuzz-"))
    if options.tokenizer is not None:
        try:
            load_tokenizer(options.tokenizer)
        except ForewordError as error:
            parser.error(str(error))
    compared, finding = fuzz(references(options.tokenizer, rng, scratch), rng, lambda: time.monotonic() > deadline)
    if finding is not None:
        print(finding)
        return 1
    shutil.rmtree(scratch)
    print(f"{compared} answers compared, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
