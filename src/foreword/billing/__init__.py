"""What was used and what it costs: usage fields, provider rules, prices, savings. Money is Decimal."""
