"""Which jobs a request needs: its range less what is covered, less what running jobs will bring. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.common.model.periods import next_open, split_by_periods
from services.common.model.time_range import TimeRange, intersect, subtract


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for a request: wait for jobs that are there, and make new ones. Both empty: it is covered."""

    attach: tuple[int, ...]
    new: tuple[TimeRange, ...]


def plan(
    span: TimeRange,
    period_seconds: int,
    *,
    covered: Iterable[TimeRange],
    in_flight: Mapping[int, Sequence[TimeRange]],
    most_periods: int,
) -> Plan:
    """Split what ``span`` lacks.

    Args:
        span: Half open, both ends on the period's grid.
        covered: Committed or verified empty.
        in_flight: By job, the ranges it may still bring; jobs of the same market only.
        most_periods: Largest new job.
    Returns:
        New jobs in time order, disjoint from each other, from ``covered`` and from the attached jobs' ranges.
    """
    lacking = subtract([span], covered)
    attach, made_progress = [], []
    for job, ranges in in_flight.items():
        useful = [common for part in lacking for common in intersect(ranges, part)]
        if useful:
            attach.append(job)
            made_progress.extend(useful)
    new = [
        job for part in subtract(lacking, made_progress) for job in split_by_periods(part, period_seconds, most_periods)
    ]
    return Plan(tuple(attach), tuple(new))


def wave_end(start_ns: int, end_ns: int, period_seconds: int, periods: int) -> int:
    """Where a wave of ``periods`` periods from ``start_ns`` ends, at most at ``end_ns``."""
    # a limit may be 2**32 - 1 months: beyond every calendar, so compare before stepping
    whole = (end_ns - start_ns) // (min(period_seconds, 28 * 86_400) * 1_000_000_000) + 1
    return end_ns if periods >= whole else min(next_open(start_ns, period_seconds, periods), end_ns)
