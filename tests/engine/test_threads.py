"""The choice between splitting a step over the cores and not."""

from foreword.engine.threads import SplitChoice


def run(choice: SplitChoice, steps: int, *, split: float, whole: float) -> list[bool]:
    """Take steps that cost so much either way; which were split."""
    taken = []
    for _ in range(steps):
        taken.append(choice.next())
        choice.took(split if taken[-1] else whole)
    return taken


def test_a_free_machine_splits_nearly_always() -> None:
    """Trials grow rare while they confirm the choice."""
    taken = run(SplitChoice(), 1000, split=0.025, whole=0.05)
    assert taken.count(False) == 7  # after 8, 16, 32, 64, 128, 256 and again 256 steps


def test_a_busy_machine_is_found_out_in_a_few_steps() -> None:
    """After the first trial nearly every step is taken whole."""
    taken = run(SplitChoice(), 1000, split=0.6, whole=0.06)
    assert taken[:9] == [True] * 8 + [False]
    assert taken[9:].count(True) == 7


def test_a_machine_that_becomes_free_is_noticed() -> None:
    """The choice turns back at a later trial."""
    choice = SplitChoice()
    run(choice, 100, split=0.6, whole=0.06)
    assert not choice.split
    run(choice, 300, split=0.025, whole=0.05)
    assert choice.split


def test_a_machine_that_becomes_busy_is_noticed_at_once() -> None:
    """One step much slower than a whole one is known to be brings the trial forward."""
    choice = SplitChoice()
    run(choice, 700, split=0.025, whole=0.05)
    assert choice.split
    assert run(choice, 5, split=0.6, whole=0.06) == [True, False, False, False, False]
