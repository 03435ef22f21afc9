"""``foreword savings``."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import click

from foreword.cli.numbers import DecimalType

if TYPE_CHECKING:
    from foreword.billing.providers import ProviderRules
    from foreword.billing.savings import Savings


@click.command("savings", short_help="Print what a shared prefix saves, step by step.")
@click.option("--prefix-tokens", type=click.IntRange(0), required=True, help="P: tokens all requests share.")
@click.option("--suffix-tokens", type=click.IntRange(0), required=True, help="S: tokens that vary.")
@click.option(
    "--requests", type=click.IntRange(1), default=100, show_default=True, help="N: requests while the entry lives."
)
@click.option(
    "--read-multiplier", type=DecimalType(), help="r: price of a cached token, times the input price. Default 0.1."
)
@click.option(
    "--write-multiplier",
    type=DecimalType(),
    help="w: price of a written token, times the input price; 0 where writing adds nothing to it. Default 1.25.",
)
@click.option("--provider", help="Take multipliers, minimum and step from this provider's rules.")
@click.option("--model", help="Take the minimum and the price from this model.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["full", "json"]),
    default="full",
    show_default=True,
    help="How it is printed.",
)
def command(*, prefix_tokens: int, suffix_tokens: int, requests: int, read_multiplier: Decimal | None, write_multiplier: Decimal | None, provider: str | None, model: str | None, style: str) -> None:  # fmt: skip
    """Print the arithmetic of a saving line by line: steady state, N requests with writes, break-even, minimum and step."""
    from foreword.billing.prices import price_of
    from foreword.billing.providers import provider as row_of
    from foreword.billing.providers import rules_for
    from foreword.billing.savings import compute_savings
    from foreword.cli.render import dump

    rules = rules_for(model or "", row_of(provider).name if provider else "") if provider or model else None
    price = price_of(model, provider) if model else None
    read, write = (rules.read, rules.write) if rules else (Decimal("0.1"), Decimal("1.25"))
    if price and price.read is not None:
        read = price.read / price.input
    if price and price.write is not None:
        write = price.write / price.input
    savings = compute_savings(
        prefix_tokens, suffix_tokens, requests=requests, rules=rules, model=model or "",
        read_multiplier=read if read_multiplier is None else read_multiplier,
        write_multiplier=write if write_multiplier is None else write_multiplier,
        input_price=price.input if price else None,
    )  # fmt: skip
    click.echo(dump(savings) if style == "json" else arithmetic(savings, rules, model or ""))


def arithmetic(s: Savings, rules: ProviderRules | None, model: str) -> str:
    """The computation as one would write it down."""
    p, suffix, n, r, w = s.cached_tokens, s.suffix_tokens, s.requests, s.read_multiplier, s.write_multiplier
    total = s.prefix_tokens + suffix
    lines = [f"P = {s.prefix_tokens:,} shared tokens, S = {suffix:,} varying tokens, r = {r}, w = {w}, N = {n:,}"]
    if rules:
        least = rules.minimum_for(model)
        lines.append(
            f"{rules.name}: minimum {least:,}, step {rules.step:,}: {p:,} of {s.prefix_tokens:,} tokens can be cached ({rules.source}, read {rules.checked})"
        )
    lines += [
        f"a request that hits saves (1 - r) P / (P + S) = {1 - r} x {p:,} / {total:,} = {s.steady_state:.1%}",
        f"N requests cost w P + (N - 1) r P + N S' = {w * p:,.0f} + {(n - 1) * r * p:,.0f} + {n * (total - p):,} tokens' worth, uncached {n * total:,}",
        f"saved over {n:,} requests: {s.saved:.1%}",
        f"break-even: (w - r) / (1 - r) = {s.break_even:.2f}, so from request {s.break_even_requests} on",
        f"a prompt that always misses, with a marker: {s.always_missing:.1%}",
    ]
    if s.uncached_cost != n * total:
        lines.append(f"in dollars: {s.cost:.4f} instead of {s.uncached_cost:.4f}")
    return "\n".join(lines)
