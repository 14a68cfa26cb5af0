"""Numbers and shares as a reader likes them."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Write three or four significant digits, with thousands set apart: ``1,234`` or ``0.0123``."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else f"{value}"
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 1e7 or size < 1e-4:
        return f"{value:.3g}"
    decimals = max(0, 3 - math.floor(math.log10(size)) - (size < 1))
    return f"{value:,.{min(decimals, 6)}f}"


def share(value: float) -> str:
    """Write a share in percent with one decimal: ``88.7 %``."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def level(value: float) -> str:
    """Write the level of an interval: ``90 %``, ``99.5 %``."""
    return f"{100 * value:.10g} %"


def count(amount: int, noun: str) -> str:
    """Write ``1 row`` or ``1,024 rows``."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def listed(names: list[str], *, most: int = 5) -> str:
    """Write a few names in quotes and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
