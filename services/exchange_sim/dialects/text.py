"""Numbers as exchanges write them: decimal text that reads back to the same float64. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from services.exchange_sim.candles import Column


def printer(decimals: int | None) -> Callable[[Column], list[str]]:
    """What prints a column with so many decimals; None prints as few as it takes."""
    if decimals is None:
        return lambda column: [_shortest(value) for value in column.tolist()]
    form = f"%.{decimals}f"
    return lambda column: [form % value for value in column.tolist()]


def _shortest(value: float) -> str:
    """The shortest text that reads back to the same float, without an exponent, which no exchange sends."""
    text = repr(value)
    return text if "e" not in text else np.format_float_positional(value, trim="0")
