"""``dexorder coverage --days``: the state of each day in a table, a calendar of characters, or a picture."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import typer

import dexorder
from dexorder.cli.terminal import output
from dexorder_common.model.coverage_days import CoverageDay, CoverageDays, DayState

MARKS = {DayState.PROVEN: "#", DayState.PROVISIONAL: "?", DayState.NOT_ASKED: ".", DayState.MISSING: "!"}
COLOURS = {
    DayState.PROVEN: "#2da44e",
    DayState.PROVISIONAL: "#d4a72c",
    DayState.NOT_ASKED: "#d0d7de",
    DayState.MISSING: "#cf222e",
}
_CELL, _GAP, _LEFT, _TOP = 12, 2, 44, 40
_MAX_LINES = 60
"""Lines of the table; --json has all."""


def coverage_days(
    ticker: str,
    period: str,
    since: str | None,
    until: str | None,
    picture: Path | None,
    as_json: bool,
    relay: str | None,
) -> None:
    """Print the days of a series that are not proven, and a calendar of all; write the picture."""
    if picture is not None and not picture.resolve().parent.is_dir():
        raise typer.BadParameter(f"--picture: the folder of {str(picture)!r} does not exist")
    with dexorder.Client(relay) as client:
        found = client.coverage_days(ticker, period, since, until)
    if picture is not None:
        picture.write_text(svg(found), encoding="utf-8")
    if as_json:
        for row in found.as_json():
            output.print_json_line(row)
        return
    out = output.stdout()
    if not found.days:
        out.print(f"{ticker} {found.period}: nothing is covered, and nobody has asked for it")
        return
    for line in calendar(found.days):
        out.print(line)
    out.print("  ".join(f"{MARKS[state]} {state}" for state in DayState))
    if found.unproven:
        columns = ("day", "state", *map(str, DayState))
        out.print(output.plain_table(columns, map(_cells, found.unproven[:_MAX_LINES])))
    if len(found.unproven) > _MAX_LINES:
        out.print(f"{len(found.unproven) - _MAX_LINES:,} more days are not proven; --json prints all")
    counts = ", ".join(f"{count:,} {state}" for state, count in found.count().items() if count)
    out.print(f"{ticker} {found.period}: {len(found.days):,} days: {counts}")


def _cells(day: CoverageDay) -> tuple[str, ...]:
    return (day.day, str(day.state), *(f"{day.shares.get(state, 0.0):.1%}" for state in DayState))


def calendar(days: Iterable[CoverageDay]) -> list[str]:
    """Return a line for each month, with a character for each day.

    >>> from dexorder_common.model.time_range import TimeRange
    >>> day = CoverageDay(TimeRange(2 * 86_400 * 10**9, 3 * 86_400 * 10**9), {DayState.PROVEN: 1.0})
    >>> calendar([day])
    ['1970-01    #']
    """
    lines = []
    for month, inside in groupby(days, key=lambda each: each.day[:7]):
        marks = {int(each.day[8:]): MARKS[each.state] for each in inside}
        text = "".join(marks.get(number, " ") for number in range(1, 32))
        lines.append(f"{month}  {text}".rstrip())
    return lines


def svg(found: CoverageDays) -> str:
    """Return a calendar as an SVG image: a row of squares for each month, a colour for each state."""
    months = [list(days) for _, days in groupby(found.days, key=lambda each: each.day[:7])]
    step = _CELL + _GAP
    width, height = _LEFT + 31 * step + _GAP, _TOP + len(months) * step + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 20}" height="{height}" font-family="sans-serif">',
        f'<text x="4" y="14" font-size="12">{escape(found.ticker)} {escape(found.period)}</text>',
    ]
    for number, state in enumerate(DayState):
        x = 4 + number * 110
        lines.append(f'<rect x="{x}" y="20" width="{_CELL}" height="{_CELL}" fill="{COLOURS[state]}"/>')
        lines.append(f'<text x="{x + step}" y="30" font-size="10">{state}</text>')
    for row, days in enumerate(months):
        y = _TOP + row * step
        lines.append(f'<text x="4" y="{y + 10}" font-size="10">{days[0].day[:7]}</text>')
        for each in days:
            x = _LEFT + (date.fromisoformat(each.day).day - 1) * step
            title = f"<title>{each.day}: {each.state}</title>"
            lines.append(
                f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="{COLOURS[each.state]}">{title}</rect>'
            )
    return "\n".join([*lines, "</svg>", ""])
