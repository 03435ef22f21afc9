"""Circuit breakers and the retry budget, with time passed in."""

from foreword.gateway.resilience import CircuitBreaker, RetryBudget


def test_a_breaker_opens_after_failures_in_a_row() -> None:
    """A success in between starts the count anew."""
    breaker = CircuitBreaker(threshold=3, open_seconds=5)
    for outcome in "ffsff":
        breaker.begin(0.0)
        breaker.fail(0.0) if outcome == "f" else breaker.succeed()
    assert breaker.state(0.0) == "closed"
    breaker.fail(0.0)
    assert (breaker.state(0.0), breaker.can_begin(4.9), breaker.retry_after(1.0)) == ("open", False, 4.0)


def test_half_open_lets_one_probe_through() -> None:
    """The probe's success closes the breaker; until then nothing else passes."""
    breaker = CircuitBreaker(threshold=1, open_seconds=5)
    breaker.fail(0.0)
    assert breaker.state(5.0) == "half_open"
    breaker.begin(5.0)
    assert not breaker.can_begin(5.0)
    breaker.succeed()
    assert breaker.state(5.0) == "closed"


def test_failed_probes_wait_twice_as_long_up_to_a_bound() -> None:
    """5, 10, 20 and then 20 seconds."""
    breaker = CircuitBreaker(threshold=1, open_seconds=5, max_open_seconds=20)
    now, waits = 0.0, []
    for _ in range(4):
        breaker.begin(now)
        breaker.fail(now)
        waits.append(breaker.retry_after(now))
        now += waits[-1]
    assert waits == [5, 10, 20, 20]


def test_a_probe_whose_client_left_says_nothing() -> None:
    """The next request is the probe."""
    breaker = CircuitBreaker(threshold=1, open_seconds=5)
    breaker.fail(0.0)
    breaker.begin(6.0)
    breaker.release()
    assert breaker.can_begin(6.0)


def test_retries_are_a_share_of_requests() -> None:
    """Ten to begin with, then one for every five requests."""
    budget = RetryBudget()
    assert sum(budget.withdraw() for _ in range(20)) == 10
    for _ in range(50):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(20)) == 10
    for _ in range(5):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(20)) == 1
