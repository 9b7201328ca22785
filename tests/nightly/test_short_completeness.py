"""Shortened campaign of completeness: every fifth response of the exchange is wrong and the ingestor is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pytest

from tests.nightly import completeness_kills
from tests.nightly.completeness_kills import Thin
from tests.rig.oracle import minutes
from tests.rig.suite import Suite
from tests.smoke.conftest import FAULTS
from tests.smoke.recorded import recorded

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def faulty_suite(smoke_suite: Suite) -> Iterator[Suite]:
    completeness_kills.set_faults(smoke_suite, completeness_kills.rules())
    yield smoke_suite
    completeness_kills.set_faults(smoke_suite, FAULTS)


def test_wrong_responses_and_kills_cause_no_loss_duplicate_or_false_row(faulty_suite: Suite) -> None:
    table = recorded()
    rows = table.rename_columns(["open_time", *table.column_names[1:]])
    rows = rows.set_column(0, "open_time", pc.multiply(rows["open_time"], 1_000))
    # a period that no other test requests; a day before its listing and a day after its end
    thin = Thin("HOLE/USDT", "3m", minutes(-1_440, 2_160 + 2 * 1_440), completeness_kills.added_up(rows, "3m"))
    seen = completeness_kills.run(faulty_suite, thin, kills=3, candles=3_000, symbols=("TRX/USDT",))
    assert seen.empty > 960 and sum(seen.faults.values()) > 0, seen
