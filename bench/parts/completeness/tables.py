"""Results to Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.parts.completeness.cells import Cell
from bench.parts.completeness.compare import QUIET, Outcome, Verdict
from tests.rig.report import markdown

MUST_BE_WHOLE = 0.2
"""Up to this share of faulty answers every request has to end OK."""


LOOP, PAGINATE, FREQTRADE = "ccxt, tutorial loop", "ccxt, `paginate`", "freqtrade"


@dataclass(frozen=True, slots=True)
class Result:
    """Outcomes of all ways in one cell.

    Attributes:
        peers: By the name of their column; the same names in all results of a run.
    """

    cell: Cell
    peers: Mapping[str, Outcome]
    ours: Outcome

    @property
    def as_promised(self) -> bool:
        """Return whether dexorder kept its promise at this share."""
        return self.ours.whole if self.cell.share <= MUST_BE_WHOLE else self.ours.honest


def percent(share: float) -> str:
    """Return a share as text, such as ``20 %``."""
    return f"{share * 100:g} %"


def harm(verdict: Verdict | None) -> str:
    """Return the kinds of damage as text; ``0`` without any."""
    if verdict is None:
        return "?"
    counts = ((verdict.lost, "lost"), (verdict.doubled, "doubled"), (verdict.wrong, "wrong"), (verdict.null, "null"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count) or "0"


def peer(outcome: Outcome) -> str:
    """Return a peer's cell: the damage, and whether the caller was told."""
    text = harm(outcome.verdict)
    return text if outcome.end == QUIET else f"{text} ({outcome.end})"


def ours_end(outcome: Outcome) -> str:
    """Return the status and, for an error, whether its list of missing ranges is true."""
    v = outcome.verdict
    if outcome.whole or v is None:
        return outcome.end
    if outcome.named:
        return f"{outcome.end}, {_ranges(outcome.ranges)} named, correctly"
    told = f"{v.unnamed:,} lost unnamed, {v.named_though_there:,} named though there, {_ranges(outcome.ranges)}"
    return f"**{outcome.end}: {told}**"


def _ranges(count: int) -> str:
    return f"{count} range{'' if count == 1 else 's'}"


def share_table(share: float, candles: int, pages: int, results: Sequence[Result]) -> str:
    """Return the table of one share, with its sums and worst row below."""
    header = (
        "fault in the answer",
        *_peers(results),
        "dexorder",
        "dexorder's end",
        "faulty answers",
        "calls a page",
        "seconds",
    )
    rows = [
        (
            r.cell.label,
            *map(peer, r.peers.values()),
            harm(r.ours.verdict),
            ours_end(r.ours),
            " / ".join(str(o.faults) for o in _ways(r)),
            " / ".join(f"{o.calls / pages:.1f}" for o in _ways(r)),
            " / ".join(f"{o.seconds:.1f}" for o in _ways(r)),
        )
        for r in results
    ]
    title = f"## {percent(share)} of the answers faulty, {candles:,} candles a cell\n\n"
    return f"{title}{markdown(header, rows)}\n{summary(share, results)}\n"


def _ways(result: Result) -> tuple[Outcome, ...]:
    return *result.peers.values(), result.ours


def _peers(results: Sequence[Result]) -> tuple[str, ...]:
    return tuple(results[0].peers) if results else ()


def _in_ban(outcomes: Sequence[Outcome]) -> str:
    """Return the number of calls inside a ban, and the delay of the latest after its answer."""
    count = sum(outcome.calls_in_ban for outcome in outcomes)
    latest_ms = max((outcome.latest_in_ban_ms for outcome in outcomes), default=0)
    return f"{count:,}, the latest {latest_ms:,.0f} ms after its answer" if count else "0"


def summary(share: float, results: Sequence[Result]) -> str:
    """Return the sums of a share, the worst row, and whether dexorder kept its promise."""
    sums = [f"{name} {_sum([r.peers[name] for r in results])}" for name in _peers(results)]
    lines = [f"- Sum of all rows: dexorder {'; '.join([_sum([r.ours for r in results]), *sums])}.\n"]
    bans = [f"{name} {_in_ban([r.peers[name] for r in results])}" for name in _peers(results)]
    ended = [r.ours for r in results]
    lines.append(
        f"- dexorder: {sum(o.whole for o in ended)} of {len(ended)} requests OK and whole, "
        f"{sum(o.named for o in ended)} ended with an error that names the missing ranges correctly, "
        f"{sum(not o.honest for o in ended)} neither; "
        f"calls before Retry-After was over: {_in_ban(ended)} ({', '.join(bans)}).\n"
    )
    if results:
        worst = max(results, key=lambda r: _badness(r.ours))
        lines.append(f"- Worst row of dexorder: {worst.cell.label}: {harm(worst.ours.verdict)}, {worst.ours.end}.\n")
    aim = "every request OK" if share <= MUST_BE_WHOLE else "OK, or an error that names the missing ranges correctly"
    failed = [r.cell.label for r in results if not r.as_promised]
    lines.append(f"- Aim: {aim}, 0 doubled, wrong or null: {'missed by ' + ', '.join(failed) if failed else 'met'}.\n")
    return "".join(lines)


def _sum(outcomes: Sequence[Outcome]) -> str:
    found = [o.verdict for o in outcomes if o.verdict]
    total = Verdict(
        sum(v.candles for v in found),
        sum(v.lost for v in found),
        sum(v.doubled for v in found),
        sum(v.wrong for v in found),
        sum(v.null for v in found),
    )
    text = harm(total)
    return text if len(found) == len(outcomes) else f"{text}, and {len(outcomes) - len(found)} without an end"


def _badness(outcome: Outcome) -> tuple[bool, bool, int, int, float]:
    v = outcome.verdict or Verdict(0)
    return not outcome.honest, not outcome.whole, v.spoiled, v.lost, outcome.calls


def readme_table(results: Sequence[Result]) -> str:
    """Return a table with one row for each fault: the peers at the smallest share, dexorder at each."""
    shares = sorted({r.cell.share for r in results})
    header = (
        "fault in the answer",
        *(f"{name}, {percent(shares[0])}" for name in _peers(results)),
        *(f"dexorder, {percent(share)}" for share in shares),
    )
    by_label: dict[str, dict[float, Result]] = {}
    for result in results:
        by_label.setdefault(result.cell.label, {})[result.cell.share] = result
    rows = []
    for label, at in by_label.items():
        if shares[0] in at:
            first = at[shares[0]]
            rows.append((label, *map(peer, first.peers.values()), *(_short(at.get(s)) for s in shares)))
    return f"## For the README\n\n{markdown(header, rows)}"


def _short(result: Result | None) -> str:
    if result is None:
        return "-"
    ours = result.ours
    if ours.whole:
        return "0"
    if ours.named and ours.verdict:
        return f"0 silently; error names {ours.verdict.lost:,}"
    return f"**{harm(ours.verdict)}, {ours.end}**"
