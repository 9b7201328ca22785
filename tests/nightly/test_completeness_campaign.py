"""Untrue answers of all kinds: tens of thousands of simulated jobs, and the whole chain with an ingestor that dies.

In the chain an exchange spoils every fifth answer, in every way it knows. Backfills of a market without holes run
concurrently. Each round also requests the next part of a market with true holes, which was listed late and delisted
early. Afterwards both tables must equal the oracle's, row for row. Seeds differ between runs; each table names its
seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from dexorder_common.model.history import RequestStatus
from dexorder_common.model.periods import PERIOD_SECONDS, count_periods, next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_exchange_sim.candles import Candles, aggregate
from dexorder_exchange_sim.faults import SILENCES, STATUSES, Kind
from dexorder_exchange_sim.periods import PERIODS
from tests.nightly.backfills import Backfills, historical, submit
from tests.nightly.watching import Listener, RelayFile
from tests.rig.oracle import VALUES, assert_equal, minutes
from tests.rig.processes import until
from tests.rig.report import print_campaign
from tests.rig.suite import Suite, running_suite
from tests.smoke.conftest import FAULTS
from tests.smoke.recorded import recorded
from tests.unit.services.ingestor.history.simulated import campaign
from tests.unit.services.ingestor.history.simulated.properties import PROPERTIES

SHARE = 0.2
KINDS = tuple(kind for kind in get_args(Kind) if kind not in (*STATUSES, *SILENCES, "edited", "absent"))
"""Every way to answer 200 and be wrong, but for one sound candle in place of another: where that is not asked for twice
nobody can tell."""
PATIENCE_SECONDS = 180
LONGEST_LIFE_SECONDS = 4.0


@dataclass(frozen=True)
class Thin:
    """A market with true holes and the requested range; ``rows`` are all it has, as in `harness.oracle`."""

    symbol: str
    period: str
    span: TimeRange
    rows: pa.Table

    def parts(self, count: int) -> list[TimeRange]:
        """Return the range in ``count`` adjacent parts."""
        seconds = PERIOD_SECONDS[self.period]
        periods = count_periods(self.span, seconds)
        borders = [next_open(self.span.start_ns, seconds, periods * n // count) for n in range(count + 1)]
        return [TimeRange(*ends) for ends in pairwise(borders)]

    def within(self, span: TimeRange) -> pa.Table:
        """Return the rows of a range."""
        times = self.rows["open_time"].to_numpy()
        inside = (times >= span.start_ns // 1_000) & (times < span.end_ns // 1_000)
        return self.rows.filter(pa.array(inside))


@dataclass(frozen=True)
class Seen:
    """Counts of a campaign.

    Attributes:
        requests: Requests for both markets; each ended once with OK.
        empty: Periods that were verified empty.
        calls: Calls for candles since the faults were set.
        faults: Number of faults of each kind.
    """

    kills: int
    requests: int
    rows: int
    empty: int
    calls: int
    faults: Mapping[str, int]


def rules(share: float = SHARE) -> list[dict[str, Any]]:
    """Return the rules that spoil a share of the answers with candles, each kind about as often."""
    left, found = 1.0, []
    for kind in KINDS:  # the first that strikes wins, so a later one has to be likelier
        found.append({"kind": kind, "probability": share / len(KINDS) / left})
        left -= share / len(KINDS)
    return found


def set_faults(suite: Suite, faults: Sequence[Mapping[str, Any]]) -> None:
    """Replace the faults of the suite's exchange and reset its counters."""
    suite.exchange("/sim/faults", list(faults))
    suite.exchange("/sim/stats", method="DELETE")


def run_kills(suite: Suite, thin: Thin, *, kills: int, candles: int, symbols: tuple[str, ...]) -> Seen:
    """Kill the ingestor repeatedly, each time at a random moment of its dispatches.

    Args:
        candles: Candles of each backfill.
        symbols: Markets without holes to fill, from `backfills.FIRST_MINUTE` on.
    """
    asked: dict[str, TimeRange] = {}
    with Listener(suite, "lies") as listener, Listener(suite, "thin") as thin_listener:
        with Backfills(suite, "lies", candles=candles, symbols=symbols) as backfills:
            for number, part in enumerate(thin.parts(kills)):
                asked[f"thin-{number}"] = part
                submit(
                    suite,
                    historical(f"thin-{number}", thin.symbol, part, "thin", period_seconds=PERIOD_SECONDS[thin.period]),
                )
                _kill(suite)
                backfills.check()
        rows = backfills.assert_all_ended_well(listener.statuses)
        empty = _check_thin(suite, thin, asked, thin_listener)
    stats = suite.exchange("/sim/stats")
    return Seen(
        kills=kills,
        requests=len(backfills.sent) + len(asked),
        rows=rows + len(thin.within(thin.span)),
        empty=empty,
        calls=stats["requests"]["/api/v3/klines"],
        faults=Counter(stats["faults"]),
    )


def added_up(rows: pa.Table, period: str) -> pa.Table:
    """Return longer candles built from minutes in time order, as the exchange builds them; none without a minute."""
    fine = Candles(rows["open_time"].to_numpy() // 1_000_000, *(rows[name].to_numpy() for name in VALUES))
    coarse = aggregate(fine, PERIODS[period])
    times = pa.array(coarse.open_s * 1_000_000, pa.int64())
    return pa.table({"open_time": times, **{name: pa.array(getattr(coarse, name), pa.float64()) for name in VALUES}})


def thin_minutes(start_minute: int, count: int, *, seed: int) -> pa.Table:
    """Return minutes of which a tenth is missing, and sometimes up to some hours in a row."""
    dice = random.Random(seed)
    candles: dict[int, list[float]] = {}
    number = 0
    while number < count:
        if dice.random() < 0.002:
            number += dice.choice([5, 50, 500])
        elif dice.random() < 0.9:
            low, opened, close, high = sorted(round(100 + dice.random(), 4) for _ in range(4))
            open_us = minutes(start_minute + number, 0).start_ns // 1_000
            candles[open_us] = [opened, high, low, close, round(dice.random() * 10, 4)]
        number += 1
    columns = zip(*candles.values(), strict=True)
    values = {name: pa.array(column, pa.float64()) for name, column in zip(VALUES, columns, strict=True)}
    return pa.table({"open_time": pa.array([*candles], pa.int64()), **values})


def _kill(suite: Suite) -> None:
    """Kill the ingestor a random time after it took a job; return when the next ingestor runs."""
    until(lambda: bool(RelayFile(suite).held()), PATIENCE_SECONDS, suite.logs)
    time.sleep(random.uniform(0.0, LONGEST_LIFE_SECONDS))
    suite.kill_and_wait("ingestor", PATIENCE_SECONDS)


def _check_thin(suite: Suite, thin: Thin, asked: Mapping[str, TimeRange], listener: Listener) -> int:
    """Check that each part ended once with OK and the table is right; return the verified-empty periods."""
    seconds, empty, statuses = PERIOD_SECONDS[thin.period], 0, {}
    for request_id, part in asked.items():
        record, rows = suite.ended(request_id, PATIENCE_SECONDS), len(thin.within(part))
        status = RequestStatus.OK if rows else RequestStatus.NOT_FOUND
        found = (record.status, record.row_count, record.empty_periods)
        assert found == (status, rows, count_periods(part, seconds) - rows), record
        empty += record.empty_periods
        statuses[request_id] = {status.value}
    until(lambda: len(listener.statuses) >= len(asked), 60, lambda: str(listener.statuses))
    assert listener.statuses == statuses
    assert_equal(suite.rows(f"{thin.symbol}.SIM", seconds, thin.span), thin.within(thin.span))
    return empty


ROUNDS = int(os.environ.get("DEXORDER_SOAK_COMPLETENESS_ROUNDS", "20"))
JOBS = int(os.environ.get("DEXORDER_SOAK_SIMULATED_JOBS", "20000"))
EXAMPLES = int(os.environ.get("DEXORDER_SOAK_SIMULATED_EXAMPLES", "2000"))
SEED = int(os.environ.get("DEXORDER_SOAK_SEED", "0")) or random.randrange(1, 2**31)
CANDLES = 20_000
THIN_MINUTES = 40_000


@pytest.mark.soak
@pytest.mark.timeout(EXAMPLES * 2 + 600)
@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name: str) -> None:
    holds, worlds = PROPERTIES[name]
    settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))(given(worlds)(holds))()


@pytest.mark.soak
@pytest.mark.timeout(JOBS + 600)
def test_no_more_jobs_end_wrong_than_the_odds_allow() -> None:
    started_s = time.monotonic()
    tallies = [campaign.run(range(SEED, SEED + JOBS), lies=lies) for lies in campaign.COLD_ODDS]
    print_campaign(
        f"Simulated jobs, seeds from {SEED}",
        ["answers that lie", "jobs", "pages", "calls", "lies", "wrong from the start", "wrong later", "part missing"],
        *(
            [
                f"{t.lies:.0%}",
                f"{t.jobs:,}",
                f"{t.pages:,}",
                f"{t.calls:,}",
                f"{t.lied:,}",
                len(t.cold),
                len(t.later),
                len(t.missing),
            ]
            for t in tallies
        ),
        since_s=started_s,
    )
    for tally in tallies:
        tally.check(doubt=1e-4)


@pytest.mark.soak
@pytest.mark.timeout(ROUNDS * 120 + 1_200)
def test_lies_and_kills_lose_duplicate_and_invent_nothing(tmp_path: Path) -> None:
    started_s = time.monotonic()
    random.seed(SEED)
    rows = thin_minutes(0, THIN_MINUTES, seed=SEED)
    thin = Thin("THIN/USDT", "1m", minutes(-1_000, THIN_MINUTES + 2_000), rows)
    times = rows["open_time"].to_numpy() // 1_000
    pq.write_table(rows.set_column(0, "timestamp", pa.array(times)), tmp_path / "thin.parquet")
    environment = {
        "DEXORDER_SIM_LATENCY_MS": "100",
        "DEXORDER_RELAY_LEASE_SECONDS": "6",
        # lives of under 4 s may well bring no page, five in a row: to the relay that is a job that kills its ingestors
        "DEXORDER_RELAY_MAX_ATTEMPTS": "1000",
        "DEXORDER_INGESTOR_PAGE_CANDLES": "200",  # many pages, so that a kill falls between any two steps
        "DEXORDER_INGESTOR_BAN_SECONDS": "0.2",
    }
    with running_suite(
        tmp_path / "state", "--recorded", f"{tmp_path / 'thin.parquet'}=THIN/USDT@1m", **environment
    ) as suite:
        set_faults(suite, rules())
        symbols = ("BTC/USDT", "ETH/USDT", "LTC/USDT")
        seen = run_kills(suite, thin, kills=ROUNDS, candles=CANDLES, symbols=symbols)
    faulty = sum(seen.faults.values())
    print_campaign(
        f"Every fifth answer false, the ingestor killed again and again, seed {SEED}",
        ["kills", "requests", "candles", "verified empty", "calls", "of them false", "kinds", "result"],
        [
            seen.kills,
            seen.requests,
            f"{seen.rows:,}",
            f"{seen.empty:,}",
            f"{seen.calls:,}",
            f"{faulty:,} ({faulty / seen.calls:.0%})",
            len(seen.faults),
            "0 lost, 0 doubled, 0 wrong, 0 null, one status each",
        ],
        since_s=started_s,
    )


@pytest.fixture
def faulty_suite(smoke_suite: Suite) -> Iterator[Suite]:
    set_faults(smoke_suite, rules())
    yield smoke_suite
    set_faults(smoke_suite, FAULTS)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_wrong_responses_and_kills_cause_no_loss_duplicate_or_false_row(faulty_suite: Suite) -> None:
    table = recorded()
    rows = table.rename_columns(["open_time", *table.column_names[1:]])
    rows = rows.set_column(0, "open_time", pc.multiply(rows["open_time"], 1_000))
    # a period that no other test requests; a day before its listing and a day after its end
    thin = Thin("HOLE/USDT", "3m", minutes(-1_440, 2_160 + 2 * 1_440), added_up(rows, "3m"))
    seen = run_kills(faulty_suite, thin, kills=3, candles=3_000, symbols=("TRX/USDT",))
    assert seen.empty > 960 and sum(seen.faults.values()) > 0, seen
