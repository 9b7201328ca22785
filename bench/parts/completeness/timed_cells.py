"""Cells of the measurement of faults that last for a time, stay at a replica, or are always in the same place. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS

MINUTE_NS = 60 * SECOND_NS
SECONDS = (0.2, 1.0, 5.0, 30.0, 120.0, 600.0)
SHARES = (0.05, 0.2, 0.5)
PAGE = 1_000
"""Candles of one call."""
Rule = dict[str, Any]
_HOURS = {"absent": "hours too", "kept": "hours intact", "computed": "hours computed from the rest"}


@dataclass(frozen=True, slots=True)
class TimedCell:
    """One fault on one range.

    Attributes:
        row: Name of its row on the command line.
        label: First column.
        share: 0 to 1; its meaning depends on the row.
        rules: The exchange's fault rules for a range.
        newest: The range ends with the last closed candle; otherwise it is weeks old.
    """

    row: str
    label: str
    share: float
    rules: Callable[[TimeRange], list[Rule]]
    newest: bool = False


def middle(span: TimeRange, share: float) -> tuple[int, int]:
    """Return a block of minutes in the middle of a range, not on full hours: a share of it, at least one minute."""
    minutes = (span.end_ns - span.start_ns) // MINUTE_NS
    size = max(1, round(minutes * share))
    start_ns = span.start_ns + ((minutes - size) // 2 + 7) * MINUTE_NS
    return start_ns, start_ns + size * MINUTE_NS


def all_cells() -> list[TimedCell]:
    """Return all cells in the order of the table."""
    return [cell for rows in (_blocks, _minutes, _empty, _late, _replicas, _odd_rows, _limits) for cell in rows()]


def names() -> list[str]:
    """Return the names of the rows."""
    return list(dict.fromkeys(cell.row for cell in all_cells()))


def chosen(rows: Sequence[str] | None) -> list[TimedCell]:
    """Return the cells of the selected rows; all without names."""
    return [cell for cell in all_cells() if rows is None or cell.row in rows]


def _blocks() -> Iterator[TimedCell]:
    for coarser, text in _HOURS.items():
        for seconds in SECONDS:
            for share in SHARES:
                yield TimedCell(
                    f"block_{coarser}",
                    f"block absent for {seconds:g} s, {text}",
                    share,
                    _block(share, coarser=coarser, lasts_s=seconds),
                )


def _minutes() -> Iterator[TimedCell]:
    for coarser, text in _HOURS.items():
        for seconds in SECONDS:
            for share in (*SHARES, 1.0):
                label = f"one minute absent for {seconds:g} s, {text}"
                rules = _block(0, coarser=coarser, lasts_s=seconds, probability=share)
                yield TimedCell(f"minute_{coarser}", label, share, rules)


def _block(share: float, **more: Any) -> Callable[[TimeRange], list[Rule]]:
    return lambda span: [{"kind": "absent", "span": middle(span, share), **more}]


def _always(**rule: Any) -> Callable[[TimeRange], list[Rule]]:
    return lambda span: [rule]


def _empty() -> Iterator[TimedCell]:
    for seconds in SECONDS:
        for share in (*SHARES, 1.0):
            rules = _always(kind="empty", lasts_s=seconds, probability=share)
            yield TimedCell("all_empty", f"answers `[]` for {seconds:g} s", share, rules)


def _late() -> Iterator[TimedCell]:
    for seconds in SECONDS:
        for share in (*SHARES, 1.0):
            rules = _always(kind="behind", lag_s=seconds, probability=share)
            yield TimedCell("late", f"newest candles {seconds:g} s late", share, rules, newest=True)


def _replicas() -> Iterator[TimedCell]:
    for share in SHARES:
        rules = _block(0.05, coarser="absent", replicas=round(1 / share))
        yield TimedCell("sticky", "a replica lacks a block, connections stay", share, rules)
    for share in SHARES:
        rules = _block(0.05, coarser="absent", probability=share)
        yield TimedCell("replica", "a replica lacks a block, each call at random", share, rules)
    for share in SHARES:
        rules = _block(0.05, coarser="computed", probability=share)
        yield TimedCell("replica_computed", "the same, and computes hours from the rest", share, rules)


def _odd_rows() -> Iterator[TimedCell]:
    kinds = {
        "double": "a row twice, equal",
        "double_other": "a row twice, two values",
        "off_grid": "a row off the grid",
        "unreadable": "an unreadable row",
    }
    for kind, label in kinds.items():
        for share in (*SHARES, 1.0):
            yield TimedCell(f"odd_{kind}", label, share, _odd(kind, share))


def _odd(kind: str, share: float) -> Callable[[TimeRange], list[Rule]]:
    return lambda span: [{"kind": kind, "span": middle(span, 0), "probability": share}]


def _limits() -> Iterator[TimedCell]:
    for share in SHARES:
        yield TimedCell(
            "limit", "oldest candles below the limit", share, _always(kind="short", size=round(PAGE * share))
        )
    for share in SHARES:
        rules = _always(kind="newest", size=round(PAGE * share))
        yield TimedCell("limit_newest", "newest candles below the limit", share, rules)
