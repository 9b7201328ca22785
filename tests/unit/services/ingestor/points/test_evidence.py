"""Evidence for rows without a grid: what settles a range, and that no faulty answer loses or invents a row."""

from __future__ import annotations

from random import Random

import pytest

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.points.evidence import OVERDUE_NS, Cell, PointAnswer, PointEvidence, Values
from dexorder_ingestor.points.fetch import pages_of
from tests.examples import first_in_gate

HOUR = 3_600 * SECOND_NS
RATES: dict[int, Values] = {n * 8 * HOUR: (n / 1e4,) for n in range(1, 31)}
SPAN = TimeRange(40 * HOUR, 200 * HOUR)


def answer(window: TimeRange, *, without: tuple[int, ...] = (), **changed: Values) -> PointAnswer:
    found = {t: v for t, v in RATES.items() if window.start_ns <= t < window.end_ns and t // HOUR not in without}
    return PointAnswer(window, found | {int(name[1:]) * HOUR: values for name, values in changed.items()})


def evidence(*, now_ns: int = 300 * HOUR) -> PointEvidence:
    return PointEvidence(SPAN, now_ns=now_ns)


def ask(found: PointEvidence, **faults: tuple[int, ...]) -> None:
    window = found.next_window()
    assert window is not None
    found.add(answer(window, **faults))


def test_two_answers_to_different_queries_settle_a_range_with_rows_on_both_sides() -> None:
    found = evidence()
    first = found.next_window()
    ask(found)
    assert found.next_window() not in (None, first)
    ask(found)
    assert found.next_window() is None
    assert [t // HOUR for t in found.points(SPAN)] == list(range(40, 200, 8))


def test_a_row_that_most_answers_lack_is_found_as_its_cell_is_longer_than_those_beside_it() -> None:
    found = evidence()
    ask(found, without=(96,))
    for _ in range(2):
        ask(found, without=(96,))
        assert found.first_unsettled == Cell(88 * HOUR, 104 * HOUR)
    while found.next_window() is not None:
        ask(found)
    assert [t // HOUR for t in found.points(SPAN)] == list(range(40, 200, 8))


def test_a_long_cell_is_settled_by_four_answers_that_have_both_its_rows() -> None:
    found = evidence()
    for number in range(4):
        assert (found.next_window() is None, number) == (False, number)
        ask(found, without=(96,))
    assert found.next_window() is None


def test_values_count_once_two_more_answers_have_them_than_have_others() -> None:
    found = evidence()
    ask(found)
    ask(found, h96=(9.0,))  # type: ignore[arg-type]
    ask(found)
    assert found.first_unsettled == Cell(88 * HOUR, 96 * HOUR)
    ask(found)
    assert found.next_window() is None
    assert found.points(SPAN)[96 * HOUR] == (12 / 1e4,)


def test_a_row_of_one_answer_that_four_others_lack_is_dropped() -> None:
    found = evidence()
    ask(found, h99=(0.5,))  # type: ignore[arg-type]
    while found.next_window() is not None:
        ask(found)
    assert 99 * HOUR not in found.points(SPAN)
    assert found.answers == 5


def test_empty_answers_and_cut_ones_settle_nothing_beside_rows() -> None:
    found = evidence()
    wide = TimeRange(0, 300 * HOUR)
    for _ in range(9):
        found.add(PointAnswer(wide, {}))
    assert found.next_window() is None  # nothing but empty answers: there is no row
    found.add(PointAnswer(wide, {96 * HOUR: (1.0,)}, is_cut=True))
    found.add(PointAnswer(wide, {96 * HOUR: (1.0,)}, is_cut=True))
    assert found.first_unsettled == Cell(None, 96 * HOUR)


def test_the_newest_row_is_waited_for_while_it_may_be_late() -> None:
    span = TimeRange(40 * HOUR, 100 * HOUR)
    late = PointEvidence(span, now_ns=96 * HOUR + OVERDUE_NS - 1)
    known = {t: v for t, v in RATES.items() if t < 96 * HOUR}
    for _ in range(9):
        window = late.next_window()
        assert window is not None
        late.add(PointAnswer(window, {t: v for t, v in known.items() if t >= window.start_ns}))
    assert late.first_unsettled == Cell(88 * HOUR, None)
    late.now_ns += 1
    late.add(PointAnswer(TimeRange(80 * HOUR, 101 * HOUR), {t: v for t, v in known.items() if t >= 80 * HOUR}))
    assert late.next_window() is None  # the interval has become longer


def truth(rng: Random) -> dict[int, Values]:
    """Return rates whose interval changes from 8 h to 4 h to 1 h."""
    time_ns, found = 0, {}
    for hours, count in ((8, 60), (4, 90), (1, 300)):
        for _ in range(count):
            time_ns += hours * HOUR
            found[time_ns] = (round(rng.uniform(-1e-3, 1e-3), 8),)
    return found


def faulty(
    known: dict[int, Values], window: TimeRange, limit: int, *, newest: bool, share: float, rng: Random
) -> PointAnswer:
    """Return what an exchange answers; with a probability it lacks rows, has a false one, or nothing."""
    times = [time_ns for time_ns in sorted(known) if window.start_ns <= time_ns < window.end_ns]
    times = times[-limit:] if newest else times[:limit]
    found = {time_ns: known[time_ns] for time_ns in times}
    if times and rng.random() < share:
        place = rng.randrange(len(times))
        match rng.choice(["hole", "short", "newest", "edited", "empty", "false", "first", "last"]):
            case "hole":
                found = {t: v for t, v in found.items() if t not in times[place : place + rng.randint(1, 6)]}
            case "short":
                found = {t: found[t] for t in times[: place + 1]}
            case "newest":
                found = {t: found[t] for t in times[place:]}
            case "edited":
                found[times[place]] = (rng.random(),)
            case "empty":
                found = {}
            case "false" if place + 1 < len(times):
                found[times[place] + rng.randrange(HOUR)] = (0.5,)
            case "first":
                del found[times[0]]
            case "last":
                del found[times[-1]]
    return PointAnswer(window, found, is_cut=len(found) >= limit)


@pytest.mark.parametrize("share", first_in_gate([0.3, 0.0, 0.1, 0.5], 1))
@pytest.mark.parametrize("newest", [False, True])
def test_an_interval_that_changes_is_settled_without_a_lost_or_doubled_row(share: float, newest: bool) -> None:
    answers = 0
    for seed in range(25):
        rng = Random(f"{seed}/{share}/{newest}")
        known = truth(rng)
        now_ns = max(known) + HOUR
        start_ns = rng.choice([0, 3, 100, 450]) * HOUR
        span = TimeRange(start_ns, rng.choice([now_ns, rng.randrange(start_ns + 10 * HOUR, now_ns)]))
        found = PointEvidence(span, now_ns=now_ns)
        while (window := found.next_window()) is not None:
            found.add(faulty(known, window, rng.choice([50, 100, 1000]), newest=newest, share=share, rng=rng))
        pages = pages_of(found, span)
        assert [page.span.start_ns for page in pages] == [span.start_ns, *(page.span.end_ns for page in pages[:-1])]
        assert pages[-1].span.end_ns == span.end_ns
        rows = {each.time_ns: each.values for page in pages for each in page.points}
        assert rows == {time_ns: v for time_ns, v in known.items() if span.start_ns <= time_ns < span.end_ns}
        assert sum(len(page.points) for page in pages) == len(rows)
        answers += found.answers
    assert answers / 25 < 60
