"""What a shared prefix saves: the specification's formula, with writes, a number of requests, and a provider's rules.

Steady state: saved = (1 - r) P / (P + S). With writes, over N requests:
saved(N) = 1 - [w P + (N - 1) r P + N S] / [N (P + S)]. P is the shared prefix, S what varies, r and w multipliers of the
input price. S cancels in the numerator: the suffix costs the same whether caching is on or off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from foreword.billing.providers import ProviderRules
from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Savings:
    """The result; costs in units of one uncached input token, or in dollars where ``input_price`` was given.

    Attributes:
        prefix_tokens: the shared prefix as measured.
        cached_tokens: what of it the provider caches.
        saved: the share of input cost saved over ``requests``; negative where caching costs more.
        steady_state: the share saved by each request that hits.
        break_even_requests: the number of requests from which caching is cheaper; 0 where it never costs more.
    """

    prefix_tokens: int
    suffix_tokens: int
    requests: int
    cached_tokens: int
    read_multiplier: Decimal
    write_multiplier: Decimal
    cost: Decimal
    uncached_cost: Decimal
    saved: Decimal
    steady_state: Decimal
    break_even: Decimal
    break_even_requests: int
    always_missing: Decimal


def compute_savings(
    prefix_tokens: int,
    suffix_tokens: int,
    *,
    requests: int = 1,
    read_multiplier: Decimal = Decimal("0.1"),
    write_multiplier: Decimal = Decimal("1.25"),
    rules: ProviderRules | None = None,
    model: str = "",
    input_price: Decimal | None = None,
) -> Savings:
    """The saving for a prefix and a suffix in tokens; ``input_price`` is in dollars a million tokens."""
    _check(prefix_tokens, suffix_tokens, requests, read_multiplier, write_multiplier)
    cached = rules.cacheable(prefix_tokens, model) if rules else prefix_tokens
    r, w = read_multiplier, write_multiplier or Decimal(1)
    rest = prefix_tokens - cached + suffix_tokens
    uncached = Decimal(requests * (prefix_tokens + suffix_tokens))
    cost = w * cached + (requests - 1) * r * cached + requests * rest
    even = (w - r) / (1 - r) if r < 1 else Decimal("Infinity")
    unit = input_price / 1_000_000 if input_price is not None else Decimal(1)
    return Savings(
        prefix_tokens, suffix_tokens, requests, cached, r, w, cost * unit, uncached * unit,
        saved=1 - cost / uncached,
        steady_state=(1 - r) * cached / (prefix_tokens + suffix_tokens),
        break_even=even,
        break_even_requests=math.ceil(even) if even.is_finite() else 0,
        always_missing=(1 - w) * cached / (prefix_tokens + suffix_tokens),
    )  # fmt: skip


def _check(prefix: int, suffix: int, requests: int, read: Decimal, write: Decimal) -> None:
    if prefix < 0 or suffix < 0 or prefix + suffix == 0 or requests < 1:
        raise ConfigError("Token counts must not be negative nor both zero, and requests must be at least one.")
    if not (0 <= read <= 1 and 0 <= write <= 10):
        raise ConfigError("The read multiplier must lie in 0..1 and the write multiplier in 0..10.")
