"""Refusals of a trigger's text, and the limits that every trigger has. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dexorder_common.model.errors import InvalidRequest

MAX_TEXT_BYTES = 16_384
"""Largest size of a trigger's text in UTF-8."""
MAX_TOKENS = 6_000
MAX_DEPTH = 64
"""Largest depth of nested expressions and parentheses."""
MAX_NODES = 2_000
"""Largest number of operators, names and literals in a trigger."""
MAX_STATES = 1_024
"""Largest number of states of a pattern; ``A{1,500}`` has 500."""
MAX_VARIABLES = 64
"""Largest number of variables of a pattern."""
MAX_PARTIAL_MATCHES = 2_000
"""Largest number of unfinished and waiting matches of a trigger on one ticker."""
MAX_SPAN_ROWS = 100_000
"""Largest number of rows from the first row of an unfinished match to the newest row."""
MAX_WORK_PER_ROW = 400_000
"""Largest number of steps of a trigger for one row of one ticker: evaluated nodes, aggregated rows and slices, bytes of
texts."""
MAX_WORK_PER_MINUTE = 4_000_000
"""Largest number of those within a minute of the rows' time, on all tickers: about a hundredth of a core.
Rows of patterns with little work are left out."""
MAX_LOOKBACK = 5_000
"""Largest number of rows of all columns with OVER together."""
MAX_MERGES = 20_000
"""Largest number of slices of a window times its aggregates."""
MAX_COLUMNS = 1_000
"""Largest number of columns of a SELECT; a star counts as the columns that it stands for."""
MAX_VALUE_BYTES = 4_096
"""Largest size of a text that a trigger makes, in UTF-8."""
MAX_STATE_BYTES = 32 * 2**20
"""Largest size of the derived rows, values of OVER and parts of windows that a trigger keeps, on all its tickers."""
MAX_STEPS = 8
"""Largest number of nested derived tables."""
MAX_SLICES = 1_440
"""Largest ratio of a window's size to its slide or step."""
MAX_OFFSET = 1_000
"""Largest offset of PREV, LAG, FIRST and LAST, and largest number of rows of OVER."""


class TextPosition(NamedTuple):
    """Place in a trigger's text, both from 1."""

    line: int
    column: int


class InvalidSql(InvalidRequest):
    """The text of a trigger, or one of its parameters, is refused.

    Attributes:
        line: Line of the text from 1; 0 if a parameter is refused.
        column: Column of the text from 1; 0 if a parameter is refused.
        reason: The fault, and the accepted values.
    """

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(f"line {line}, column {column}: {reason}" if line else reason)
        self.line = line
        self.column = column
        self.reason = reason


def refuse(at: TextPosition, reason: str) -> InvalidSql:
    """Return the error for a place in the text."""
    return InvalidSql(at.line, at.column, reason)
