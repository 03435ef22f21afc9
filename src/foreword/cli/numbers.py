"""Numbers as options take them: what Python reads as NaN or infinity is none."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation

import click


class DecimalType(click.ParamType[Decimal]):
    """A decimal number as it is written."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """Turn text into a finite Decimal."""
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite():
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """A float within bounds; NaN, which no bound excludes, is refused."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Turn text into a finite float within the bounds."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number
