"""Faults in the rows of an answer, in any dialect. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable

from dexorder_exchange_sim.dialects.dialect import History, Row, RowLayout, Rows
from dexorder_exchange_sim.faults import Strike


def spoil(strike: Strike, history: History) -> Rows:
    """Return the rows with the fault; kinds that do not apply to these rows leave them unchanged.

    Args:
        strike: Rule that applies; with ``span`` it changes the rows of that time, else some at its ``place``.
        history: True rows; not changed.
    """
    rows = history.rows
    if strike.rule.kind == "outside":
        return history.earlier(strike.rule.size or 2) + rows
    if not rows:
        return rows
    if strike.rule.kind in _WHOLE:
        return _WHOLE[strike.rule.kind](history, strike.rule.size)
    touched = set(_touched(strike, history))
    if strike.rule.kind == "hole":
        return [row for place, row in enumerate(rows) if place not in touched]
    if strike.rule.kind in _TWINS:
        twin = _TWINS[strike.rule.kind]
        return [
            copy for i, row in enumerate(rows) for copy in ([row, twin(row, history.layout)] if i in touched else [row])
        ]
    return [_spoil_row(strike.rule.kind, row, history.layout) if i in touched else row for i, row in enumerate(rows)]


def _unfinished(history: History, size: int) -> Rows:
    if history.running is None:
        return history.rows
    return [*history.rows, _with(history.rows[-1], {history.layout.time: history.running})]


def _running(history: History, size: int) -> Rows:
    half = history.half()
    return history.rows if half is None else [*history.rows[:-1], half]


_WHOLE: dict[str, Callable[[History, int], Rows]] = {
    "short": lambda history, size: history.rows[: size or -(-len(history.rows) // 2)],
    "newest": lambda history, size: history.rows[-(size or -(-len(history.rows) // 2)) :],
    "exclusive": lambda history, size: [
        row for row in history.rows if history.layout.time_ns(row) != history.window_ns[0]
    ],
    "drop_first": lambda history, size: history.rows[1:],
    "drop_last": lambda history, size: history.rows[:-1],
    "duplicate_tail": lambda history, size: history.rows + history.rows[-(size or 2) :],
    "reversed": lambda history, size: history.rows[::-1],
    "unfinished": _unfinished,
    "running": _running,
}


_TWINS: dict[str, Callable[[Row, RowLayout], Row]] = {
    "double": lambda row, layout: row,
    "double_other": lambda row, layout: _spoil_row("edited", row, layout),
}
"""Kinds that send a row twice: the second copy."""


def _touched(strike: Strike, history: History) -> range | list[int]:
    """Return the indexes of the rows that a placed fault changes."""
    rule, rows = strike.rule, history.rows
    if rule.span is not None:
        times_ns = map(history.layout.time_ns, rows)
        return [place for place, time_ns in enumerate(times_ns) if rule.span[0] <= time_ns < rule.span[1]]
    size = (rule.size or 10) if rule.kind == "hole" else 1
    start = max(0, len(rows) // 2 - size // 2)
    if rule.place == "random":
        start = strike.roll % max(1, len(rows) - size + 1)
    return range(start, start + size)


def _spoil_row(kind: str, row: Row, layout: RowLayout) -> Row:
    if kind == "null_fields":
        return _with(row, {layout.close: None, layout.volume: None})
    if kind == "unreadable":
        return "?"
    if kind == "edited":  # valid, but different from earlier answers
        if layout.high is None:
            return _with(row, {layout.volume: f"{2 * float(row[layout.volume]):.8f}"})
        return _with(row, {layout.close: row[layout.high]})
    if kind == "off_grid" and layout.off_grid:
        return _with(row, {layout.time: row[layout.time] + layout.off_grid})
    if kind == "low_above_high" and layout.high is not None:
        return _with(row, {layout.low: f"{float(row[layout.high]) * 1.01:.8f}"})
    return row


def _with(row: Row, values: dict[int | str | None, object]) -> Row:
    changed = copy.copy(row)
    for key, value in values.items():
        changed[key] = value
    return changed
