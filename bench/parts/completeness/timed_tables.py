"""Results of `timed` to Markdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.parts.completeness.tables import percent
from bench.parts.completeness.timed import GOOD_ANSWERS, MINUTES, Run, TimedResult, worst
from bench.parts.completeness.timed_outcome import TimedOutcome
from tests.rig.report import markdown

ABOUT = (
    f"{MINUTES:,} one-minute candles, 1,000 in a call; the ingestor's fetcher with unmodified ccxt, in virtual time: a "
    "call takes 0.1 s, pauses are those of the default settings. Each cell is run four times, by a fresh ingestor and "
    f"by one that has had {GOOD_ANSWERS:,} true answers, with a fault that begins with the first call and one that "
    "begins four calls later; the table shows the worst outcome and the most calls. `equal`: every candle, with its "
    "values, and no other. `provisional`: existing candles are called empty, and the claim says that it is to be "
    "checked again. `named`: they are in the error's ranges, and no other candle is. Behind the arrow: the state after "
    "these ranges were queried again two hours later, without the fault. **Bold**: a reader of table and notification "
    "believes something untrue. The share is that of the range (blocks), of the answers (one minute, `[]`, late "
    "candles, odd rows, random replicas), of the connections (replicas where these stay), or of the page limit.\n"
)


def timed_table(title: str, results: Sequence[TimedResult]) -> str:
    """Return the table of one kind of exchange and its sums."""
    shares = sorted({r.cell.share for r in results})
    header = (
        "fault",
        f"ccxt's loop, lost or wrong at {' / '.join(map(percent, shares))}",
        *(f"{percent(share)}: dexorder, calls (ccxt's)" for share in shares),
    )
    by_label: dict[str, dict[float, TimedResult]] = {}
    for result in results:
        by_label.setdefault(result.cell.label, {})[result.cell.share] = result
    rows = [
        (
            label,
            " / ".join(_ccxt(at.get(share)) for share in shares),
            *(_cell(at.get(share)) for share in shares),
        )
        for label, at in by_label.items()
    ]
    return f"## {title}\n\n{markdown(header, rows)}\n{summary(results)}"


def summary(results: Sequence[TimedResult]) -> str:
    """Return the number of runs by outcome, what is silently wrong, and the calls beside ccxt's."""
    runs = [(result, run) for result in results for run in result.runs]
    kinds = {
        "equal": [r for _, r in runs if r.first.is_equal],
        "provisional or named": [r for _, r in runs if not (r.first.is_equal or r.first.is_silently_wrong)],
        "silently wrong": [r for _, r in runs if r.first.is_silently_wrong],
    }
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())
    healed = sum(run.again.is_equal for _, run in runs)
    lines = [f"- {len(runs)} runs: {counts}; queried again {healed} are equal.\n"]
    for result, run in runs:
        if run.first.is_silently_wrong:
            text = f"{result.cell.label}, {percent(result.cell.share)}, {run.text}"
            lines.append(f"- Silently wrong: {text}: {outcome(run.first)}, then {outcome(run.again)}.\n")
    imprecise = [f"{r.cell.label}, {percent(r.cell.share)}" for r, run in runs if run.first.there]
    lines.append(f"- Errors that name candles which are there: {', '.join(dict.fromkeys(imprecise)) or 'none'}.\n")
    return "".join(lines)


def outcome(found: TimedOutcome) -> str:
    """Return the outcome as text."""
    if found.is_equal:
        return "equal"
    counts = (
        (found.wrong, "**{} wrong**"),
        (found.final, "**{} lost**"),
        (found.provisional, "{} provisional"),
        (found.named, "{} named"),
        (found.there, "{} named though there"),
    )
    return ", ".join(text.format(f"{count:,}") for count, text in counts if count)


def _cell(result: TimedResult | None) -> str:
    if result is None:
        return "-"
    run: Run = worst(result.runs)
    text = outcome(run.first) + ("" if run.first.is_equal else f" → {outcome(run.again)}")
    return f"{text}; {max(r.calls for r in result.runs)} ({result.ccxt_calls})"


def _ccxt(result: TimedResult | None) -> str:
    if result is None:
        return "-"
    return f"{result.ccxt_lost + result.ccxt_wrong:,}" + (f" ({result.ccxt_end})" if result.ccxt_end else "")
