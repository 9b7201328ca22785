"""An exchange that spoils every fifth answer, in every way it knows, and an ingestor that is killed meanwhile.

Backfills of a market without holes run concurrently. Each round also requests the next part of a market with true
holes, which was listed late and delisted early. Afterwards both tables must equal the oracle's, row for row.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import pyarrow as pa

from dexorder_common.model.history import RequestState, RequestStatus
from dexorder_common.model.periods import PERIOD_SECONDS, count_periods, next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_exchange_sim.candles import Candles, aggregate
from dexorder_exchange_sim.faults import SILENCES, STATUSES, Kind
from dexorder_exchange_sim.periods import PERIODS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from tests.nightly.backfills import Backfills, submit
from tests.nightly.watching import Listener, RelayFile
from tests.rig.oracle import VALUES, assert_equal, minutes
from tests.rig.processes import until
from tests.rig.suite import Suite

SHARE = 0.2
KINDS = tuple(kind for kind in get_args(Kind) if kind not in (*STATUSES, *SILENCES, "edited"))
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
    address = f"http://{suite.address('sim')}/sim"
    body = json.dumps(list(faults)).encode()
    for request in (
        urllib.request.Request(f"{address}/faults", body, method="POST"),
        urllib.request.Request(f"{address}/stats", method="DELETE"),
    ):
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200, answer.read()


def run(suite: Suite, thin: Thin, *, kills: int, candles: int, symbols: tuple[str, ...]) -> Seen:
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
                submit(suite, _historical(f"thin-{number}", thin, part))
                _kill(suite)
                backfills.check()
        rows = backfills.assert_all_ended_well(listener.statuses)
        empty = _check_thin(suite, thin, asked, thin_listener)
    stats = _stats(suite)
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


def _historical(request_id: str, thin: Thin, part: TimeRange) -> ingest_pb2.SubmitHistoricalRequest:
    return ingest_pb2.SubmitHistoricalRequest(
        request_id=request_id,
        ticker=f"{thin.symbol}.SIM",
        start_time=part.start_ns,
        end_time=part.end_ns,
        period_seconds=PERIOD_SECONDS[thin.period],
        client_id="thin",
    )


def _kill(suite: Suite) -> None:
    """Kill the ingestor a random time after it took a job; return when the next ingestor runs."""
    until(lambda: bool(RelayFile(suite).held()), PATIENCE_SECONDS, suite.logs)
    time.sleep(random.uniform(0.0, LONGEST_LIFE_SECONDS))
    old_pid = suite.pid("ingestor")
    suite.kill("ingestor")
    until(lambda: suite.is_new("ingestor", old_pid), PATIENCE_SECONDS, suite.logs)


def _check_thin(suite: Suite, thin: Thin, asked: Mapping[str, TimeRange], listener: Listener) -> int:
    """Check that each part ended once with OK and the table is right; return the verified-empty periods."""
    seconds, empty, statuses = PERIOD_SECONDS[thin.period], 0, {}
    for request_id, part in asked.items():
        until(lambda: _ended(suite, request_id), PATIENCE_SECONDS, suite.logs)  # noqa: B023 - called at once
        record, rows = suite.record(request_id), len(thin.within(part))
        assert record is not None
        status = RequestStatus.OK if rows else RequestStatus.NOT_FOUND
        found = (record.status, record.row_count, record.empty_periods)
        assert found == (status, rows, count_periods(part, seconds) - rows), record
        empty += record.empty_periods
        statuses[request_id] = {status.value}
    until(lambda: len(listener.statuses) >= len(asked), 60, lambda: str(listener.statuses))
    assert listener.statuses == statuses
    assert_equal(suite.rows(f"{thin.symbol}.SIM", seconds, thin.span), thin.within(thin.span))
    return empty


def _ended(suite: Suite, request_id: str) -> bool:
    record = suite.record(request_id)
    return record is not None and record.state is RequestState.FINISHED


def _stats(suite: Suite) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{suite.address('sim')}/sim/stats", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found
