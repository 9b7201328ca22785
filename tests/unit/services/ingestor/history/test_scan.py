"""Long absences that weeks and days show: who may use them, and what an exchange's untruths make of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import split_by_periods
from dexorder_common.model.proof import Proof, ProofKind
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.absences import KnownAbsences, ProvenAbsence, RequestAbsences
from dexorder_ingestor.exchange.dialect import CallLimits
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.simulated.exchange import Exchange
from tests.unit.services.ingestor.history.simulated.jobs import (
    check_account,
    check_found_later,
    check_whole,
    fetch,
    fetch_parts,
)
from tests.unit.services.ingestor.history.simulated.world import History, Untruth, World
from tests.unit.services.ingestor.history.test_evidence import warm

CELLS = (300, 900, 3600, 14_400, 86_400)
NOW_NS = minutes(1_000, 0).start_ns
PROOF = Proof(minutes(0, 60), ProofKind.ODDS, 8, NOW_NS - SECOND_NS, NOW_NS)
LATER = Proof(minutes(60, 40), ProofKind.CHECKSUM, 2, NOW_NS, NOW_NS + SECOND_NS)
ABSENCE = ProvenAbsence(minutes(0, 100), (PROOF, LATER))


def known() -> RequestAbsences:
    absences = RequestAbsences()
    absences.note(ABSENCE)
    return absences


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (0, ABSENCE),
        (50, ProvenAbsence(minutes(50, 50), (PROOF._replace(span=minutes(50, 10)), LATER))),
        (99, ProvenAbsence(minutes(99, 1), (LATER._replace(span=minutes(99, 1)),))),
        (100, None),
        (-1, None),
    ],
)
def test_rest_of_an_absence_keeps_its_proofs(at: int, expected: ProvenAbsence | None) -> None:
    assert known().at(minutes(at, 0).start_ns, now_ns=NOW_NS) == expected


@pytest.mark.parametrize(("age_s", "is_used"), [(0, True), (300, True), (302, False), (-302, False)])
def test_old_proof_is_not_used(age_s: int, is_used: bool) -> None:
    found = known().at(minutes(0, 0).start_ns, now_ns=NOW_NS + age_s * SECOND_NS)
    assert (found is not None) is is_used


def test_absences_serve_their_own_request_alone() -> None:
    absences = KnownAbsences()
    absences.of("r1").note(ABSENCE)
    assert absences.of("r1").at(minutes(5, 0).start_ns, now_ns=NOW_NS)
    assert not absences.of("r2").at(minutes(5, 0).start_ns, now_ns=NOW_NS)
    for number in range(63):
        absences.of(f"other-{number}")
    assert not absences.of("r1").at(minutes(5, 0).start_ns, now_ns=NOW_NS), "the 64 latest requests are remembered"


def before_listing(candles: int, *, wide: bool = False) -> World:
    """Return a world whose market is listed in the middle of an hour, days after the range begins."""
    return World(7, History(listed=7_777), 12_000, 60, CallLimits(candles, wide=wide), 1_000, cells=CELLS)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("backwards", [False, True])
def test_dispatches_share_what_one_has_proven(wide: bool, backwards: bool) -> None:
    """Twelve dispatches, in either order; without sharing, each of the first seven would need 9 calls or more."""
    world = before_listing(100, wide=wide)
    single = fetch(world).exchange.calls
    parts = split_by_periods(world.span, 60, 1_000)
    outcome = fetch_parts(world, parts[::-1] if backwards else parts)
    check_whole(outcome)
    empty = [page for page in outcome.pages if not page.candles]
    assert sum(len(page.proofs) > 0 for page in empty) == len(empty)
    assert outcome.exchange.calls <= single + 25


def test_candle_at_an_end_of_the_range_outweighs_the_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coarser candles lack the first two days."""
    world = replace(before_listing(100), history=History(), periods=3_600)
    whole = Exchange._table

    def table(exchange: Exchange, whose: str, period_seconds: int) -> tuple[list[int], list[Candle]]:
        opens, rows = whole(exchange, whose, period_seconds)
        if period_seconds == 60:
            return opens, rows
        left = [c for c in rows if c.open_ns >= world.open_ns(2_880)]
        return [c.open_ns for c in left], left

    monkeypatch.setattr(Exchange, "_table", table)
    check_whole(fetch(world, warm()))


def long_absences(seed: int) -> World:
    """Return a world with a long absence and with candles that are hidden for a while."""
    dice = random.Random(f"long absences {seed}")
    first = dice.randint(0, 400)
    history = dice.choice(
        [
            History(listed=first),
            History(delisted=first),
            History(outages=((first, dice.randint(100, 400)),)),
            History(density=0.5, listed=first),
            History(density=0.004),
        ]
    )
    untruth = Untruth(
        first=dice.randint(0, 600),
        count=dice.randint(1, 300),
        lasts_s=dice.choice([0.2, 1.0, 5.0, 30.0, 60.0, 600.0]),
        replicas=dice.randint(1, 3),
        calls=dice.randint(0, 30),
        intact=dice.random() < 0.3,
        deep=dice.random() < 0.3,
        share=dice.choice([1.0, 1.0, 0.5, 0.2]),
    )
    call = CallLimits(dice.choice([10, 20, 30]), wide=dice.random() < 0.4)
    good = dice.choice([0, 2_000])
    return World(seed, history, 600, 60, call, 60, cells=CELLS[:4], untruth=untruth, good_answers=good)


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_untruths_beside_long_absences_are_never_silently_wrong(first: int) -> None:
    for seed in range(first, first + 10):
        world = long_absences(seed)
        outcome = fetch_parts(world, split_by_periods(world.span, 60, 200)[:: 1 if seed % 3 else -1])
        check_account(outcome)
        check_found_later(outcome)
