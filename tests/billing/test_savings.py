"""Savings, provider rules, usage and prices."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest

from foreword.billing.providers import all_providers, provider, rules_for
from foreword.billing.savings import compute_savings
from foreword.billing.usage import Usage, read_usage
from foreword.errors import ConfigError


def test_the_specification_s_steady_state() -> None:
    """P = 8,000 and S = 60 save 89 %."""
    assert round(compute_savings(8000, 60).steady_state, 4) == Decimal("0.8933")


@pytest.mark.parametrize("requests, saved", [(1, "-0.248"), (2, "0.323"), (10, "0.779"), (100, "0.882")])
def test_savings_over_n_requests(requests: int, saved: str) -> None:
    """The first request pays for the write; the later ones for reads."""
    assert round(compute_savings(8000, 60, requests=requests).saved, 3) == Decimal(saved)


@pytest.mark.parametrize("write, even, count", [("1.25", "1.28", 2), ("2", "2.11", 3), ("1", "1.00", 1)])
def test_break_even(write: str, even: str, count: int) -> None:
    """(w - r) / (1 - r), and the first whole request past it."""
    savings = compute_savings(8000, 60, write_multiplier=Decimal(write))
    assert (round(savings.break_even, 2), savings.break_even_requests) == (Decimal(even), count)


def test_the_worked_example_is_billed_in_steps() -> None:
    """20,014 tokens at OpenAI: 19,840 = 155 x 128 can be cached when 19,900 are shared; 174 are billed in full."""
    rules = provider("openai")
    assert rules.cacheable(19_900) == 19_840
    savings = compute_savings(19_900, 114, requests=2, rules=rules, write_multiplier=Decimal(0))
    assert savings.cached_tokens == 19_840
    assert savings.cost == Decimal(20_014) + Decimal("0.1") * 19_840 + 174


def test_below_the_minimum_nothing_is_saved() -> None:
    """A prefix under the model's minimum is not cached."""
    savings = compute_savings(3000, 100, requests=10, rules=provider("anthropic"), model="claude-opus-4-5")
    assert savings.cached_tokens == savings.saved == 0


@pytest.mark.parametrize(
    "model, least",
    [("claude-opus-4-6", 4096), ("claude-sonnet-4-5", 1024), ("gemini-2.5-pro", 2048), ("gemini-3.8-flash", 4096)],
)
def test_the_minimum_is_the_model_s(model: str, least: int) -> None:
    """As the providers' own pages had it on the day the table says."""
    rules = rules_for(model)
    assert rules is not None
    assert rules.minimum_for(model) == least


def test_an_always_missing_prompt_costs_more() -> None:
    """With a marker and no hit the loss is 24.8 %, not zero."""
    assert round(compute_savings(8000, 60).always_missing, 3) == Decimal("-0.248")


@pytest.mark.parametrize(
    "kwargs", [{"requests": 0}, {"read_multiplier": Decimal(2)}, {"write_multiplier": Decimal(-1)}]
)
def test_bad_numbers_are_refused(kwargs: dict[str, int]) -> None:
    """The error says which bound was broken."""
    with pytest.raises(ConfigError):
        compute_savings(1, 1, **kwargs)  # type: ignore[arg-type]


def test_every_provider_has_a_source_and_a_date() -> None:
    """Rules without provenance are rumours."""
    assert all(rules.source.startswith("https://") and len(rules.checked) == 10 for rules in all_providers().values())


@pytest.mark.parametrize(
    "model, name",
    [
        ("gpt-5.2", "openai"),
        ("gpt-5.6-mini", "openai-5.6"),
        ("openai/gpt-6", "openai-5.6"),
        ("gpt-4o", "openai"),
        ("claude-sonnet-4-5", "anthropic"),
        ("bedrock/anthropic.claude", "bedrock"),
        ("x", None),
    ],
)
def test_a_model_s_name_points_to_its_provider(model: str, name: str | None) -> None:
    """By prefix or by the start of the name."""
    rules = rules_for(model)
    assert (rules.name if rules else None) == name


@pytest.mark.parametrize(
    "model, given, day, name",
    [
        ("gpt-5.6", "openai", None, "openai-5.6"),
        ("openai/gpt-5.6-mini", "openai", None, "openai-5.6"),
        ("gpt-5.2", "openai", None, "openai"),
        ("", "openai", None, "openai"),
        ("", "openai-5.6", None, "openai-5.6"),
        ("gpt-5.6", "groq", None, "groq"),
        ("deepseek-chat", "", date(2025, 12, 31), "deepseek-2025"),
        ("deepseek-chat", "", date(2026, 1, 1), "deepseek"),
        ("", "deepseek", None, "deepseek"),
        ("", "", None, None),
        ("", "nobody", None, None),
    ],
)
def test_the_rules_are_the_model_s_and_the_day_s(model: str, given: str, day: date | None, name: str | None) -> None:
    """A provider's newer models and a rule that changed have rows of their own."""
    rules = rules_for(model, given, day)
    assert (rules.name if rules else None) == name


def test_rows_of_one_provider_leave_no_day_and_share_none() -> None:
    """For every kind of model exactly one row holds on each day on which rules change, and on the day before."""
    rows = all_providers().values()
    changes = {day for row in rows for day in (row.since, row.until) if day}
    for day in changes | {day - timedelta(1) for day in changes}:
        kinds = [(row.of or row.name, row.models) for row in rows if row.holds_on(day)]
        assert sorted(kinds) == sorted({(row.of or row.name, row.models) for row in rows})


@pytest.mark.parametrize(
    "raw, expected",
    [
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(9, 4, None, None, "prompt_tokens_details.cached_tokens"),
        ),
        (
            {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2},
            Usage(9, 0, None, 2, "input_tokens_details.cached_tokens"),
        ),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 15},
            Usage(100, 80, 15, None, "cache_read_input_tokens"),
        ),
        ({"promptTokenCount": 7, "cachedContentTokenCount": 3}, Usage(7, 3, None, None, "cachedContentTokenCount")),
        ({"prompt_tokens": 7}, Usage(7, None, None, None, "")),
    ],
)
def test_usage_of_every_api_in_one_shape(raw: dict[str, int], expected: Usage) -> None:
    """Net inputs are added up, and an absent field is None."""
    assert read_usage(raw) == expected
